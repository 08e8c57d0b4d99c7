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
)

// Helper opens ports for processes that cannot. It gives a seat to who is of the group,
// for an address and port that a socket of theirs has, if the address is one of those
// that it was given; else any user of the host could have what is sent to another. The
// processes that share a port can harm each other, so they must be of one user. The
// program is attached when the first of them comes, and detached when the last has gone.
//
// A seat is an AF_XDP socket: who has one can send any Ethernet frame, as with
// CAP_NET_RAW. Nor can it be taken from a process that keeps the descriptors when it lets go of
// its connection: nothing is steered to it any more, but it can send, and nobody else has the
// queue, until it has closed them.
type Helper struct {
	Group      int          // its members may ask, and root
	Addresses  []netip.Addr // that they may have packets for
	Interfaces []string
	Queue      int
	Native     bool
	Seats      int // at each interface; a power of two
	Ring       int // packets of each of a seat's rings; a power of two
	Log        *slog.Logger

	mu    sync.Mutex
	ports map[string]*shared
}

// shared is a port with who uses it. Opening it may take seconds: those who come in the
// meantime wait for it, and not with the lock.
type shared struct {
	uid    uint32
	users  int           // those who have a seat, or are about to
	opened chan struct{} // closed when the rest is set
	port   *Port
	err    error
}

// again is after how long a connection is waited for anew when there was no room for one.
const again = 100 * time.Millisecond

// strangers bounds the connections beyond those that have seats.
const strangers = 64

// Serve answers who connects until ctx ends, and then detaches everything. It closes l.
// Processes that have seats go on by way of the network stack.
func (h *Helper) Serve(ctx context.Context, l *net.UnixListener) error {
	h.ports = map[string]*shared{}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var all sync.WaitGroup
	defer all.Wait()
	room := make(chan struct{}, len(h.Interfaces)*h.Seats+strangers)
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
		if err != nil { // no descriptors, or no memory: it will pass
			h.Log.Warn("accept", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
			continue
		}
		select {
		case room <- struct{}{}:
		default:
			c.Close()
			continue
		}
		all.Go(func() {
			defer func() { <-room }()
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			if err := h.serve(c); err != nil {
				h.Log.Warn("refused", "error", err)
			}
		})
	}
}

// serve answers a connection, and waits for its end.
func (h *Helper) serve(c *net.UnixConn) error {
	who, err := peer(c)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(patience))
	var q request
	fds, err := receive(c, &q, 1)
	if err != nil {
		return nil // who only looks whether the helper is there sends nothing
	}
	g, leave, err := h.join(who, q.Interface, fds[0])
	unix.Close(fds[0])
	if err != nil {
		send(c, reply{Error: err.Error(), Forbidden: errors.Is(err, ErrForbidden)})
		return fmt.Errorf("user %d, process %d: %w", who.uid, who.pid, err)
	}
	defer leave()
	err = send(c, reply{Shape: g.Shape, Number: g.Number}, g.Socket, g.Rings, g.Memory)
	g.Close()
	if err != nil {
		return err
	}
	h.Log.Info("seat taken", "interface", q.Interface, "seat", g.Number, "user", who.uid, "process", who.pid)
	c.SetDeadline(time.Time{})
	c.Read(make([]byte, 1)) // nothing comes but the end
	h.Log.Info("seat free", "interface", q.Interface, "seat", g.Number)
	return nil
}

// join gives a seat, and what takes it back.
func (h *Helper) join(who credentials, netdev string, udp int) (*Grant, func(), error) {
	if who.uid != 0 && !slices.Contains(who.groups, uint32(h.Group)) {
		return nil, nil, fmt.Errorf("%w: not of group %d", ErrForbidden, h.Group)
	}
	if !slices.Contains(h.Interfaces, netdev) {
		return nil, nil, fmt.Errorf("%w: interface %q", ErrForbidden, netdev)
	}
	if err := here(udp); err != nil {
		return nil, nil, err
	}
	s, err := h.enter(who, netdev)
	if err != nil {
		return nil, nil, err
	}
	g, err := s.port.Join(udp, func(a netip.AddrPort) error {
		if !slices.Contains(h.Addresses, a.Addr()) {
			return fmt.Errorf("%w: address %v", ErrForbidden, a.Addr())
		}
		return nil
	})
	if err != nil {
		h.exit(s, netdev)
		return nil, nil, err
	}
	return g, func() {
		s.port.Leave(g.Number)
		h.exit(s, netdev)
	}, nil
}

// enter makes the user one of those of the interface's port, which is opened if nobody has
// done so. What comes of it holds for all that wait.
func (h *Helper) enter(who credentials, netdev string) (*shared, error) {
	h.mu.Lock()
	s := h.ports[netdev]
	first := s == nil
	if first {
		s = &shared{uid: who.uid, opened: make(chan struct{})}
		h.ports[netdev] = s
	}
	if s.uid != who.uid {
		h.mu.Unlock()
		return nil, fmt.Errorf("%w: another user has interface %s", ErrForbidden, netdev)
	}
	s.users++
	h.mu.Unlock()
	if first {
		s.port, s.err = h.open(netdev)
		if s.err == nil {
			h.Log.Info("attached", "interface", netdev, "user", who.uid)
		}
		close(s.opened)
	}
	<-s.opened
	if s.err != nil {
		h.exit(s, netdev)
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
		return nil, fmt.Errorf("%w: another program has it, or a process that had a seat still has the descriptors", err)
	}
	return p, err
}

// exit is the opposite of enter. The last closes the port.
func (h *Helper) exit(s *shared, netdev string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	delete(h.ports, netdev)
	if s.port != nil {
		s.port.Close()
		h.Log.Info("detached", "interface", netdev)
	}
}

// credentials of a process.
type credentials struct {
	pid    int32
	uid    uint32
	groups []uint32
}

// peer returns those of who has connected.
func peer(c *net.UnixConn) (who credentials, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return who, err
	}
	e := raw.Control(func(fd uintptr) {
		var u *unix.Ucred
		if u, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		who = credentials{pid: u.Pid, uid: u.Uid, groups: []uint32{u.Gid}}
		groups := make([]uint32, 65536) // NGROUPS_MAX
		size := uint32(4 * len(groups))
		if err = getsockopt(int(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS, unsafe.Pointer(&groups[0]), &size); err == nil {
			who.groups = append(who.groups, groups[:size/4]...)
		}
	})
	return who, errors.Join(e, err)
}

// here refuses sockets of other network namespaces than the helper's: in one of their
// own, any user has any address and port.
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
		return fmt.Errorf("%w: the UDP socket is of another network namespace", ErrForbidden)
	}
	return nil
}
