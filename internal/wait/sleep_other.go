//go:build !linux

package wait

import "runtime"

// Yield gives the CPU to another goroutine; this platform has no way to prefer a process.
func Yield() { runtime.Gosched() }

// RegisterBarrier says that this platform has no barriers: [ErrNoBarrier].
func RegisterBarrier() error { return ErrNoBarrier }

// Barrier does nothing: [ErrNoBarrier].
func Barrier() error { return ErrNoBarrier }
