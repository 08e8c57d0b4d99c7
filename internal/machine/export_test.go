package machine

// Forget makes this process one that has not asked for its identity yet.
func Forget() { identity.Store(nil) }

// First is first.
func First(n int) []byte { return first(n) }

// Told is what another process, of which the number is pid, would say.
func Told(p Process, pid int) Process {
	p.pid = uint32(pid)
	return p
}

// FirstHasOne is for a table.
var FirstHasOne = firstHasOne
