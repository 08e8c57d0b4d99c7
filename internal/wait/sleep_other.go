//go:build !linux

package wait

import "runtime"

// Yield gives the CPU to another goroutine; this platform has no way to prefer a process.
func Yield() { runtime.Gosched() }
