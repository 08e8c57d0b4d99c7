//go:build !linux

package channel

import "runtime"

// affinity is the set of CPUs that this process may run on, a bit each.
func affinity() []byte { return firstCPUs(runtime.NumCPU()) }
