package wait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Lock is a spin lock for critical sections of nanoseconds to some microseconds.
// Compared to sync.Mutex it saves the atomic instruction of unlocking (a release store
// suffices), which is a tenth of the time of an 8-byte message. A waiter yields, and
// then sleeps, until a preempted holder runs again. A waiter that has slept several times
// comes before goroutines that ask later: otherwise one that takes the lock again as soon
// as it has released it, as a caller that polls in a loop does, keeps all others from it.
type Lock struct {
	held    uint32
	starved uint32 // waiters that come first
}

// TryLock takes the lock if it is free and no waiter comes first.
func (l *Lock) TryLock() bool {
	return atomic.LoadUint32(&l.starved) == 0 && atomic.CompareAndSwapUint32(&l.held, 0, 1)
}

// TryLockAs is TryLock, and leaves a mark, above 1, that identifies the holder. It
// allows taking two locks with one atomic instruction, if every goroutine that needs
// the second lock follows one of two protocols: take both through this one and check
// that the second is not Held, or take the second and then wait with Avoid until the
// mark is gone. Of two such goroutines, the first to write is seen by the other.
func (l *Lock) TryLockAs(mark uint32) bool {
	return atomic.LoadUint32(&l.starved) == 0 && atomic.CompareAndSwapUint32(&l.held, 0, mark)
}

// Held says whether the lock is held.
func (l *Lock) Held() bool { return atomic.LoadUint32(&l.held) != 0 }

// Avoid waits while the lock is held with this mark.
func (l *Lock) Avoid(mark uint32) {
	for spin := 0; atomic.LoadUint32(&l.held) == mark; spin++ {
		pause(spin)
	}
}

// Lock takes the lock, waiting for it if needed.
func (l *Lock) Lock() {
	if !l.TryLock() {
		l.lockSlow()
	}
}

func (l *Lock) lockSlow() {
	spin := 0
	for ; spin < lockSpins+lockYields+lockNaps; spin++ {
		if atomic.LoadUint32(&l.held) == 0 && l.TryLock() {
			return
		}
		pause(spin)
	}
	atomic.AddUint32(&l.starved, 1)
	for !atomic.CompareAndSwapUint32(&l.held, 0, 1) {
		pause(spin)
	}
	atomic.AddUint32(&l.starved, ^uint32(0))
}

// A waiter for a lock pauses for some 100 ns at a time, then yields to other goroutines, then
// sleeps, longer each time. A holder that takes so long is copying a lot or has been preempted,
// perhaps by another process: either makes better use of the CPU.
const (
	lockSpins  = 100
	lockYields = 16
	lockNap    = 10 * time.Microsecond
	lockDouble = 4 // naps are doubled at most this often
	lockNaps   = 8 // after so many a waiter comes first
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

// Pass waits until the current holder, if any, has released the lock.
func (l *Lock) Pass() {
	if !l.TryLock() {
		l.lockSlow()
	}
	l.Unlock()
}
