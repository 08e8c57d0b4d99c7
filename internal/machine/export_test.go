package machine

// Forget makes this process one that has not asked for its identity yet.
func Forget() { identity.Store(nil) }

// First is first.
func First(n int) []byte { return first(n) }
