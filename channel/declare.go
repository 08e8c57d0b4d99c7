package channel

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// DeclareOption is an option of [Node.DeclareSend] and [Node.DeclareReceive].
type DeclareOption func(*declaration)

type declaration struct {
	stream   int
	priority int
}

// OnStream declares the handle on stream number n, from 0 to MaxStream. Messages
// of different streams never meet. Zero: stream 0.
func OnStream(n int) DeclareOption { return func(d *declaration) { d.stream = n } }

// MaxStream is the largest number of a stream.
const MaxStream = 1<<16 - 1

// WithPriority says which handles of a multiple come first: those of higher
// priority are started, and looked at, before the others. Zero: 0.
func WithPriority(p int) DeclareOption { return func(d *declaration) { d.priority = p } }

// DeclareSend declares a message to a rank, which may be this one. Declaring is
// local: it pins the memory and begins to connect, and needs nothing of the peer.
//
// Memory of [Node.Alloc] moves without a copy in between; other memory is pinned
// until Close. Errors: [ErrLayout], [ErrInvalid], [ErrClosed], or what the
// provider says of memory that it cannot have.
func (n *Node) DeclareSend(l Layout, rank int, opts ...DeclareOption) (*Handle, error) {
	return n.declare(kindSend, l, rank, opts)
}

// DeclareReceive declares a message from a rank; see [Node.DeclareSend]. Blocks
// of the layout must not overlap.
func (n *Node) DeclareReceive(l Layout, rank int, opts ...DeclareOption) (*Handle, error) {
	return n.declare(kindReceive, l, rank, opts)
}

func (n *Node) declare(kind handleKind, l Layout, rank int, opts []DeclareOption) (*Handle, error) {
	op := "declare " + kind.String()
	var d declaration
	for _, set := range opts {
		set(&d)
	}
	fail := func(err error) (*Handle, error) {
		return nil, &Error{Op: op, Rank: rank, Stream: d.stream, Err: err}
	}
	if d.stream < 0 || d.stream > MaxStream {
		return fail(fmt.Errorf("%w: stream %d, at most %d", ErrInvalid, d.stream, MaxStream))
	}
	p, err := n.peer(rank)
	if err != nil {
		return fail(err)
	}
	h := &Handle{node: n, kind: kind, priority: d.priority}
	if err := h.lay(l); err != nil {
		return fail(err)
	}
	if err := h.attach(p, uint32(d.stream)); err != nil {
		h.release()
		return fail(err)
	}
	n.mu.Lock()
	n.handles[h] = struct{}{}
	n.mu.Unlock()
	p.connect()
	return h, nil
}

// lay takes a layout: checks it, pins its memory, and finds out how peers reach
// it.
func (h *Handle) lay(l Layout) error {
	n := h.node
	if l.err != nil {
		return l.err
	}
	if h.kind == kindReceive {
		if err := l.checkDisjoint(); err != nil {
			return err
		}
	}
	bases := l.bases()
	h.memories = nil
	h.reachable = len(n.devices) > 0
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return ErrClosed
	}
	n.lastID++
	h.id = n.lastID
	for _, b := range bases {
		m := n.findMemory(b)
		if m == nil {
			h.reachable = false
			continue
		}
		m.users.Add(1)
		h.memories = append(h.memories, m)
	}
	n.mu.Unlock()
	h.pins = new(runtime.Pinner)
	for _, b := range bases {
		if len(b) > 0 {
			h.pins.Pin(unsafe.SliceData(b))
		}
	}
	h.set(l)
	if h.kind == kindSend && !h.reachable && h.shape.length > slotData && len(n.devices) > 0 {
		var err error
		if h.staging, err = n.devices[0].pd.AllocMR(h.shape.length, verbs.AccessAll); err != nil {
			h.release()
			return err
		}
	}
	return nil
}

// set makes the layout that of the handle.
func (h *Handle) set(l Layout) {
	h.layout = l
	h.shape = newShape(l.parts, l.length)
	h.flat = nil
	if len(l.parts) == 1 && l.parts[0].count == 1 {
		p := &l.parts[0]
		h.flat = p.base[p.off : p.off+p.block : p.off+p.block]
	}
}

// attach puts the handle on its stream and tells the peer its layout.
func (h *Handle) attach(p *peer, stream uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.kind == kindSend {
		s, err := p.sendLocked(stream)
		if err != nil {
			return err
		}
		h.out = s
	} else {
		h.in = p.receiveLocked(stream)
		if p.rank == h.node.rank { // the ring is made by whoever comes first
			if _, err := p.sendLocked(stream); err != nil {
				return err
			}
		}
	}
	h.publish(p)
	return nil
}

// publish makes the layout known to the peer, as far as it can use it. The caller
// holds the peer's mu.
func (h *Handle) publish(p *peer) {
	switch {
	case h.shape.length <= slotData:
	case p.rank == h.node.rank:
		h.reachable = true
		p.setLayout(&remoteLayout{handle: h.id, generation: h.generation, mapped: true, shape: h.shape})
	case h.reachable || h.staging != nil:
		p.announce(h)
	}
}

// describe is the layout as the peer is told.
func (h *Handle) describe() []byte {
	l := layoutInfo{handle: h.id, generation: h.generation}
	if h.staging != nil {
		l.regions = []region{regionOf(h.staging)}
		l.parts = []remotePart{{0, 0, h.shape.length, 1, 0}}
		return l.append(nil)
	}
	for _, m := range h.memories {
		if r := regionOf(m.mr); !slices.Contains(l.regions, r) {
			l.regions = append(l.regions, r)
		}
	}
	for i := range h.shape.parts {
		q := &h.shape.parts[i]
		at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(q.base))))
		j := slices.IndexFunc(l.regions, func(r region) bool { return at >= r.addr && at < r.addr+r.length })
		l.parts = append(l.parts, remotePart{uint32(j), int(at-l.regions[j].addr) + q.off, q.block, q.count, q.stride})
	}
	return l.append(nil)
}

func (h *Handle) peer() *peer {
	switch h.kind {
	case kindSend:
		return h.out.peer
	case kindReceive:
		return h.in.peer
	}
	return nil
}

// Rebase gives an idle handle other memory in the same layout
// (QMP_change_address): one slice for each distinct slice of the layout, in the
// order in which the layout first names them, none shorter than what the layout
// reaches.
func (h *Handle) Rebase(bases ...[]byte) error {
	if h.kind == kindMultiple {
		return h.errorf("rebase", fmt.Errorf("%w: a multiple has no layout", ErrInvalid))
	}
	if h.phase.Load() != phaseIdle {
		return h.idleError("rebase")
	}
	old := h.layout.bases()
	if len(bases) != len(old) {
		return h.errorf("rebase", fmt.Errorf("%w: %d slices for a layout over %d", ErrInvalid, len(bases), len(old)))
	}
	l := h.layout
	l.parts = slices.Clone(l.parts)
	for i := range l.parts {
		q := &l.parts[i]
		j := slices.IndexFunc(old, func(b []byte) bool { return sameBase(b, q.base) })
		if _, to := q.extent(); to > len(bases[j]) {
			return h.errorf("rebase", fmt.Errorf("%w: slice %d has %d bytes, the layout reaches to %d", ErrLayout, j, len(bases[j]), to))
		}
		q.base = bases[j]
	}
	next := &Handle{node: h.node, kind: h.kind}
	if err := next.lay(l); err != nil {
		return h.errorf("rebase", err)
	}
	p := h.peer()
	p.mu.Lock()
	h.free(p)
	h.layout, h.shape, h.flat, h.staging, h.pins, h.memories, h.reachable = next.layout, next.shape, next.flat, next.staging, next.pins, next.memories, next.reachable
	h.generation++
	h.publish(p)
	p.mu.Unlock()
	return nil
}

// free gives up the memory of the handle. The caller holds the peer's mu.
func (h *Handle) free(p *peer) {
	if h.staging != nil && p.state.Load() == peerUp && p.rank != h.node.rank {
		h.node.log.Debug("channel: freeing what the peer has mapped", "handle", h.id)
	}
	h.release()
}

// release undoes lay.
func (h *Handle) release() {
	if h.pins != nil {
		h.pins.Unpin()
	}
	for _, m := range h.memories {
		m.users.Add(-1)
	}
	h.memories = nil
	if h.staging != nil {
		h.staging.Close()
		h.staging = nil
	}
}

// Close ends an idle handle and unpins its memory. Closing again does nothing. The
// members of a multiple stay open.
func (h *Handle) Close() error {
	switch h.phase.Load() {
	case phaseClosed:
		return nil
	case phaseIdle:
	default:
		return h.idleError("close")
	}
	h.setPhase(phaseClosed)
	if h.kind == kindMultiple {
		return nil
	}
	n, p := h.node, h.peer()
	p.mu.Lock()
	delete(p.declared, h.id)
	p.dropLayout(h.id)
	if p.link != nil && p.state.Load() == peerUp && h.shape.length > slotData {
		p.tell(kindDrop, binary.BigEndian.AppendUint32(nil, h.id))
	}
	h.free(p)
	p.mu.Unlock()
	n.mu.Lock()
	delete(n.handles, h)
	n.mu.Unlock()
	return nil
}

func (h *Handle) idleError(op string) error {
	if h.phase.Load() == phaseClosed {
		return h.errorf(op, ErrClosed)
	}
	return h.errorf(op, ErrActive)
}

// withdraw gives an active handle up, because the node is closing: what nobody
// has begun to copy is taken back; a copy in progress is waited for.
func (h *Handle) withdraw() {
	var m *match
	switch {
	case h.kind == kindSend && h.phase.Load() == phaseOffered:
		m = &h.out.r.matches[h.k%ringSlots]
	case h.kind == kindReceive && h.phase.Load() == phaseWaiting && h.gated:
		m = &h.in.r.Load().matches[h.k%ringSlots]
	default:
		return
	}
	p := h.peer()
	n, _ := chunks(h.shape.length)
	for end := time.Now().Add(h.node.opt.peerTimeout); !m.judge(h.k, verdictWithdrawn) && !m.finished(h.k, n); {
		if p.state.Load() >= peerFailed || time.Now().After(end) {
			return
		}
		wait.Yield()
	}
}
