package impi

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawSocket is a socket with its own system calls: a wake-up through the poller of the Go runtime
// costs ten times as much as reading.
type rawSocket struct {
	guard
	num int
	iov vector
}

// vector holds the arguments of a vectored system call.
type vector struct {
	iov [maxPieces + 2]unix.Iovec
	msg unix.Msghdr
}

func (v *vector) set(bufs [][]byte) *unix.Msghdr {
	for i, b := range bufs {
		v.iov[i].Base = unsafe.SliceData(b)
		v.iov[i].SetLen(len(b))
	}
	v.msg.Iov = &v.iov[0]
	v.msg.SetIovlen(len(bufs))
	return &v.msg
}

// System calls bypass the scheduler, which would double their cost; none of them blocks.

func (s *rawSocket) readv(bufs [][]byte) (int, error) {
	n, _, errno := syscall.RawSyscall(unix.SYS_RECVMSG, uintptr(s.num), uintptr(unsafe.Pointer(s.iov.set(bufs))), unix.MSG_DONTWAIT)
	if errno != 0 {
		return s.why(result(0, errno))
	}
	return s.why(ended(int(n), nil))
}

func (s *rawSocket) writev(bufs [][]byte) (int, error) {
	n, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(s.num), uintptr(unsafe.Pointer(s.iov.set(bufs))), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if errno != 0 {
		return s.why(result(0, errno))
	}
	return int(n), nil
}

var noTime unix.Timespec

// pollNow is poll(2) that does not wait.
func pollNow(fds []unix.PollFd) (int, error) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)), uintptr(unsafe.Pointer(&noTime)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
