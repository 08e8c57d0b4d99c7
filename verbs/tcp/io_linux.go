package tcp

import (
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket is the transport of raw sockets. It makes system calls without notifying the
// scheduler, which would double their cost: none of them blocks.
type socket struct {
	e    *epoll
	c    *conn
	rfd  int // read from, and watched
	wfd  int // written to; differs from rfd only if the QP is connected to itself
	id   int32
	mask uint32 // what the engine's epoll is armed for; 0: fired, or not in it
	held bool   // the engine's epoll has the socket
	in   []membership
	hush bool // see mute

	closed  bool
	silence error // why it was shut down: the other host is silent

	iov [max(maxBufs, maxSGE+1)]unix.Iovec
	msg unix.Msghdr
}

// membership is a socket's place in a set of a CQ.
type membership struct {
	set *epollSet
	id  int32
}

func (e *epoll) newSocket(c *conn, rfd, wfd int) (*socket, error) {
	s := &socket{e: e, c: c, rfd: rfd, wfd: wfd, held: true}
	var err error
	s.id, err = e.add(rfd, unix.EPOLLONESHOT, c)
	return s, err
}

// readable calls poll(2), which does not lock the socket. Spinning on reads does, which
// delays arriving packets: streams of 1 MiB are 5 % slower.
func (s *socket) readable() bool {
	fd := unix.PollFd{Fd: int32(s.rfd), Events: unix.POLLIN}
	n, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fd)), 1, uintptr(unsafe.Pointer(&noTime)), 0, 0, 0)
	return n != 0 || errno != 0
}

// noTime is the timeout of ppoll(2). (Not all architectures have poll.)
var noTime unix.Timespec

func (s *socket) readv(bufs [][]byte) (int, error) {
	var n uintptr
	var errno syscall.Errno
	for {
		if len(bufs) == 1 {
			n, _, errno = syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.rfd),
				uintptr(unsafe.Pointer(unsafe.SliceData(bufs[0]))), uintptr(len(bufs[0])), unix.MSG_DONTWAIT, 0, 0)
		} else {
			n, _, errno = syscall.RawSyscall(unix.SYS_READV, uintptr(s.rfd), uintptr(unsafe.Pointer(s.vector(bufs))), uintptr(len(bufs)))
		}
		if errno != unix.EINTR {
			break
		}
	}
	switch {
	case errno == unix.EAGAIN:
		return 0, errAgain
	case s.silence != nil && (errno != 0 || n == 0):
		return 0, s.silence
	case errno != 0:
		return 0, errno
	case n == 0:
		return 0, io.EOF
	}
	raceRead(s.rfd)
	return int(n), nil
}

func (s *socket) writev(bufs [][]byte) (int, error) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	raceWrite()
	var n uintptr
	var errno syscall.Errno
	for {
		if len(bufs) == 1 {
			n, _, errno = syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(s.wfd),
				uintptr(unsafe.Pointer(unsafe.SliceData(bufs[0]))), uintptr(len(bufs[0])), flags, 0, 0)
		} else {
			s.msg.Iov = s.vector(bufs)
			s.msg.SetIovlen(len(bufs))
			n, _, errno = syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(s.wfd), uintptr(unsafe.Pointer(&s.msg)), flags)
		}
		if errno != unix.EINTR {
			break
		}
	}
	switch {
	case errno == unix.EAGAIN || errno == unix.ENOBUFS || errno == unix.ENOMEM:
		return 0, errAgain
	case s.silence != nil && errno != 0:
		return 0, s.silence
	case errno != 0:
		return 0, errno
	}
	return int(n), nil
}

func (s *socket) vector(bufs [][]byte) *unix.Iovec {
	for i, b := range bufs {
		s.iov[i].Base = unsafe.SliceData(b)
		s.iov[i].SetLen(len(b))
	}
	return &s.iov[0]
}

func (s *socket) shutdown() { unix.Shutdown(s.wfd, unix.SHUT_WR) }

// Control implements [keepalive.Socket].
func (s *socket) Control(f func(fd uintptr)) error {
	q := s.c.q
	q.Lock.Lock()
	defer q.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	f(uintptr(s.rfd))
	return nil
}

// fail ends the connection, for a reason that reading and writing return from then on.
func (s *socket) fail(err error) {
	s.silence = err
	unix.Shutdown(s.rfd, unix.SHUT_RDWR)
}

func (s *socket) close() {
	s.closed = true
	s.leave()
	s.e.remove(s.rfd, s.id)
	unix.Close(s.rfd)
	if s.wfd != s.rfd {
		unix.Close(s.wfd)
	}
}

func (s *socket) arm(in, out bool) {
	mask := uint32(unix.EPOLLRDHUP | unix.EPOLLONESHOT)
	if in {
		mask |= unix.EPOLLIN
	}
	if out && s.wfd == s.rfd {
		// If the pipe of a QP connected to itself is full, it can be read.
		mask |= unix.EPOLLOUT
	}
	if mask == s.mask {
		return
	}
	op := unix.EPOLL_CTL_MOD
	if !s.held {
		op = unix.EPOLL_CTL_ADD
	}
	if s.e.control(op, s.rfd, mask, s.id) == nil {
		s.mask, s.held = mask, true
	}
}

// disarm removes the socket from the engine's epoll: for a socket in an epoll set, even
// armed for nothing, every arriving packet makes the kernel visit the set.
func (s *socket) disarm() {
	if s.held {
		s.mask, s.held = 0, false
		s.e.control(unix.EPOLL_CTL_DEL, s.rfd, 0, 0)
	}
}

func (s *socket) fired() { s.mask = 0 }

func (s *socket) join(p pollSet) {
	set := p.(*epollSet)
	for _, m := range s.in {
		if m.set == set {
			return
		}
	}
	events := uint32(unix.EPOLLIN)
	if s.hush {
		events = 0
	}
	if id, err := set.add(s.rfd, events, s.c); err == nil {
		s.in = append(s.in, membership{set, id})
	}
}

// leave removes the socket from all sets.
func (s *socket) leave() {
	for _, m := range s.in {
		m.set.remove(s.rfd, m.id)
	}
	s.in = nil
}

func (s *socket) mute(on bool) {
	s.hush = on
	events := uint32(unix.EPOLLIN)
	if on {
		events = 0
	}
	for _, m := range s.in {
		m.set.control(unix.EPOLL_CTL_MOD, s.rfd, events, m.id)
	}
}

// rawEpollWait polls without waiting. A negative count, an error, counts as none.
func rawEpollWait(fd int, evs []unix.EpollEvent) int {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(evs))), uintptr(len(evs)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}
