package xdp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
)

// Helper opens ports for processes that cannot. It gives a seat to a process of the group, for
// the address and port of one of the process's sockets, if the address is among Addresses;
// otherwise any user of the host could receive another's packets. Processes that share a port
// can harm each other, so they must run as one user. The helper attaches the program when the
// first process comes, and detaches it when the last is gone.
//
// A seat is an AF_XDP socket: its owner can send any Ethernet frame, as with CAP_NET_RAW. A
// process that ends its connection but keeps the descriptors cannot be stopped: it gets no
// more packets, but it can send, and the queue stays taken, until it closes them.
type Helper struct {
	Group      int          // group ID: its members, and root, may ask for seats
	Addresses  []netip.Addr // addresses for which they may receive packets
	Interfaces []string
	Queue      int
	Native     bool
	Seats      int // at each interface; a power of two
	Ring       int // packets of each of a seat's rings; a power of two
	Log        *slog.Logger

	mu    sync.Mutex
	ports map[string]*shared
}

// shared is a port and its users. Opening it may take seconds; connections that come in the
// meantime wait for it, without the lock.
type shared struct {
	uid    uint32
	users  map[*net.UnixConn]struct{} // connections that have a seat, or are about to get one
	closed chan struct{}              // closed when there are none any more
	opened chan struct{}              // closed when the rest is set
	port   *Port
	err    error
}

// left says whether the connections of all users have ended, which Serve may have yet to see.
func (s *shared) left() bool {
	for c := range s.users {
		raw, err := c.SyscallConn()
		if err != nil {
			continue
		}
		var n int
		e := raw.Control(func(fd uintptr) {
			n, _, err = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		})
		if e == nil && (n > 0 || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)) {
			return false
		}
	}
	return true
}

// again is the pause after accept has failed.
const again = 100 * time.Millisecond

// now is a deadline that is over.
var now = time.Unix(1, 0)

// strangers limits the connections beyond those that have seats.
const strangers = 64

// Serve serves connections until ctx ends, and then detaches all programs. It closes l.
// Processes that have seats go on through the network stack.
func (h *Helper) Serve(ctx context.Context, l *net.UnixListener) error {
	h.ports = map[string]*shared{}
	defer context.AfterFunc(ctx, func() { l.SetDeadline(now) })() // Close would still be under way when Serve returns
	defer l.Close()
	var all sync.WaitGroup
	defer all.Wait()
	room := make(chan struct{}, len(h.Interfaces)*h.Seats+strangers)
	said := false
	for {
		c, err := l.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil { // out of descriptors or memory: retry
			if !said {
				said = true
				h.Log.Warn("cannot accept connections, retrying", "error", limits.Files(err))
			}
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
			continue
		}
		said = false
		select {
		case room <- struct{}{}:
		default:
			c.Close()
			continue
		}
		all.Go(func() {
			defer func() { <-room }()
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.CloseRead() })()
			if err := h.serve(c); err != nil {
				h.Log.Warn("refused a seat", "error", err)
			}
		})
	}
}

// serve serves a connection until it ends.
func (h *Helper) serve(c *net.UnixConn) error {
	creds, err := peer(c)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(patience))
	var q request
	fds, err := receive(c, &q, 1)
	if err != nil {
		return nil // a probe connects and sends nothing
	}
	g, leave, err := h.join(c, creds, q.Interface, fds[0])
	c.SetDeadline(time.Now().Add(patience)) // opening a port takes its own time
	unix.Close(fds[0])
	if err != nil {
		send(c, reply{Error: err.Error(), Forbidden: errors.Is(err, ErrForbidden)})
		return fmt.Errorf("user %d, process %d: %w", creds.uid, creds.pid, err)
	}
	defer leave()
	err = send(c, reply{Shape: g.Shape, Number: g.Number}, g.Socket, g.Rings, g.Memory)
	g.Close()
	if err != nil {
		return err
	}
	h.Log.Info("seat taken", "interface", q.Interface, "seat", g.Number, "user", creds.uid, "process", creds.pid)
	c.SetDeadline(time.Time{})
	c.Read(make([]byte, 1)) // wait for the end: the process sends nothing more
	h.Log.Info("seat free", "interface", q.Interface, "seat", g.Number)
	return nil
}

// join returns a seat for the user of a connection, and a function that takes it back.
func (h *Helper) join(c *net.UnixConn, creds credentials, netdev string, udp int) (*Grant, func(), error) {
	if creds.uid != 0 && !slices.Contains(creds.groups, uint32(h.Group)) {
		return nil, nil, fmt.Errorf("%w: the process is not in group %d", ErrForbidden, h.Group)
	}
	if !slices.Contains(h.Interfaces, netdev) {
		return nil, nil, fmt.Errorf("%w: the helper does not serve interface %q", ErrForbidden, netdev)
	}
	if err := here(udp); err != nil {
		return nil, nil, err
	}
	s, err := h.enter(c, creds.uid, netdev)
	if err != nil {
		return nil, nil, err
	}
	g, err := s.port.Join(udp, func(a netip.AddrPort) error {
		if !slices.Contains(h.Addresses, a.Addr()) {
			return fmt.Errorf("%w: the helper does not serve address %v", ErrForbidden, a.Addr())
		}
		return nil
	})
	if err != nil {
		h.exit(c, s, netdev)
		return nil, nil, err
	}
	return g, func() {
		s.port.Leave(g.Number)
		h.exit(c, s, netdev)
	}, nil
}

// enter adds a user to the interface's port, which it opens if it is not open yet. All
// connections that wait for that get the same result. One of another user waits for those that have ended.
func (h *Helper) enter(c *net.UnixConn, uid uint32, netdev string) (*shared, error) {
	h.mu.Lock()
	s := h.ports[netdev]
	for s != nil && s.uid != uid {
		left := s.left()
		h.mu.Unlock()
		if !left {
			return nil, fmt.Errorf("%w: another user is using interface %s", ErrForbidden, netdev)
		}
		<-s.closed
		h.mu.Lock()
		s = h.ports[netdev]
	}
	first := s == nil
	if first {
		s = &shared{uid: uid, users: map[*net.UnixConn]struct{}{}, closed: make(chan struct{}), opened: make(chan struct{})}
		h.ports[netdev] = s
	}
	s.users[c] = struct{}{}
	h.mu.Unlock()
	if first {
		s.port, s.err = h.open(netdev)
		if s.err == nil {
			h.Log.Info("attached", "interface", netdev, "user", uid)
		}
		close(s.opened)
	}
	<-s.opened
	if s.err != nil {
		h.exit(c, s, netdev)
		return nil, s.err
	}
	return s, nil
}

func (h *Helper) open(netdev string) (*Port, error) {
	i, err := net.InterfaceByName(netdev)
	if err != nil {
		return nil, err
	}
	p, err := OpenPort(Options{Index: i.Index, MTU: i.MTU, Queue: h.Queue, Native: h.Native, Seats: h.Seats, Ring: h.Ring})
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("%w: another program uses the queue, or a process that had a seat has not closed its descriptors", err)
	}
	return p, err
}

// exit undoes enter. The last user's closes the port.
func (h *Helper) exit(c *net.UnixConn, s *shared, netdev string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(s.users, c); len(s.users) > 0 {
		return
	}
	delete(h.ports, netdev)
	if s.port != nil {
		s.port.Close()
		h.Log.Info("detached", "interface", netdev)
	}
	close(s.closed)
}

// credentials of a process.
type credentials struct {
	pid    int32
	uid    uint32
	groups []uint32
}

// peer returns the credentials of the connected process.
func peer(c *net.UnixConn) (creds credentials, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return creds, err
	}
	e := raw.Control(func(fd uintptr) {
		var u *unix.Ucred
		if u, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		creds = credentials{pid: u.Pid, uid: u.Uid, groups: []uint32{u.Gid}}
		groups := make([]uint32, 65536) // NGROUPS_MAX
		size := uint32(4 * len(groups))
		if err = getsockopt(int(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS, unsafe.Pointer(&groups[0]), &size); err == nil {
			creds.groups = append(creds.groups, groups[:size/4]...)
		}
	})
	return creds, errors.Join(e, err)
}

// here refuses sockets of network namespaces other than the helper's: in a namespace of their
// own, users can have any address and port.
func here(udp int) error {
	var own, its unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	ns, err := unix.IoctlRetInt(udp, unix.SIOCGSKNS)
	if err == nil {
		err = unix.Fstat(ns, &its)
		unix.Close(ns)
	}
	if err != nil || own.Dev != its.Dev || own.Ino != its.Ino {
		return fmt.Errorf("%w: the UDP socket is in a network namespace other than the helper's", ErrForbidden)
	}
	return nil
}
