package ranks

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Fork makes a copy of this process, as C of a program may do, and returns its PID. The copy has the memory
// and the descriptors that this process has, standard output and error aside. It does nothing, and ends after
// [Limit], or when [EndFork] kills it.
//
//go:norace
func Fork() (int, error) {
	rest := unix.NsecToTimespec(int64(Limit / time.Nanosecond))
	syscall.ForkLock.Lock()
	pid, _, e := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 && e == 0 { // a single thread, of which the runtime knows nothing
		doNothing(&rest)
	}
	syscall.ForkLock.Unlock()
	if e != 0 {
		return 0, e
	}
	return int(pid), nil
}

//go:norace
//go:nosplit
func doNothing(rest *unix.Timespec) {
	syscall.RawSyscall(unix.SYS_CLOSE, 1, 0, 0)
	syscall.RawSyscall(unix.SYS_CLOSE, 2, 0, 0)
	syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(rest)), 0, 0)
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// EndFork kills what [Fork] has made in this process.
func EndFork(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	for {
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != syscall.EINTR {
			return err
		}
	}
}
