package xdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Paths holds the paths from an interface to its peers, from the routes and the neighbour
// table of the network stack: packets that bypass the stack need them. A goroutine looks them
// up, and again from time to time. Packets to an unknown neighbour go through the stack, which
// thereby resolves it.
type Paths struct {
	h     *netlink.Handle
	index int

	mu    sync.Mutex
	paths map[netip.Addr]*Path
	more  chan struct{}
	done  sync.WaitGroup
	end   chan struct{}
}

// Path is the path to an address.
type Path struct {
	addr     netip.Addr
	local    bool // this host itself
	ethernet atomic.Pointer[[12]byte]
	confirm  atomic.Bool
	used     atomic.Bool
	dead     atomic.Bool
	idle     int // consecutive looks that found it unused
}

// Ethernet returns the two addresses at the start of an Ethernet frame to the peer. It returns
// nil if the next packet must go through the network stack: the path uses another interface or
// is unknown, or the stack should check that the neighbour is still there.
func (p *Path) Ethernet() *[12]byte {
	e := p.ethernet.Load()
	if !p.used.Load() {
		p.used.Store(true)
	}
	if e == nil || p.confirm.Load() && p.confirm.Swap(false) {
		return nil
	}
	return e
}

// Local reports whether the address is this host's.
func (p *Path) Local() bool { return p.local }

// Dead reports whether the path is no longer updated; get a new one from To.
func (p *Path) Dead() bool { return p.dead.Load() }

// Times of looking.
const (
	lookSoon  = 2 * time.Millisecond // for new paths; doubles each time
	lookAgain = 2 * time.Second      // for known paths
	idleLooks = 30                   // looks without use after which a path is dropped
	maxPaths  = 4096
)

// NewPaths returns the paths of an interface, in the network namespace of the calling thread.
func NewPaths(index int) (*Paths, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	p := &Paths{h: h, index: index, paths: map[netip.Addr]*Path{}, more: make(chan struct{}, 1), end: make(chan struct{})}
	if _, err := p.own(); err != nil {
		h.Close()
		return nil, err
	}
	p.done.Go(p.run)
	return p, nil
}

// own returns the address of the interface, which may change.
func (p *Paths) own() (net.HardwareAddr, error) {
	l, err := p.h.LinkByIndex(p.index)
	if err == nil && len(l.Attrs().HardwareAddr) != 6 {
		err = errors.New("not an Ethernet interface")
	}
	if err != nil {
		return nil, fmt.Errorf("interface %d: %w", p.index, err)
	}
	return l.Attrs().HardwareAddr, nil
}

// To returns the path to an address, nil if there are too many.
func (p *Paths) To(a netip.Addr) *Path {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.paths[a]; q != nil {
		return q
	}
	if len(p.paths) == maxPaths {
		return nil
	}
	q := &Path{addr: a}
	q.used.Store(true)
	if r, err := p.route(a); err == nil {
		q.local = r.Type == unix.RTN_LOCAL
	}
	p.paths[a] = q
	select {
	case p.more <- struct{}{}:
	default:
	}
	return q
}

func (p *Paths) route(a netip.Addr) (*netlink.Route, error) {
	rs, err := p.h.RouteGet(a.AsSlice())
	if err != nil {
		return nil, err
	}
	if len(rs) == 0 {
		return nil, unix.ENETUNREACH
	}
	return &rs[0], nil
}

func (p *Paths) run() {
	wait := lookSoon
	t := time.NewTimer(lookAgain)
	defer t.Stop()
	for {
		select {
		case <-p.end:
			return
		case <-p.more:
			wait = lookSoon
		case <-t.C:
		}
		if p.look() {
			wait = lookAgain
		} else {
			wait = min(2*wait, lookAgain)
		}
		t.Reset(wait)
	}
}

// look looks all paths up, and says whether each is either known or the stack's.
func (p *Paths) look() bool {
	p.mu.Lock()
	list := make([]*Path, 0, len(p.paths))
	for a, q := range p.paths {
		if q.used.Swap(false) {
			q.idle = 0
		} else if q.idle++; q.idle > idleLooks {
			q.dead.Store(true)
			delete(p.paths, a)
			continue
		}
		list = append(list, q)
	}
	p.mu.Unlock()
	if len(list) == 0 {
		return true
	}
	own, err := p.own()
	if err != nil {
		return false
	}
	table, err := p.h.NeighList(p.index, netlink.FAMILY_ALL)
	if err != nil {
		return false
	}
	near := make(map[netip.Addr]*netlink.Neigh, len(table))
	for i := range table {
		if a, ok := netip.AddrFromSlice(table[i].IP); ok {
			near[a.Unmap()] = &table[i]
		}
	}
	all := true
	for _, q := range list {
		r, err := p.route(q.addr)
		if err != nil || r.LinkIndex != p.index || r.Type != unix.RTN_UNICAST {
			q.ethernet.Store(nil)
			continue
		}
		hop := q.addr
		if a, ok := netip.AddrFromSlice(r.Gw); ok {
			hop = a.Unmap()
		}
		n := near[hop]
		const valid = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT | netlink.NUD_NOARP
		if n == nil || n.State&valid == 0 || len(n.HardwareAddr) != 6 {
			q.ethernet.Store(nil)
			all = false
			continue
		}
		e := new([12]byte)
		copy(e[:], n.HardwareAddr)
		copy(e[6:], own)
		if old := q.ethernet.Load(); old == nil || *old != *e {
			q.ethernet.Store(e)
		}
		q.confirm.Store(n.State == netlink.NUD_STALE)
	}
	return all
}

// Close ends the lookups.
func (p *Paths) Close() {
	close(p.end)
	p.done.Wait()
	p.h.Close()
}
