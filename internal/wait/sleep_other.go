//go:build !linux

package wait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Without futexes a sleeper looks at this interval.
const nap = 50 * time.Microsecond

// FutexWait sleeps while *p == v, at most for d (d <= 0: no bound).
func FutexWait(p *uint32, v uint32, d time.Duration) {
	for began := time.Now(); atomic.LoadUint32(p) == v && (d <= 0 || time.Since(began) < d); {
		time.Sleep(nap)
	}
}

// FutexWake does nothing: sleepers look by themselves.
func FutexWake(*uint32) {}

// Yield gives the CPU to another goroutine; this platform has no way to prefer a process.
func Yield() { runtime.Gosched() }

// RegisterBarrier returns [ErrNoBarrier]: this platform has no barriers.
func RegisterBarrier() error { return ErrNoBarrier }

// Barrier does nothing and returns [ErrNoBarrier].
func Barrier() error { return ErrNoBarrier }
