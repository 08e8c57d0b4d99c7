package tcp

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/keepalive"
)

// newDriver returns the driver: the portable one if requested, else epoll.
func newDriver(portable bool) (driver, error) {
	if portable {
		return newNetDriver(), nil
	}
	return newEpoll()
}

// epoll drives raw non-blocking sockets, outside the Go runtime's poller: a read that finds
// data costs 0.4 µs; waking a goroutine costs ten times that. The engine alone waits for its
// epoll instance in the runtime's poller: in epoll_wait it would keep the CPU that Go runs
// goroutines on, for up to 10 ms, after which the runtime looks what a system call is doing.
type epoll struct {
	epollSet
	file  *os.File // its descriptor
	raw   syscall.RawConn
	look  func(uintptr) bool // polls it
	seen  int                // events that look has found
	event int                // eventfd, for wake
	out   []happening        // result of wait
}

// wakeID marks the eventfd in what epoll_wait returns.
const wakeID = 0

func newEpoll() (*epoll, error) {
	e := &epoll{}
	if err := e.init(); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(e.fd, true); err != nil { // or NewFile does not give it to the poller
		unix.Close(e.fd)
		return nil, fmt.Errorf("fcntl: %w", err)
	}
	e.file = os.NewFile(uintptr(e.fd), "epoll")
	var err error
	if e.raw, err = e.file.SyscallConn(); err == nil {
		err = e.file.SetReadDeadline(time.Time{}) // fails without the poller
	}
	if err != nil {
		e.file.Close()
		return nil, fmt.Errorf("wait for epoll: %w", err)
	}
	e.look = func(uintptr) bool {
		e.seen = rawEpollWait(e.fd, e.evs[:])
		return e.seen > 0
	}
	if e.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		e.file.Close()
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if err := e.control(unix.EPOLL_CTL_ADD, e.event, unix.EPOLLIN, wakeID); err != nil {
		unix.Close(e.event)
		e.file.Close()
		return nil, fmt.Errorf("epoll_ctl: %w", err)
	}
	return e, nil
}

func (e *epoll) polled() bool { return true }

func (e *epoll) wait(d time.Duration) []happening {
	if !e.look(0) && d != 0 {
		var end time.Time
		if d > 0 {
			end = time.Now().Add(d)
		}
		e.file.SetReadDeadline(end)
		e.raw.Read(e.look)
	}
	e.out = e.out[:0]
	for i := range e.evs[:max(e.seen, 0)] { // an error is EINTR
		if e.evs[i].Fd == wakeID {
			var b [8]byte
			unix.Read(e.event, b[:])
			continue
		}
		if c := e.conn(e.evs[i].Fd); c != nil {
			const over = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
			e.out = append(e.out, happening{c, e.evs[i].Events&over != 0})
		}
	}
	return e.out
}

func (e *epoll) wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(e.event, one[:])
}

func (e *epoll) close() {
	unix.Close(e.event)
	e.file.Close()
}

func (e *epoll) newSet() (pollSet, error) {
	s := &epollSet{}
	return s, s.init()
}

func (e *epoll) adopt(c *conn, nc net.Conn) (transport, error) {
	tc := nc.(*net.TCPConn)
	if err := prepare(tc); err != nil {
		return nil, err
	}
	raw, err := tc.SyscallConn()
	if err != nil {
		return nil, err
	}
	local := keepalive.Local(tc)
	watched := !local && keepalive.Watchable(raw)
	if !local && !watched {
		if err := breakAfter(raw, c.a.cfg.PeerTimeout); err != nil {
			return nil, err
		}
	}
	fd := -1
	if cerr := raw.Control(func(own uintptr) {
		// The duplicate is non-blocking like the original, and outlives it.
		fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
	}); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, fmt.Errorf("duplicate socket: %w", err)
	}
	s, err := e.newSocket(c, fd, fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	nc.Close()
	if watched {
		keepalive.Watch(s, c.a.cfg.PeerTimeout, s.fail)
	}
	return s, nil
}

func (e *epoll) loop(c *conn) (transport, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	s, err := e.newSocket(c, fds[0], fds[1])
	if err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, err
	}
	return s, nil
}

// breakAfter sets TCP_USER_TIMEOUT, for a connection that cannot be watched: it breaks when sent bytes stay
// unacknowledged for that long, also while the peer's process is stopped.
func breakAfter(raw syscall.RawConn, timeout time.Duration) (err error) {
	cerr := raw.Control(func(fd uintptr) {
		ms := max(int(timeout/time.Millisecond), 1)
		err = os.NewSyscallError("set TCP_USER_TIMEOUT", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms))
	})
	return cmp.Or(cerr, err)
}

// uncongested chooses the cheapest congestion control for a connection within a
// host, where there is no congestion: with BBR, which paces, streams of 1 MiB are 3 %
// slower. If the system does not allow it, the default stays.
func uncongested(tc *net.TCPConn) {
	if raw, err := tc.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") })
	}
}

// epollSet is an epoll instance and the connections in it, by number.
type epollSet struct {
	fd  int
	evs [64]unix.EpollEvent // result of epoll_wait

	mu    sync.RWMutex
	conns map[int32]*conn
	next  int32
}

func (p *epollSet) init() error {
	var err error
	if p.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create: %w", err)
	}
	p.conns = map[int32]*conn{}
	return nil
}

func (p *epollSet) control(op, fd int, events uint32, id int32) error {
	return unix.EpollCtl(p.fd, op, fd, &unix.EpollEvent{Events: events, Fd: id})
}

// add adds a descriptor under a new number: descriptors are reused at once, numbers only
// after 2^31 others.
func (p *epollSet) add(fd int, events uint32, c *conn) (int32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		p.next = (p.next + 1) & (1<<31 - 1)
		if _, taken := p.conns[p.next]; !taken && p.next != wakeID {
			break
		}
	}
	if err := p.control(unix.EPOLL_CTL_ADD, fd, events, p.next); err != nil {
		return 0, fmt.Errorf("epoll_ctl: %w", err)
	}
	p.conns[p.next] = c
	return p.next, nil
}

func (p *epollSet) remove(fd int, id int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, id)
	unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil)
}

func (p *epollSet) conn(id int32) *conn {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.conns[id]
}

// ready implements pollSet.
func (p *epollSet) ready(into []*conn) []*conn {
	n := rawEpollWait(p.fd, p.evs[:])
	for i := range p.evs[:n] {
		if c := p.conn(p.evs[i].Fd); c != nil {
			into = append(into, c)
		}
	}
	return into
}

func (p *epollSet) close() { unix.Close(p.fd) }
