package roce

import (
	"net/netip"
	"slices"
	"sync"
)

// peers finds the queue pairs that are connected with one of another host. Anybody may send what
// is looked up there.
type peers struct {
	mu  sync.Mutex
	qps map[peer][]*qp // never changed but replaced
}

// peer is a queue pair of another host.
type peer struct {
	addr netip.AddrPort
	num  uint32
}

// of returns the queue pairs that are connected with a peer: one, unless somebody has
// connected several.
func (p *peers) of(who peer) []*qp {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.qps[who]
}

func (p *peers) add(who peer, q *qp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.qps == nil {
		p.qps = map[peer][]*qp{}
	}
	p.qps[who] = append(slices.Clone(p.qps[who]), q)
}

func (p *peers) remove(who peer, q *qp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(p.qps[who]), func(o *qp) bool { return o == q })
	if len(left) == 0 {
		delete(p.qps, who)
		return
	}
	p.qps[who] = left
}
