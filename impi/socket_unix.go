//go:build unix

package impi

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/keepalive"
)

// newSocket takes over a connection, which it closes. The other host may be silent for the peer timeout.
func newSocket(nc *net.TCPConn, peerTimeout time.Duration) (socket, error) {
	if err := nc.SetNoDelay(true); err != nil {
		return nil, err
	}
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	if cerr := raw.Control(func(own uintptr) {
		// The duplicate is non-blocking like the original, which it outlives.
		fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
	}); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, fmt.Errorf("duplicate socket: %w", err)
	}
	nc.Close()
	s := &rawSocket{num: fd}
	if !keepalive.Local(nc) {
		keepalive.Watch(s, peerTimeout, s.silent)
	}
	return s, nil
}

// guard ends a socket whose other host is silent.
type guard struct {
	closing sync.Mutex // held while the descriptor is lent, or closed
	silence atomic.Pointer[error]
}

// Control implements [keepalive.Socket].
func (s *rawSocket) Control(f func(fd uintptr)) error {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.num < 0 {
		return net.ErrClosed
	}
	f(uintptr(s.num))
	return nil
}

// why gives the reason why the connection was ended here.
func (g *guard) why(n int, err error) (int, error) {
	if err == nil || err == errAgain {
		return n, err
	}
	if silence := g.silence.Load(); silence != nil {
		err = *silence
	}
	return n, err
}

// silent ends the connection, for a reason that reading and writing return from then on.
func (s *rawSocket) silent(err error) {
	s.silence.Store(&err)
	unix.Shutdown(s.num, unix.SHUT_RDWR)
}

func (s *rawSocket) fd() int { return s.num }

func (s *rawSocket) close() {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.num >= 0 {
		// A goroutine blocked in poll holds on to the socket, which would stay open until it
		// returns.
		unix.Shutdown(s.num, unix.SHUT_RDWR)
		unix.Close(s.num)
		s.num = -1
	}
}

// result converts the result of a system call on the socket.
func result(n int, err error) (int, error) {
	switch {
	case err == unix.EAGAIN, err == unix.ENOBUFS, err == unix.ENOMEM, err == unix.EINTR:
		return 0, errAgain
	case err != nil:
		return 0, err
	}
	return n, nil
}

// ended is result for reading.
func ended(n int, err error) (int, error) {
	n, err = result(n, err)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// tcpSource is the event source of TCP connections.
type tcpSource struct {
	e        *engine
	carriers []*tcpCarrier
	fds      []unix.PollFd // for poll, with the lock
	waits    []unix.PollFd // for block
	blocked  bool          // a goroutine is in block
	wake     [2]int        // a pipe, to end that
	woken    chan struct{} // closed when the engine has stopped and block has been roused
}

func newTCPSource(e *engine) (*tcpSource, error) {
	wake, err := newPipe()
	if err != nil {
		return nil, err
	}
	s := &tcpSource{e: e, wake: wake, woken: make(chan struct{})}
	for _, fd := range s.wake {
		unix.SetNonblock(fd, true)
	}
	context.AfterFunc(e.life, func() {
		s.rouse()
		close(s.woken)
	})
	return s, nil
}

// newPipe makes a pipe that no program inherits which is being started.
func newPipe() (fds [2]int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := unix.Pipe(fds[:]); err != nil {
		return fds, fmt.Errorf("pipe: %w", err)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds, nil
}

// rouse makes block return.
func (s *tcpSource) rouse() { unix.Write(s.wake[1], []byte{0}) }

// attention makes block watch a carrier's socket for room, now that something waits for it. block
// may have begun before that.
func (s *tcpSource) attention(c *tcpCarrier) {
	if s.blocked && !c.awaited {
		c.awaited = true
		s.rouse()
	}
}

// close: the engine has been stopped.
func (s *tcpSource) close() {
	<-s.woken
	unix.Close(s.wake[0])
	unix.Close(s.wake[1])
}

// readEach is the most sockets that are read without asking first which have data.
const readEach = 4

func (s *tcpSource) poll(bool) bool {
	moved := false
	if len(s.carriers) <= readEach {
		for _, c := range s.carriers {
			if c.l.err == nil && c.poll() {
				moved = true
			}
		}
		return moved
	}
	s.fds = s.list(s.fds[:0])
	if _, err := pollNow(s.fds); err != nil {
		return false
	}
	for i, c := range s.carriers {
		if (s.fds[i].Revents != 0 || c.deaf != nil) && c.l.err == nil && c.poll() {
			moved = true
		}
	}
	return moved
}

// list says what the sockets wait for.
func (s *tcpSource) list(fds []unix.PollFd) []unix.PollFd {
	for _, c := range s.carriers {
		fd := unix.PollFd{Fd: -1}
		if in, out := c.wants(); in {
			fd.Fd, fd.Events = int32(c.s.fd()), unix.POLLIN
			if out {
				fd.Events |= unix.POLLOUT
			}
		}
		fds = append(fds, fd)
	}
	return fds
}

func (s *tcpSource) block(ctx context.Context) error {
	s.e.lock.Lock()
	s.waits = append(s.list(s.waits[:0]), unix.PollFd{Fd: int32(s.wake[0]), Events: unix.POLLIN})
	for i, c := range s.carriers {
		c.awaited = s.waits[i].Events&unix.POLLOUT != 0
	}
	s.blocked = true
	s.e.lock.Unlock()
	_, err := unix.Poll(s.waits, -1)
	s.e.lock.Lock()
	s.blocked = false
	s.e.lock.Unlock()
	if s.waits[len(s.carriers)].Revents != 0 && ctx.Err() == nil {
		var b [16]byte
		unix.Read(s.wake[0], b[:])
	}
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("poll: %w", err)
	}
	return ctx.Err()
}
