package channel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/span"
)

// A message that is used once takes a handle that its stream keeps for such messages, gives it its
// memory, and puts it back when the message is complete. Up to eagerMax bytes, and for Alloc memory that
// the peer maps, that takes no lock of the peer. Other messages are bound as declared ones are.

// A handle that waits for the next message keeps its stream, with ring and pipe, in use. So there are not many of
// them: of a program that goes from stream to stream, or from peer to peer, those that have not been used for
// longest are closed, and the streams rest.
const sparesMost = 256

// spares are the handles of one direction of a stream that are ready for messages used once.
type spares [4]atomic.Pointer[Handle]

// place is where the handle of a message in b is looked for first: the one that has had it before, perhaps.
func (l *spares) place(b []byte) uintptr { return addressOf(b) >> 12 }

func (l *spares) take(b []byte) *Handle {
	at := l.place(b)
	for i := range uintptr(len(l)) {
		p := &l[(at+i)%uintptr(len(l))]
		if h := p.Load(); h != nil && p.CompareAndSwap(h, nil) {
			return h
		}
	}
	return nil
}

// give takes a handle back; false if there is no room.
func (l *spares) give(h *Handle, b []byte) bool {
	at := l.place(b)
	for i := range uintptr(len(l)) {
		if p := &l[(at+i)%uintptr(len(l))]; p.Load() == nil && p.CompareAndSwap(nil, h) {
			return true
		}
	}
	return false
}

// remove takes the handle out; false if it is in use.
func (l *spares) remove(h *Handle) bool {
	for i := range l {
		if l[i].CompareAndSwap(h, nil) {
			return true
		}
	}
	return false
}

// Send sends the bytes of b to a rank, which may be this one, and returns when b may be reused
// (MPI_Send): for up to 4 KiB at once, as long as there is room, and otherwise at the latest when the receiver
// has the message. It is the next send of its stream, like a start of a handle of [Node.DeclareSend], and
// matches a [Node.Recv] or a declared receive of the same length. A message that repeats costs less
// declared. Any number of goroutines may call it; the order of concurrent sends on a stream is undefined.
//
// Errors: those of [Node.DeclareSend] and of [Handle.Start], [Handle.Test] and [Handle.WaitContext].
// If ctx ends first, the message goes on, and b belongs to it until it is complete, or the node is closed.
func (n *Node) Send(ctx context.Context, b []byte, rank int, opts ...DeclareOption) error {
	return n.once(ctx, kindSend, b, nil, rank, opts)
}

// Recv receives the next message of a stream from a rank into b, whose length must be that of the
// message (MPI_Recv). Otherwise it is as [Node.Send].
func (n *Node) Recv(ctx context.Context, b []byte, rank int, opts ...DeclareOption) error {
	return n.once(ctx, kindReceive, b, nil, rank, opts)
}

// Sendrecv sends out to one rank and receives in from another, or the same, at the same time
// (MPI_Sendrecv); both on the same stream number. The slices must not overlap. Otherwise it is as
// [Node.Send] and [Node.Recv], whose errors it joins.
func (n *Node) Sendrecv(ctx context.Context, out []byte, to int, in []byte, from int, opts ...DeclareOption) error {
	return n.exchangeOnce(ctx, out, nil, to, in, nil, from, opts)
}

// SendLayout is [Node.Send] of a message that is not contiguous (MPI_Send of a derived datatype). From the second
// message in a row on that has the same layout of Alloc memory, of up to 27 vectors, it moves without a copy between.
func (n *Node) SendLayout(ctx context.Context, l Layout, rank int, opts ...DeclareOption) error {
	return n.once(ctx, kindSend, nil, &l, rank, opts)
}

// RecvLayout is [Node.Recv] into memory that is not contiguous. The blocks of the layout must not overlap.
func (n *Node) RecvLayout(ctx context.Context, l Layout, rank int, opts ...DeclareOption) error {
	return n.once(ctx, kindReceive, nil, &l, rank, opts)
}

// SendrecvLayout is [Node.Sendrecv] of messages that are not contiguous.
func (n *Node) SendrecvLayout(ctx context.Context, out Layout, to int, in Layout, from int, opts ...DeclareOption) error {
	return n.exchangeOnce(ctx, nil, &out, to, nil, &in, from, opts)
}

func (n *Node) exchangeOnce(ctx context.Context, out []byte, lo *Layout, to int, in []byte, li *Layout, from int, opts []DeclareOption) error {
	s, err := n.startOnce(kindSend, out, lo, to, opts)
	if err != nil {
		return err
	}
	r, err := n.startOnce(kindReceive, in, li, from, opts)
	if err == nil {
		err = r.endOnce(r.await(ctx))
	}
	if e := s.endOnce(s.await(ctx)); e != nil {
		err = errors.Join(e, err)
	}
	return err
}

func (n *Node) once(ctx context.Context, kind handleKind, b []byte, l *Layout, rank int, opts []DeclareOption) error {
	h, err := n.startOnce(kind, b, l, rank, opts)
	if err != nil {
		return err
	}
	return h.endOnce(h.await(ctx))
}

// startOnce starts a message that is used once: b, or l unless that is nil. Its handle is entered until endOnce.
func (n *Node) startOnce(kind handleKind, b []byte, l *Layout, rank int, opts []DeclareOption) (*Handle, error) {
	d, err := declarationOf(opts)
	if err != nil {
		return nil, &Error{Op: kind.String(), Rank: rank, Stream: d.stream, Err: err}
	}
	h := n.spare(kind, b, rank, uint32(d.stream))
	if h == nil {
		if h, err = n.newSpare(kind, rank, uint32(d.stream)); err != nil {
			return nil, &Error{Op: kind.String(), Rank: rank, Stream: d.stream, Err: err}
		}
	}
	if !h.enter() {
		return nil, h.errorf("start", ErrClosed)
	}
	h.priority = d.priority
	if l == nil {
		err = h.lay(b)
	} else {
		err = h.layOut(*l)
	}
	if err != nil {
		err = h.errorf("start", err)
	} else {
		err = h.start()
	}
	if err != nil {
		return nil, h.endOnce(err)
	}
	return h, nil
}

// endOnce puts the handle of a message back, unless the message goes on.
func (h *Handle) endOnce(err error) error {
	n := h.node
	if h.phase.Load() != phaseIdle {
		h.exit()
		n.mu.Lock()
		n.astray = append(n.astray, h)
		n.mu.Unlock()
		return err
	}
	b := h.flat
	h.lift()
	h.exit()
	if !h.spares().give(h, b) {
		err = errors.Join(err, h.Close())
	}
	return err
}

// reap puts back the handles of messages that have become complete after their callers had left.
func (n *Node) reap() {
	n.mu.Lock()
	list := n.astray
	n.astray = nil
	n.mu.Unlock()
	for _, h := range list {
		if h.enter() {
			h.test()
			h.endOnce(nil)
		}
	}
}

func (h *Handle) spares() *spares {
	if h.kind == kindSend {
		return &h.out.spares
	}
	return &h.in.spares
}

// spare returns a handle that its stream has kept, nil if there is none.
func (n *Node) spare(kind handleKind, b []byte, rank int, stream uint32) *Handle {
	if rank < 0 || rank >= n.size {
		return nil
	}
	p := n.peers[rank].Load()
	if p == nil {
		return nil
	}
	if kind == kindSend {
		if s := p.sending(stream); s != nil {
			return s.spares.take(b)
		}
	} else if s := p.receiving(stream); s != nil {
		return s.spares.take(b)
	}
	return nil
}

// sending returns a stream of a program, nil if it has not been used.
func (p *peer) sending(number uint32) *sendStream {
	if number == 0 {
		return p.out0.Load()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sends[number]
}

// receiving returns a stream of a program, nil if it has not been used.
func (p *peer) receiving(number uint32) *receiveStream {
	if number == 0 {
		return p.in0.Load()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.receives[number]
}

// newSpare makes a handle for messages used once. It is not among those of its peer that the wire-up
// binds.
func (n *Node) newSpare(kind handleKind, rank int, stream uint32) (*Handle, error) {
	n.reap()
	if err := n.call(); err != nil {
		return nil, err
	}
	defer n.calls.Done()
	p, err := n.peer(rank)
	if err != nil {
		return nil, err
	}
	h := &Handle{node: n, kind: kind}
	p.mu.Lock()
	err = h.join(p, stream)
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.lastID++
	h.id = n.lastID
	n.handles[h], n.onces[h] = struct{}{}, struct{}{}
	many := len(n.onces) > max(sparesMost, n.oncesUsed)
	n.mu.Unlock()
	p.connect()
	if many {
		n.closeSpares()
	}
	return h, nil
}

// closeSpares closes a quarter of the handles for messages used once, or as many as are too many: the idle ones
// that have not been used for longest. If most are in use, it is not tried again before there are twice as many,
// or in the next second. One of the goroutines that find too many at the same time does so.
func (n *Node) closeSpares() {
	if !n.sparing.TryLock() {
		return
	}
	defer n.sparing.Unlock()
	type spare struct {
		h    *Handle
		used uint32
	}
	var list []spare
	n.mu.Lock()
	if len(n.onces) > max(sparesMost, n.oncesUsed) {
		for h := range n.onces {
			list = append(list, spare{h, atomic.LoadUint32(&h.began)})
		}
	}
	n.mu.Unlock()
	left := len(list)
	if left == 0 {
		return
	}
	slices.SortFunc(list, func(a, b spare) int { return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.h.id, b.h.id)) })
	for _, s := range list {
		if left <= sparesMost-sparesMost/4 {
			break
		}
		if !s.h.spares().remove(s.h) {
			continue
		}
		if err := s.h.Close(); err != nil {
			n.log.Warn("channel: free the memory of a stream", "error", err)
		}
		left--
	}
	n.mu.Lock()
	if n.oncesUsed = 0; left > sparesMost {
		n.oncesUsed = 2 * left
	}
	n.mu.Unlock()
}

// tendSpares is closeSpares and reap as time goes by.
func (n *Node) tendSpares() {
	n.reap()
	n.mu.Lock()
	n.oncesUsed = 0
	many := len(n.onces) > sparesMost
	n.mu.Unlock()
	if many {
		n.closeSpares()
	}
}

// lay gives an idle handle of the kind of newSpare its memory.
func (h *Handle) lay(b []byte) error {
	m, open := h.memoryOf(b)
	if !open {
		return fmt.Errorf("%w: the slice lies in Alloc memory that has been closed", ErrClosed)
	}
	h.reachable = m != nil && m.mr != nil && h.peer().maps()
	if len(b) > eagerMax && !h.reachable {
		return h.layLong(b, m)
	}
	h.flat, h.lent = b, m
	h.shape.Refill(b)
	if h.reachable {
		h.where = where{h.id, m.mr.RKey(), uint64(addressOf(b))}
	}
	return nil
}

// memoryOf returns the Alloc memory that b lies in, in use from now on, nil if it is other memory; false if it has
// been closed.
func (h *Handle) memoryOf(b []byte) (*Memory, bool) {
	m := h.recent // or its place may have become other memory
	if m == nil || !m.holds(span.Of(b)) || !m.use() {
		var open bool
		if m, open = h.node.allocated(b); !open || m != nil && !m.use() {
			return nil, false
		}
		h.recent = m
	}
	return m, true
}

// maps says whether the peer is connected and maps the Alloc memory of this rank.
func (p *peer) maps() bool {
	return p.state.Load() == peerUp && p.link != nil && p.link.dev.mapped
}

// layLong is lay for a message that its peer may have to be told. It takes over the use of m.
func (h *Handle) layLong(b []byte, m *Memory) error {
	h.shape, h.flat = layout.Flat(b), b
	h.memories = append(h.memories, m)
	return h.bindOnce()
}

// layOut is lay for a message that need not be contiguous.
func (h *Handle) layOut(l Layout) error {
	if b := l.shape.Flat(); l.err == nil && (b != nil || l.Len() == 0) {
		return h.lay(b)
	}
	if err := h.adoptLayout(l); err != nil {
		return err
	}
	// To tell a layout takes longer than to copy twice: it has to be used again, and not to be told then.
	before, parts := h.laid, l.shape.Parts()
	h.laid = mark(parts)
	h.fresh = h.laid != before || layoutLen(len(h.memories), len(parts))-layoutVersionEnd > saidMost
	return h.bindOnce()
}

// mark tells layouts apart without keeping them, which may take MiB. Two that have the same are told once too often.
func mark(parts []layout.Part) (m uint64) {
	for i := range parts {
		p := &parts[i]
		for _, v := range [...]int{int(addressOf(p.Base)), p.Off, p.Block, p.Count, p.Stride} {
			m = (m ^ uint64(v)) * 0x9e3779b97f4a7c15
			m ^= m >> 32
		}
	}
	return m
}

// bindOnce binds a handle that has got its memory, if the peer is connected; else the wire-up does.
func (h *Handle) bindOnce() error {
	if err := h.node.call(); err != nil {
		return err
	}
	defer h.node.calls.Done()
	p := h.peer()
	p.mu.Lock()
	defer p.mu.Unlock()
	h.version++
	h.bindErr.Store(nil)
	if p.state.Load() == peerUp {
		return h.bind(p)
	}
	p.handles[h] = struct{}{}
	return nil
}

// lift takes the memory from an idle handle.
func (h *Handle) lift() {
	h.flat = nil
	if h.memories == nil {
		h.shape.Refill(nil)
		if h.lent != nil {
			h.lent.users.Add(-1)
			h.lent = nil
		}
		return
	}
	p := h.peer()
	p.mu.Lock()
	delete(p.handles, h)
	h.bindErr.Store(nil)
	h.shape = layout.Shape{}
	h.release()
	if p.rank == h.node.rank { // which would keep the memory alive
		p.dropLayout(h.id)
		h.remote.Store(nil)
	}
	p.mu.Unlock()
}
