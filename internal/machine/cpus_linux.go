package machine

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// CPUs is the set of CPUs that this process may run on, a bit each
// (sched_getaffinity(2) of its first thread); where that is not known, as many as the Go runtime uses.
func CPUs() []byte {
	if set := cpusOf(os.Getpid()); set != nil {
		return set
	}
	return first(runtime.NumCPU())
}

// cpusOf is the set of CPUs of a process, or nil.
func cpusOf(pid int) (b []byte) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(pid, &set) != nil {
		return nil
	}
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			b = append(b, make([]byte, i/8+1-len(b))...)
			b[i/8] |= 1 << (i % 8)
		}
	}
	return b
}
