package roce

import (
	"net/netip"
	"slices"
	"sync"
)

// peers finds the queue pairs that are connected to a queue pair of another host. Lookups may be
// caused by packets of any sender.
type peers struct {
	mu  sync.Mutex
	qps map[peer][]*qp // slices are replaced, never changed
}

// peer is a queue pair of another host.
type peer struct {
	addr netip.AddrPort
	num  uint32
}

// of returns the queue pairs that are connected to a peer: normally one.
func (p *peers) of(remote peer) []*qp {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.qps[remote]
}

func (p *peers) add(remote peer, q *qp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.qps == nil {
		p.qps = map[peer][]*qp{}
	}
	p.qps[remote] = append(slices.Clone(p.qps[remote]), q)
}

func (p *peers) remove(remote peer, q *qp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(p.qps[remote]), func(o *qp) bool { return o == q })
	if len(left) == 0 {
		delete(p.qps, remote)
		return
	}
	p.qps[remote] = left
}
