package channel

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/shared"
	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// hostCarrier reaches the members of this host.
type hostCarrier struct {
	node  *Node
	me    int
	peers []*peer // by their number on the host

	others []*peer // all but this one
	fenced bool    // one of them lacks membarrier: see peer.fenced
	fence  uint32
}

// Wake wakes the sleeping members of this host.
func (h *hostCarrier) Wake() {
	if h.fenced {
		atomic.AddUint32(&h.fence, 1)
	}
	for _, p := range h.others {
		p.bell.ring()
	}
}

// Mute makes this member look by itself.
func (h *hostCarrier) Mute() { h.node.mute.Add(1) }

// Export returns the key and address of b if it is Alloc memory.
func (h *hostCarrier) Export(b []byte) (key uint32, addr uint64, ok bool) {
	m, _ := h.node.allocated(b)
	if m == nil || m.mr == nil {
		return 0, 0, false
	}
	r := regionOf(m.mr)
	return r.rkey, r.addr + uint64(addressOf(b)-m.start()), true
}

// View maps memory of a member, whose arena may be on its way.
func (h *hostCarrier) View(i int, key uint32, addr uint64, n int) ([]byte, error) {
	p := h.peers[i]
	b, err := p.link.qp.Map(key, addr, n)
	switch {
	case err == nil:
		return b, nil
	case !errors.Is(err, verbs.ErrState):
	case p.state.Load() >= peerFailed:
		return nil, &Error{Op: anyCollective, Rank: p.rank, Stream: -1, Err: *p.err.Load()}
	default: // or the queue pair has ended: the control connection is about to say why
		h.Mute()
		wait.LetRun() // what brings it may need this CPU
		return nil, shared.ErrLater
	}
	return nil, fmt.Errorf("memory of rank %d: %w", p.rank, err)
}

// Gone says whether a member can no longer reach our memory.
func (h *hostCarrier) Gone(i int) bool { return h.peers[i].gone() }

// betweenCarrier declares messages between some members of a group.
type betweenCarrier struct {
	collective *Collective
	members    []int
}

func (b *betweenCarrier) declare(kind handleKind, to int, parts [][]byte) (coll.Message, error) {
	var l Layout
	for _, p := range parts {
		if err := l.shape.Add(layout.Part{Base: p, Block: len(p), Count: 1}); err != nil {
			return nil, err
		}
	}
	g := b.collective.group
	h, err := g.node.declareOn(kind, l, g.ranks[b.members[to]], declaration{stream: int(g.stream)})
	if err != nil {
		return nil, err
	}
	b.collective.handles = append(b.collective.handles, h)
	return between{h}, nil
}

// between is a message of a collective. Its user tests the collective, or waits for it.
type between struct{ *Handle }

// Test is [Handle.Test], but does not give way: its caller holds locks.
func (m between) Test() (bool, error) { return m.testOnce() }

// DeclareSend declares a message to a member.
func (b *betweenCarrier) DeclareSend(to int, parts ...[]byte) (coll.Message, error) {
	return b.declare(kindSend, to, parts)
}

// DeclareReceive declares a message from a member.
func (b *betweenCarrier) DeclareReceive(from int, parts ...[]byte) (coll.Message, error) {
	return b.declare(kindReceive, from, parts)
}

var _ shared.Carrier = (*hostCarrier)(nil)
