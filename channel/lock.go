package channel

import (
	"runtime"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// spinLock guards sections of nanoseconds. Unlocking is a release store, which
// costs less than the exchange of a sync.Mutex.
type spinLock struct{ held uint32 }

func (l *spinLock) lock() {
	if !atomic.CompareAndSwapUint32(&l.held, 0, 1) {
		l.lockSlow()
	}
}

func (l *spinLock) tryLock() bool { return atomic.CompareAndSwapUint32(&l.held, 0, 1) }

func (l *spinLock) lockSlow() {
	for spin := 0; ; spin++ {
		if atomic.LoadUint32(&l.held) == 0 && atomic.CompareAndSwapUint32(&l.held, 0, 1) {
			return
		}
		if spin < 100 {
			wait.Pause(10)
		} else {
			runtime.Gosched()
		}
	}
}

func (l *spinLock) unlock() { wait.StoreRelease32(&l.held, 0) }
