package channel

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// affinity is the set of CPUs that this process may run on, a bit each.
func affinity() []byte {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return firstCPUs(runtime.NumCPU())
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
