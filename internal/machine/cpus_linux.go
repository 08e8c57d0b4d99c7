package machine

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// CPUs is the set of CPUs that this process may run on, a bit each
// (sched_getaffinity(2)); where that is not known, as many as the Go runtime uses.
func CPUs() []byte {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return first(runtime.NumCPU())
	}
	var b []byte
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			b = append(b, make([]byte, i/8+1-len(b))...)
			b[i/8] |= 1 << (i % 8)
		}
	}
	return b
}
