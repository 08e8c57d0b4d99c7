//go:build !linux

package machine

import "runtime"

// CPUs is the set of CPUs that this process may run on, a bit each; here as many as
// the Go runtime uses.
func CPUs() []byte { return first(runtime.NumCPU()) }

func cpusOf(int) []byte { return nil }
