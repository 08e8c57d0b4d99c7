package wait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Lock is a spin lock for critical sections of nanoseconds to some microseconds.
// Against sync.Mutex it saves the atomic instruction of unlocking (a release
// store suffices), which is a tenth of an 8-byte message; a holder that the
// scheduler has preempted is waited for by yielding, and then by sleeping.
type Lock struct{ held uint32 }

// TryLock takes the lock if it is free.
func (l *Lock) TryLock() bool { return atomic.CompareAndSwapUint32(&l.held, 0, 1) }

// TryLockAs is TryLock that leaves a mark, above 1, of who holds the lock. Where all
// who want a second lock as well either take both through this one and look that the
// second is not Held, or take the second and then wait with Avoid for the mark to go,
// one atomic instruction is enough for two locks: the first of the two to write is
// seen by the other.
func (l *Lock) TryLockAs(mark uint32) bool { return atomic.CompareAndSwapUint32(&l.held, 0, mark) }

// Held says whether somebody holds the lock.
func (l *Lock) Held() bool { return atomic.LoadUint32(&l.held) != 0 }

// Avoid waits while the lock is held with this mark.
func (l *Lock) Avoid(mark uint32) {
	for spin := 0; atomic.LoadUint32(&l.held) == mark; spin++ {
		pause(spin)
	}
}

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
		pause(spin)
	}
}

// How the holder of a lock is waited for: by pauses of some 100 ns, then by letting other
// goroutines run, then by sleeping, each time longer. Who holds it so long copies much, or
// has been preempted, maybe by another process: the CPU is better used by either.
const (
	lockSpins  = 100
	lockYields = 16
	lockNap    = 10 * time.Microsecond
	lockDouble = 4 // naps are at most so often doubled
)

// pause waits for a holder.
func pause(spin int) {
	switch {
	case spin < lockSpins:
		Pause(10)
	case spin < lockSpins+lockYields:
		runtime.Gosched()
	default:
		time.Sleep(lockNap << min(spin-lockSpins-lockYields, lockDouble))
	}
}

// Unlock releases the lock.
func (l *Lock) Unlock() { StoreRelease32(&l.held, 0) }

// Pass waits until whoever holds the lock now has let go of it.
func (l *Lock) Pass() {
	if !l.TryLock() {
		l.lockSlow()
	}
	l.Unlock()
}
