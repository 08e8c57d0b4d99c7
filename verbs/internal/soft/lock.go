package soft

import (
	"runtime"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// Lock is a spin lock for critical sections of nanoseconds to some microseconds.
// Against sync.Mutex it saves the atomic instruction of unlocking (a release
// store suffices), which is a tenth of an 8-byte message; a holder that the
// scheduler has preempted is waited for by yielding.
type Lock struct{ held uint32 }

// TryLock takes the lock if it is free.
func (l *Lock) TryLock() bool { return atomic.CompareAndSwapUint32(&l.held, 0, 1) }

// Lock waits for the lock.
func (l *Lock) Lock() {
	if !l.TryLock() {
		l.lockSlow()
	}
}

func (l *Lock) lockSlow() {
	for spin := 0; ; spin++ {
		if atomic.LoadUint32(&l.held) == 0 && l.TryLock() {
			return
		}
		if spin < 100 {
			wait.Pause(10)
		} else {
			runtime.Gosched()
		}
	}
}

// Unlock releases the lock.
func (l *Lock) Unlock() { wait.StoreRelease32(&l.held, 0) }

// Pass waits until whoever holds the lock now has let go of it.
func (l *Lock) Pass() {
	if !l.TryLock() {
		l.lockSlow()
	}
	l.Unlock()
}
