package wait

import (
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Yield gives the CPU to another process that is ready to run (sched_yield(2)), without
// involving the Go scheduler. Use it while waiting for a peer process.
func Yield() { syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

const (
	futexWait = 0 // FUTEX_WAIT, without FUTEX_PRIVATE_FLAG: the word may be shared between processes
	futexWake = 1 // FUTEX_WAKE
)

// FutexWait sleeps while *p == v, at most for d (d <= 0: no bound). It may return early
// without a reason: check and call again. It blocks the thread in a system call of which the
// Go scheduler knows.
func FutexWait(p *uint32, v uint32, d time.Duration) {
	var ts *unix.Timespec
	if d > 0 {
		t := unix.NsecToTimespec(int64(d))
		ts = &t
	}
	syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p)), futexWait, uintptr(v), uintptr(unsafe.Pointer(ts)), 0, 0)
}

// FutexWake wakes all sleepers on p, in all processes.
func FutexWake(p *uint32) {
	syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p)), futexWake, 1<<31-1, 0, 0, 0)
}

// Commands of membarrier(2) (include/uapi/linux/membarrier.h).
const (
	membarrierGlobalExpedited         = 1 << 1
	membarrierRegisterGlobalExpedited = 1 << 2
)

var registerBarrier = sync.OnceValue(func() error {
	if _, _, e := syscall.RawSyscall(unix.SYS_MEMBARRIER, membarrierRegisterGlobalExpedited, 0, 0); e != 0 {
		return e
	}
	return nil
})

// RegisterBarrier registers this process, so that the [Barrier] of other processes reaches it.
// Both sides must call it before they rely on Barrier.
func RegisterBarrier() error {
	if registerBarrier() != nil {
		return ErrNoBarrier
	}
	return nil
}

// Barrier is a full memory barrier on every CPU that runs a thread of a
// registered process, this one included: after it, each of them has either made its earlier
// stores visible or not yet performed its later loads. The sleeper pays for the barrier, so
// that the process that wakes it needs none.
func Barrier() error {
	if _, _, e := syscall.RawSyscall(unix.SYS_MEMBARRIER, membarrierGlobalExpedited, 0, 0); e != 0 {
		return ErrNoBarrier
	}
	return nil
}
