package xdp

import (
	"errors"
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func setsockopt(fd, level, name int, v unsafe.Pointer, n uintptr) error {
	if _, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(v), n, 0); errno != 0 {
		return errno
	}
	return nil
}

func getsockopt(fd, level, name int, v unsafe.Pointer, n *uint32) error {
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(v), uintptr(unsafe.Pointer(n)), 0); errno != 0 {
		return errno
	}
	return nil
}

// newSocket creates an AF_XDP socket with rings.
func newSocket(rings map[int]int) (int, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("AF_XDP socket: %w", err)
	}
	for option, n := range rings {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, option, n); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("create ring of %d descriptors: %w", n, err)
		}
	}
	return fd, nil
}

// freeing is how long a queue may stay taken after its user has left: the kernel frees it in a
// separate work item when the last mapping of a ring is gone. That item has no bound of its own: on
// a loaded machine it was seen to wait for its kernel thread for more than 3 s.
const freeing = 10 * time.Second

// bind binds the socket, and waits for a queue that is about to be freed.
func bind(fd, index, queue int, flags uint16, shared int) error {
	for end := time.Now().Add(freeing); ; time.Sleep(time.Millisecond) {
		err := unix.Bind(fd, &unix.SockaddrXDP{Flags: flags, Ifindex: uint32(index), QueueID: uint32(queue), SharedUmemFD: uint32(shared)})
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// kick makes the kernel send the packets in the tx ring. It is a raw system call: one through
// the scheduler costs more, sometimes much more.
func kick(fd int) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// wake makes the kernel look at the fill ring.
func wake(fd int) {
	syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
}
