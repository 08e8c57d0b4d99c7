package channel

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/verbs"
)

// DeclareOption is an option of [Node.DeclareSend], [Node.DeclareReceive], and of [Node.Send] and the other methods
// for messages used once.
type DeclareOption struct {
	option declareOption
	value  int
}

type declareOption uint8

const (
	declareStream declareOption = 1 + iota
	declarePriority
	declareCancellable
)

type declaration struct {
	stream      int
	priority    int
	cancellable bool
}

// declarationOf applies the options.
func declarationOf(opts []DeclareOption) (d declaration, err error) {
	for _, o := range opts {
		switch o.option {
		case declareStream:
			d.stream = o.value
		case declarePriority:
			d.priority = o.value
		case declareCancellable:
			d.cancellable = true
		}
	}
	if d.stream < 0 || d.stream > MaxStream {
		err = fmt.Errorf("%w: stream %d, at most %d", ErrInvalid, d.stream, MaxStream)
	}
	return d, err
}

// OnStream declares the handle on stream n, from 0 to MaxStream. Messages on different
// streams never match. The default is stream 0.
func OnStream(n int) DeclareOption { return DeclareOption{declareStream, n} }

// MaxStream is the largest stream number.
const MaxStream = 1<<16 - 1

// WithPriority orders handles. In a multiple, receives come before sends; among each,
// handles of higher priority are started and tested first. Over shared memory that is
// all, because a message moves when its handle is tested. Over a queue pair, messages
// of more than 8 KiB ([EnvEagerTCP]) overtake messages of lower priority to the same peer
// that wait or are in flight, except for the up to 4 MiB already posted. The priority
// that counts is set on the side that moves the message: the sender for a write, the
// receiver for a read. Smaller messages go in the order of their starts. The default is
// 0.
func WithPriority(p int) DeclareOption { return DeclareOption{declarePriority, p} }

// DeclareSend declares a message to a rank, which may be this one. Declaring is local: it begins to connect,
// registers the memory if a network reaches the peer, and does not wait for the peer.
//
// [Node.Alloc] memory moves without an intermediate copy. Errors: [ErrLayout], [ErrInvalid], [ErrClosed], or
// the provider's error for memory that it cannot register.
func (n *Node) DeclareSend(l Layout, rank int, opts ...DeclareOption) (*Handle, error) {
	return n.declare(kindSend, l, rank, opts)
}

// DeclareReceive declares a message from a rank; see [Node.DeclareSend]. The blocks of
// the layout must not overlap.
func (n *Node) DeclareReceive(l Layout, rank int, opts ...DeclareOption) (*Handle, error) {
	return n.declare(kindReceive, l, rank, opts)
}

func (n *Node) declare(kind handleKind, l Layout, rank int, opts []DeclareOption) (*Handle, error) {
	d, err := declarationOf(opts)
	if err != nil {
		return nil, &Error{Op: "declare " + kind.String(), Rank: rank, Stream: d.stream, Err: err}
	}
	if d.cancellable && kind == kindSend {
		return nil, &Error{Op: "declare send", Rank: rank, Stream: d.stream, Err: fmt.Errorf("%w: a send cannot be Cancellable", ErrInvalid)}
	}
	return n.declareOn(kind, l, rank, d)
}

// declareOn declares a message on any stream.
func (n *Node) declareOn(kind handleKind, l Layout, rank int, d declaration) (*Handle, error) {
	fail := func(err error) (*Handle, error) {
		return nil, &Error{Op: "declare " + kind.String(), Rank: rank, Stream: d.stream, Err: err}
	}
	if err := n.call(); err != nil {
		return fail(err)
	}
	defer n.calls.Done()
	p, err := n.peer(rank)
	if err != nil {
		return fail(err)
	}
	h := &Handle{node: n, kind: kind, priority: d.priority, cancellable: d.cancellable}
	if err := h.adoptLayout(l); err != nil {
		return fail(err)
	}
	n.mu.Lock()
	n.lastID++
	h.id = n.lastID
	n.mu.Unlock()
	if err := h.attach(p, uint32(d.stream)); err != nil {
		p.mu.Lock()
		delete(p.handles, h)
		p.untell(h)
		h.part(p)
		h.release()
		p.mu.Unlock()
		return fail(err)
	}
	n.mu.Lock()
	n.handles[h] = struct{}{}
	n.mu.Unlock()
	p.connect()
	return h, nil
}

// adoptLayout checks a layout and adopts it.
func (h *Handle) adoptLayout(l Layout) error {
	n := h.node
	if l.err != nil {
		return l.err
	}
	if h.kind == kindReceive {
		if err := l.shape.Disjoint(); err != nil {
			return fmt.Errorf("%w: %w, in a layout to receive into", ErrLayout, err)
		}
	}
	bases, _ := l.shape.Bases()
	for i, b := range bases {
		m, open := n.allocated(b)
		if !open || m != nil && !m.use() {
			h.release()
			return fmt.Errorf("%w: slice %d lies in Alloc memory that has been closed", ErrClosed, i)
		}
		h.memories = append(h.memories, m)
	}
	h.shape = l.shape
	h.flat = l.shape.Flat()
	return nil
}

// attach puts the handle on its stream and tells the peer its layout.
func (h *Handle) attach(p *peer, stream uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := h.join(p, stream); err != nil {
		return err
	}
	p.handles[h] = struct{}{}
	if p.state.Load() == peerUp {
		return h.bind(p)
	}
	return nil
}

// join puts the handle on its stream. The caller holds the peer's mu.
func (h *Handle) join(p *peer, stream uint32) error {
	if h.kind == kindSend {
		s, err := p.sendLocked(stream)
		if err != nil {
			return err
		}
		h.out = s
		s.users++
	} else {
		h.in = p.receiveLocked(stream)
		h.in.declared = true
		h.in.users++
		if p.rank == h.node.rank { // the first side to be declared makes the ring
			if _, err := p.sendLocked(stream); err != nil {
				return err
			}
		}
	}
	return nil
}

// part undoes join. The caller holds the peer's mu.
func (h *Handle) part(p *peer) {
	switch {
	case h.out != nil:
		if h.out.users--; h.out.users == 0 {
			p.rests(h.out.number)
		}
	case h.in != nil:
		if h.in.users--; h.in.users == 0 {
			p.rests(h.in.number)
		}
	}
}

// bind prepares the layout for the way in which the peer is reached, and tells it to the peer
// if needed. The caller holds the peer's mu.
func (h *Handle) bind(p *peer) (err error) {
	n := h.node
	h.where = where{handle: h.id, version: h.version}
	switch {
	case p.rank == n.rank:
		h.reachable = true
		if !p.setLayout(&remoteLayout{where: h.where, mapped: true, shape: h.shape}) {
			return fmt.Errorf("%w: more than %d handles", ErrInvalid, maxLayouts)
		}
		return nil
	case p.queue != nil:
		if h.shape.Len() <= p.queue.cross.eager {
			return nil
		}
		switch err := h.register(p.link.dev); {
		case err != nil || h.name():
			return err
		case p.tellable(h):
		case h.kind == kindReceive:
			return fmt.Errorf("%w: the peer already holds the layouts of %d handles, the maximum", ErrInvalid, maxLayouts)
		default:
			return nil // the receiver says where to write
		}
	default:
		h.reachable = !slices.ContainsFunc(h.memories, unmapped) && (h.flat != nil || !h.fresh && h.describable() && p.tellable(h))
		switch {
		case h.shape.Len() <= inlineMax, h.kind == kindReceive && !h.reachable:
			return nil
		case h.reachable:
			h.regs = nil
			for _, m := range h.memories {
				h.regs = append(h.regs, m.mr)
			}
			if h.name() {
				return nil
			}
		default:
			if h.shape.Len() > eagerMax {
				return p.openPipe(h.out)
			}
			return nil
		}
	}
	p.tellLayout(h)
	if !h.told {
		h.told = true
		p.told++
	}
	return nil
}

// name makes the messages name their memory themselves if it is contiguous, so that the peer need not be
// told of it beforehand.
func (h *Handle) name() bool {
	switch {
	case h.staging != nil:
		h.where = where{h.id, h.staging.RKey(), h.staging.Addr()}
	case h.flat != nil:
		h.where = where{h.id, h.regs[0].RKey(), uint64(addressOf(h.flat))}
	}
	return h.where.addr != 0
}

// tellable says whether the peer accepts the layout of one more handle. The caller holds the
// peer's mu.
func (p *peer) tellable(h *Handle) bool { return h.told || p.told < maxLayouts }

// describable says whether the unpacked layout fits into one message.
func (h *Handle) describable() bool {
	return layoutLen(len(h.memories), len(h.shape.Parts())) <= maxBody
}

// register registers the memory of the layout with a network, or staging memory if its blocks
// are small or too many to describe.
func (h *Handle) register(d *device) (err error) {
	if h.shape.Blocks() > 1 && (h.shape.Len()/h.shape.Blocks() < d.crossovers().pack || !h.describable()) {
		if h.staging, err = d.pd.AllocMR(h.shape.Len(), verbs.AccessAll); err != nil {
			return err
		}
		h.source = layout.Flat(h.staging.Bytes()[:h.shape.Len()])
		h.lkeys = append(h.lkeys, h.staging.LKey())
		return nil
	}
	h.source = h.shape
	bases, of := h.shape.Bases()
	for i, b := range bases {
		var mr *verbs.MR
		if m := h.memories[i]; m != nil {
			mr, err = m.on(d)
		} else {
			var r *registration
			if r, err = d.register(b); err == nil {
				mr = r.mr
				h.own, h.dev = append(h.own, r), d
			}
		}
		if err != nil {
			return err
		}
		h.regs = append(h.regs, mr)
	}
	for _, base := range of {
		h.lkeys = append(h.lkeys, h.regs[base].LKey())
	}
	return nil
}

// describe returns the layout as sent to the peer.
func (h *Handle) describe() []byte {
	l := layoutInfo{handle: h.id, version: h.where.version}
	bases, of := h.shape.Bases()
	numbers := make([]int, len(bases)) // of the regions
	for i, mr := range h.regs {
		r := regionOf(mr)
		if numbers[i] = slices.Index(l.regions, r); numbers[i] < 0 {
			numbers[i] = len(l.regions)
			l.regions = append(l.regions, r)
		}
	}
	for i, q := range h.shape.Parts() {
		j := numbers[of[i]]
		skip := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(q.Base)))) - l.regions[j].addr
		l.parts = append(l.parts, remotePart{uint32(j), int(skip) + q.Off, q.Block, q.Count, q.Stride})
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

// Rebase moves the layout of an idle handle to other memory (QMP_change_address). It
// takes one slice for each distinct slice of the layout, in the order in which the
// layout first uses them; each must be long enough for the layout. A layout of no bytes
// takes any: its memory is never used.
func (h *Handle) Rebase(bases ...[]byte) error {
	if h.kind == kindMultiple {
		return h.errorf("rebase", fmt.Errorf("%w: a multiple has no layout", ErrInvalid))
	}
	if h.phase.Load() != phaseIdle {
		return h.idleError("rebase")
	}
	if err := h.node.call(); err != nil {
		return h.errorf("rebase", err)
	}
	defer h.node.calls.Done()
	if n := len(h.flat); len(bases) == 1 && n > 0 && n <= len(bases[0]) && len(h.shape.Parts()[0].Base) == n && h.refit(layout.Flat(bases[0][:n])) {
		return nil
	}
	if h.shape.Len() == 0 {
		return nil
	}
	if old, _ := h.shape.Bases(); len(bases) != len(old) {
		return h.errorf("rebase", fmt.Errorf("%w: %d slices for a layout over %d", ErrInvalid, len(bases), len(old)))
	}
	s, err := h.shape.Rebase(bases)
	if err != nil {
		return h.errorf("rebase", fmt.Errorf("%w: %w", ErrLayout, err))
	}
	return h.replaceLayout("rebase", Layout{shape: s})
}

// SetLayout gives an idle handle another layout of the same length. Use it in place of
// [Handle.Rebase] if the blocks lie differently. Errors: those of [Node.DeclareSend],
// [ErrActive], and [ErrLayout] for another length.
func (h *Handle) SetLayout(l Layout) error {
	const op = "set layout"
	switch {
	case h.kind == kindMultiple:
		return h.errorf(op, fmt.Errorf("%w: a multiple has no layout", ErrInvalid))
	case h.phase.Load() != phaseIdle:
		return h.idleError(op)
	case l.err == nil && l.Len() != h.shape.Len():
		return h.errorf(op, fmt.Errorf("%w: %d bytes in place of %d", ErrLayout, l.Len(), h.shape.Len()))
	}
	if err := h.node.call(); err != nil {
		return h.errorf(op, err)
	}
	defer h.node.calls.Done()
	return h.replaceLayout(op, l)
}

// refit gives an idle handle other contiguous memory if the peer need not be told of it; otherwise it does nothing
// and returns false.
func (h *Handle) refit(s layout.Shape) bool {
	p, b := h.peer(), s.Flat()
	if len(b) == 0 || len(b) != len(h.flat) || !p.maps() {
		return false
	}
	m, open := h.memoryOf(b)
	p.mu.Lock() // the wire-up may still be binding the handle
	defer p.mu.Unlock()
	reachable := open && !unmapped(m)
	if !open || h.bindErr.Load() != nil || h.reachable && !reachable && len(b) > eagerMax { // it may need a pipe
		if m != nil {
			m.users.Add(-1)
		}
		return false
	}
	if old := h.memories[0]; old != nil {
		old.users.Add(-1)
	}
	h.version++
	h.shape, h.flat, h.memories[0] = s, b, m
	h.where, h.reachable, h.regs = where{handle: h.id, version: h.version}, reachable, h.regs[:0]
	if reachable {
		h.regs = append(h.regs, m.mr)
		h.name()
	}
	return true
}

// replaceLayout replaces the layout of the handle.
func (h *Handle) replaceLayout(op string, l Layout) error {
	if l.err == nil && h.refit(l.shape) {
		return nil
	}
	next := &Handle{node: h.node, kind: h.kind}
	if err := next.adoptLayout(l); err != nil {
		return h.errorf(op, err)
	}
	p := h.peer()
	p.mu.Lock()
	defer p.mu.Unlock()
	h.release()
	h.shape, h.flat, h.memories = next.shape, next.flat, next.memories
	h.version++
	h.bindErr.Store(nil)
	if p.state.Load() == peerUp {
		if err := h.bind(p); err != nil {
			h.bindErr.Store(&err)
			return h.errorf(op, err)
		}
	}
	return nil
}

// release undoes adoptLayout.
func (h *Handle) release() {
	for _, r := range h.own {
		h.dev.deregister(r)
	}
	if h.staging != nil {
		h.staging.Close()
	}
	h.own, h.regs, h.lkeys, h.staging = nil, nil, nil, nil
	for _, m := range h.memories {
		if m != nil {
			m.users.Add(-1)
		}
	}
	h.memories = nil
}

// Close ends an idle handle, which no longer uses its memory. Closing it again does nothing. The
// members of a multiple stay open. When both ends of a stream have closed all their handles,
// what the stream has taken of shared memory is given back within some seconds.
func (h *Handle) Close() error {
	switch h.phase.Load() {
	case phaseClosed:
		return nil
	case phaseIdle:
	default:
		return h.idleError("close")
	}
	h.setPhase(phaseClosed)
	n := h.node
	if h.kind == kindMultiple {
		n.mu.Lock()
		delete(n.multiples, h)
		n.mu.Unlock()
		return nil
	}
	p := h.peer()
	if n.call() != nil {
		return nil // closing the node gives it back
	}
	defer n.calls.Done()
	p.mu.Lock()
	delete(p.handles, h)
	switch {
	case p.rank == n.rank:
		p.dropLayout(h.id)
	case p.state.Load() == peerUp:
		p.untell(h)
	}
	h.part(p)
	h.release()
	p.mu.Unlock()
	n.mu.Lock()
	delete(n.handles, h)
	delete(n.onces, h)
	many := len(n.resting) > restingMost
	n.mu.Unlock()
	if many {
		return n.endRests(false)
	}
	return nil
}

// untell tells the peer to forget the layout of a handle. The caller holds mu.
func (p *peer) untell(h *Handle) {
	if h.told {
		h.told = false
		p.told--
		p.tell(kindDrop, binary.BigEndian.AppendUint32(nil, h.id))
	}
}

func (h *Handle) idleError(op string) error {
	if h.phase.Load() == phaseClosed {
		return h.errorf(op, ErrClosed)
	}
	return h.errorf(op, errActive)
}
