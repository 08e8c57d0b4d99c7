//go:build !linux

package wait

import "runtime"

// Yield gives the CPU to another goroutine; this platform has no way to prefer a process.
func Yield() { runtime.Gosched() }

// RegisterBarrier returns [ErrNoBarrier]: this platform has no barriers.
func RegisterBarrier() error { return ErrNoBarrier }

// Barrier does nothing and returns [ErrNoBarrier].
func Barrier() error { return ErrNoBarrier }
