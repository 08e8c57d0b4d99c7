package xdp

import (
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// local holds the ports that this process has opened itself.
var local struct {
	sync.Mutex
	ports map[place]*Port
}

// place identifies a port.
type place struct {
	netns        uint64 // inode of the network namespace
	index, queue int
}

// Sizes of a local port: a process has few contexts.
const (
	localSeats = 4
	localRing  = 512
)

// Sit takes a seat at a queue of an interface for the address of a UDP socket (see
// [Port.Join]). The process's first seat opens the port, for which see [OpenPort]; closing the
// last seat closes it. The interface is looked up in the network namespace of the calling
// thread.
func Sit(udp, index, mtu, queue int, native bool) (*Seat, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	at := place{st.Ino, index, queue}
	local.Lock()
	defer local.Unlock()
	p := local.ports[at]
	if p == nil {
		var err error
		if p, err = OpenPort(Options{Index: index, MTU: mtu, Queue: queue, Native: native, Seats: localSeats, Ring: localRing}); err != nil {
			return nil, err
		}
		if local.ports == nil {
			local.ports = map[place]*Port{}
		}
		local.ports[at] = p
	}
	end := func() {
		if p.Idle() {
			p.Close()
			delete(local.ports, at)
		}
	}
	g, err := p.Join(udp, func(netip.AddrPort) error { return nil })
	if err != nil {
		end()
		return nil, err
	}
	seat, err := NewSeat(g, func() {})
	if err != nil {
		p.Leave(g.Number)
		end()
		return nil, err
	}
	seat.leave = func() {
		local.Lock()
		defer local.Unlock()
		p.Leave(g.Number)
		end()
	}
	return seat, nil
}
