package roce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// group holds the sockets of an address that share the port of RoCEv2 (SO_REUSEPORT), as seen by
// one member. Adapters send only to that port; the upper bits of the QP's number select the
// member.
//
//	         UDP packets to port 4791
//	                     |
//	 program: bits 23 to 17 of the BTH's DestQP
//	    |           |           |           |
//	socket 0    socket 1    socket 2    socket 3     all members have all open,
//	    |           |                       |
//	member 0    member 1     (free)     member 3     and each reads its own
//
// The kernel numbers the sockets in the order of binding; when one is closed, the last one gets its
// number. If each rank had only its own socket, the end of one rank would divert packets from the
// QPs of another. So the first member creates all sockets, and any member hands them to those
// that come later: none is closed before the last member is gone.
//
// A member holds its number by listening at a name in the abstract namespace of Unix sockets. Like
// a port, the name belongs to the network namespace and is freed when the process ends.
//
// The kernel lets only sockets of the same user share the port.
type group struct {
	addr    netip.Addr
	number  int // of this member
	sockets []int
	door    *net.UnixListener // new members request the sockets here
	serving sync.WaitGroup
}

const (
	// groupBits is the number of upper bits of a QP's number that select the member.
	groupBits = 7
	// maxShare is the largest number of members.
	maxShare = 1 << groupBits
	// askPatience limits the wait for the sockets from a member, which may be stopped, and
	// lockPatience the wait for another process that is joining.
	askPatience  = 3 * time.Second
	lockPatience = 10 * time.Second
)

// steer is the BPF program that returns the member's number: DestQP begins at byte 5 of the BTH.
var steer = [...]unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 5},
	{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 8 - groupBits},
	{Code: unix.BPF_RET | unix.BPF_A},
}

// joinGroup joins the group of the address, or creates one for size members.
func joinGroup(addr netip.Addr, size int) (*group, error) {
	g := &group{addr: addr}
	unlock, err := g.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err = g.collect(); err == nil && g.sockets == nil {
		err = g.make(size)
	}
	if err == nil {
		err = g.enter()
	}
	if err != nil {
		g.drop()
		return nil, err
	}
	return g, nil
}

// name returns the socket name of a member, or of the lock.
func (g *group) name(what any) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("@sluice-roce/%d/%v/%v", os.Geteuid(), g.addr, what)}
}

// lock keeps other processes from joining and leaving.
func (g *group) lock() (unlock func(), err error) {
	for end := time.Now().Add(lockPatience); ; time.Sleep(time.Millisecond) {
		l, err := net.ListenUnix("unixpacket", g.name("lock"))
		if err == nil {
			return func() { l.Close() }, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) {
			return nil, err
		}
	}
}

// collect gets the sockets from a member, if there is one.
func (g *group) collect() error {
	var silent error
	for i := range maxShare {
		c, err := net.DialUnix("unixpacket", nil, g.name(i))
		if err != nil {
			continue // no such member
		}
		if sameUser(c) {
			g.sockets, err = take(c)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				silent = err // perhaps stopped: another member may answer
			}
		}
		c.Close()
		if g.sockets != nil {
			return nil
		}
	}
	return silent
}

// take receives the sockets.
func take(c *net.UnixConn) (fds []int, err error) {
	var n [1]byte
	oob := make([]byte, unix.CmsgSpace(4*maxShare))
	if err := c.SetDeadline(time.Now().Add(askPatience)); err != nil {
		return nil, err
	}
	_, k, _, _, err := c.ReadMsgUnix(n[:], oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:k])
	for i := range messages {
		more, _ := unix.ParseUnixRights(&messages[i])
		fds = append(fds, more...)
	}
	if err != nil || len(fds) == 0 || len(fds) != int(n[0]) {
		closeAll(fds)
		return nil, fmt.Errorf("received %d of %d sockets: %w", len(fds), n[0], errors.Join(err, unix.EMFILE))
	}
	return fds, nil
}

// sameUser says whether the process at the other end runs as this user.
func sameUser(c *net.UnixConn) bool {
	same := false
	raw, err := c.SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) {
			cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
			same = err == nil && int(cred.Uid) == os.Geteuid()
		})
	}
	return same
}

// make creates the sockets.
func (g *group) make(size int) error {
	at := netip.AddrPortFrom(g.addr, packet.Port)
	// Sockets of this user at the port that are not in such a group would share it, too.
	alone, err := newSocket(g.addr)
	if err != nil {
		return err
	}
	err = bind(alone, at)
	unix.Close(alone)
	for i := 0; i < size && err == nil; i++ {
		var fd int
		if fd, err = newSocket(g.addr); err != nil {
			break
		}
		g.sockets = append(g.sockets, fd)
		if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err == nil {
			err = bind(fd, at)
		}
		if err == nil && i == 0 {
			program := steer
			err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
		}
	}
	return err
}

// enter takes the first free number.
func (g *group) enter() (err error) {
	for g.number = range g.sockets {
		if g.door, err = net.ListenUnix("unixpacket", g.name(g.number)); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("all %d places of the group are taken: %w", len(g.sockets), err)
	}
	own := g.own()
	if at, err := boundTo(own); err != nil || at != netip.AddrPortFrom(g.addr, packet.Port) {
		return fmt.Errorf("socket %d of the group is bound to %v: %w", g.number, at, errors.Join(err, unix.EINVAL))
	}
	widen(own)
	for range 1 << 16 { // discard packets for the previous member
		if _, _, err := unix.Recvfrom(own, nil, unix.MSG_DONTWAIT); err != nil && err != unix.EINTR {
			break
		}
	}
	g.serving.Go(g.serve)
	return nil
}

// serve hands out the sockets.
func (g *group) serve() {
	for {
		c, err := g.door.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // e.g. out of descriptors
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if sameUser(c) && c.SetDeadline(time.Now().Add(askPatience)) == nil {
			c.WriteMsgUnix([]byte{byte(len(g.sockets))}, unix.UnixRights(g.sockets...), nil)
		}
		c.Close()
	}
}

// own returns the member's socket.
func (g *group) own() int { return g.sockets[g.number] }

// close leaves the group. The numbers of the other members do not change.
func (g *group) close() {
	if g == nil {
		return
	}
	// Without the lock, a new member could find no member, but the port taken.
	if unlock, err := g.lock(); err == nil {
		defer unlock()
	}
	g.drop()
}

func (g *group) drop() {
	if g.door != nil {
		g.door.Close()
		g.serving.Wait()
	}
	closeAll(g.sockets)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
