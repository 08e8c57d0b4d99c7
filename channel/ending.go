package channel

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// The streams of a group end with it. Each side tells the other that it has finished
// with a stream, and frees its part when it has both told and been told.
//
// Over mapped memory, a side tells when its group is closed. The ring stays until the
// peer has told too, since the peer may not have read all of it. Messages that the peer
// could still copy by itself have been withdrawn before (see Handle.cancel).
//
// Through a queue, a side tells when it has no transfer of its own in progress and will
// begin none. A side that has been told therefore knows that the peer no longer
// accesses its memory. It cancels what can no longer complete and tells as well,
// whether its group is closed or not. So a failed group gets its memory back as soon as
// the engines of the peers have replied, whatever their programs are doing. The reply
// travels behind everything that was sent before.
//
// A stream number may be given to another group once no member of that group has any
// state for it: see Group.agree.

// closeStream ends a stream of a group at this side. Nothing is in progress on it, except for
// what a queue is to end.
func (p *peer) closeStream(number uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, in := p.sends[number], p.receives[number]
	if out == nil && in == nil {
		return nil // if the peer has state for it, the peer will tell
	}
	up := p.state.Load() == peerUp && p.rank != p.node.rank
	if p.queue != nil {
		delete(p.sends, number)
		delete(p.receives, number)
		if up {
			p.queue.closeStream(number)
		}
		return nil
	}
	left := p.detach(number)
	_, heard := p.heard[number]
	switch {
	case up && !heard:
		p.closed[number] = left
		p.node.holdStream(number)
		p.tell(kindEnd, binary.BigEndian.AppendUint32(nil, number))
		return nil
	case up:
		delete(p.heard, number)
		p.tell(kindEnd, binary.BigEndian.AppendUint32(nil, number))
	case p.link != nil && !p.gone():
		return nil // the peer may still run and access it: freed with the node
	}
	return left.free()
}

// detach removes a stream over mapped memory from all lists, and returns the memory of this
// side that the peer may access. The caller holds mu.
func (p *peer) detach(number uint32) *streamMemory {
	left := p.detachSend(number)
	p.detachReceive(number)
	return &left
}

func (p *peer) detachSend(number uint32) (left streamMemory) {
	s, n := p.sends[number], p.node
	if s == nil {
		return left
	}
	delete(p.sends, number)
	if number == 0 {
		p.out0.Store(nil)
	}
	removeFrom(&n.pipes, s)
	n.mu.Lock()
	n.starving = slices.DeleteFunc(n.starving, func(o *sendStream) bool { return o == s })
	delete(n.served, s)
	n.mu.Unlock()
	s.lock.Lock()
	defer s.lock.Unlock()
	n.piped.Add(-int64(len(s.pipe)))
	s.r, s.aside, s.pipe = nil, nil, nil
	p.past.sent.sum(&s.sent.Counts)
	left, s.memory = s.memory, streamMemory{}
	return left
}

func (p *peer) detachReceive(number uint32) {
	s := p.receives[number]
	if s == nil {
		return
	}
	delete(p.receives, number)
	if number == 0 {
		p.in0.Store(nil)
	}
	removeFrom(&p.node.receives, s)
	s.lock.Lock()
	defer s.lock.Unlock()
	s.r.Store(nil)
	s.pipe.Store(nil)
	p.past.received.sum(&s.received.Counts)
}

// closedHere says whether this side has finished with a stream and the peer has not: what the
// peer adds to it in between is useless, and may be gone already.
func (p *peer) closedHere(number uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed[number] != nil
}

// ended handles the peer's notice that it has finished with a stream over mapped memory.
func (p *peer) ended(body []byte) error {
	if len(body) != 4 {
		return fmt.Errorf("%w: %v of %d bytes", ErrProtocol, kindEnd, len(body))
	}
	number := binary.BigEndian.Uint32(body)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, twice := p.heard[number]
	if number <= MaxStream || number >= maxStreams || twice || p.queue != nil {
		return fmt.Errorf("%w: end of stream %d", ErrProtocol, number)
	}
	if left := p.closed[number]; left != nil {
		delete(p.closed, number)
		p.detach(number) // what the peer had made before it was told
		p.node.releaseStream(number)
		return left.free()
	}
	if in := p.receives[number]; p.sends[number] != nil || in != nil && in.declared {
		p.heard[number] = struct{}{}
		return nil
	}
	p.detach(number)
	if !p.tellOnce(topic{kind: kindEnd, of: uint64(number)}, body) {
		return fmt.Errorf("%w: end of stream %d, again before the answer", ErrProtocol, number)
	}
	return nil
}

// streamEnd is the progress of both sides of a queue in ending a stream.
type streamEnd struct {
	closed bool // this side no longer uses it
	held   bool // its number must not be reused
	told   bool // the other side knows that this one has nothing in progress
	heard  bool // the other side has nothing in progress
}

// endOf returns the streamEnd of a stream, made if need be. The caller holds the lock.
func (q *queue) endOf(number uint32) *streamEnd {
	e := q.ends[number]
	if e == nil {
		e = &streamEnd{}
		q.ends[number] = e
		q.untold++
	}
	return e
}

// closeStream ends a stream at this side.
func (q *queue) closeStream(number uint32) {
	q.lock.Lock()
	defer q.lock.Unlock()
	if q.failed {
		return
	}
	e := q.endOf(number)
	e.closed, e.held = true, true
	q.peer.node.holdStream(number)
	if o := q.out[number]; o != nil {
		o.ended = true
		o.pending = nil
		q.waiting = slices.DeleteFunc(q.waiting, func(w *queueOut) bool { return w == o })
		maps.DeleteFunc(o.offers, func(_ uint64, h *Handle) bool { return !h.transfer.begun })
		clear(o.opened) // layouts that arrive now open nothing
	}
	q.endStream(number, e)
}

// endStream tells the other side if nothing is in progress, and forgets the stream when both
// have told. The caller holds the lock.
func (q *queue) endStream(number uint32, e *streamEnd) {
	if !e.told && !q.moves(number) {
		q.tell(header{kind: queueEnd, stream: number})
		e.told = true // nothing else is sent after it
		q.untold--
	}
	if !e.told || !e.heard || !e.closed {
		return
	}
	if o := q.out[number]; o != nil {
		q.past.sent.sum(&o.sent.Counts)
	}
	if i := q.in[number]; i != nil {
		q.past.received.sum(&i.received.Counts)
		for _, h := range i.started {
			delete(q.gated, h.id)
		}
	}
	delete(q.out, number)
	delete(q.in, number)
	delete(q.ends, number)
	if e.held {
		q.peer.node.releaseStream(number)
	}
}

// endStreams retries the streams whose end could not be told yet. The caller holds the lock.
func (q *queue) endStreams() {
	for number, e := range q.ends {
		if !e.told {
			q.endStream(number, e)
		}
	}
}

// moves says whether this side has a transfer in progress on a stream.
func (q *queue) moves(number uint32) bool {
	of := func(h *Handle) bool {
		return h.kind == kindSend && h.out.number == number || h.kind == kindReceive && h.in.number == number
	}
	step := func(s step) bool { return of(s.h) }
	if i := q.in[number]; i != nil && i.unstaged > 0 {
		return true
	}
	return slices.ContainsFunc(q.writes.moving, of) || slices.ContainsFunc(q.reads.moving, of) || slices.ContainsFunc(q.landed, of) ||
		slices.ContainsFunc(q.writes.posted, step) || slices.ContainsFunc(q.reads.posted, step)
}

// arriveEnd handles the notice that the other side has finished with a stream.
func (q *queue) arriveEnd(number uint32) error {
	if number <= MaxStream {
		return fmt.Errorf("%w: end of stream %d", ErrProtocol, number)
	}
	if q.telling >= maxStreams-MaxStream { // more than there are: the other side takes no answers
		return fmt.Errorf("%w: end of stream %d, again before the answer", ErrProtocol, number)
	}
	e := q.endOf(number)
	e.heard = true
	o, i := q.out[number], q.in[number]
	if (o == nil || !o.declared) && (i == nil || !i.declared) {
		e.closed = true
	}
	if !e.told {
		q.cancelStream(o, i)
	}
	q.endStream(number, e)
	return nil
}

// cancelStream cancels what the other side will no longer take part in.
func (q *queue) cancelStream(o *queueOut, i *queueIn) {
	left := func(h *Handle, op string, number uint32) error { return q.peer.opErrorOf(op, number, h.k, ErrPeerLeft) }
	if o != nil {
		o.ended = true
		for _, h := range o.pending {
			q.finish(h, phaseFailed, left(h, "send", o.number))
		}
		o.pending = nil
		q.waiting = slices.DeleteFunc(q.waiting, func(w *queueOut) bool { return w == o })
		for k, h := range o.offers {
			if !h.transfer.begun {
				delete(o.offers, k)
				q.finish(h, phaseFailed, left(h, "send", o.number))
			}
		}
		clear(o.opened)
	}
	if i != nil {
		i.ended = true
		for _, h := range i.started {
			if !h.transfer.begun && !h.copying {
				q.forget(i, h)
				q.finish(h, phaseReceived, left(h, "receive", i.number))
			}
		}
		clear(i.ready)
	}
}

// streamOver makes progress on a stream closed here, and says whether the other side has
// stopped accessing its memory.
func (q *queue) streamOver(number uint32) bool {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.poll()
	return q.failed || q.ends[number] == nil
}

// cancel cancels an active handle of a failed group. Over mapped memory its message is
// withdrawn and ends here; through a queue it ends with its stream: see reset.
func (h *Handle) cancel(ctx context.Context) error {
	if _, err := h.withdraw(ctx); err != nil {
		return err
	}
	return h.awaitReset(ctx, func() bool { return h.queued() == nil })
}

// awaitReset ends a handle for which only this process can still be copying, as soon as that is
// done, provided is returns true then.
func (h *Handle) awaitReset(ctx context.Context, is func() bool) error {
	over := wait.Until(ctx, func() bool {
		defer h.lockStream()()
		return !is() || h.reset()
	})
	if !over {
		return h.errorf("close", fmt.Errorf("%w: its message is still being copied", ErrBusy))
	}
	return nil
}

// queued returns the queue that moves the messages of the handle; nil without one.
func (h *Handle) queued() *queue {
	if h.kind == kindSend {
		return h.out.q.Load()
	}
	return h.in.q.Load()
}

// reset makes an active handle idle; false if its message is being copied. The caller holds the
// lock of the stream.
func (h *Handle) reset() bool {
	phase, q := h.phase.Load(), h.queued()
	switch {
	case phase == phaseIdle || phase == phaseClosed:
		return true
	case h.copying || h.kind == kindSend && h.out.busy == h:
		return false
	case q != nil && h.kind == kindReceive && phase == phaseWaiting:
		delete(q.gated, h.id)
	case q != nil:
	case phase == phasePending:
		h.out.drop(h)
	case phase == phaseOffered:
		h.out.forget(h)
	case phase == phaseWaiting:
		h.in.finish(h, nil)
	}
	h.err = nil
	h.setPhase(phaseIdle)
	return true
}

// removeFrom removes an entry from a list that is read without a lock.
func removeFrom[S comparable](list *atomic.Pointer[[]S], s S) {
	for {
		old := list.Load()
		i := slices.Index(*old, s)
		if i < 0 {
			return
		}
		l := slices.Delete(slices.Clone(*old), i, i+1)
		if list.CompareAndSwap(old, &l) {
			return
		}
	}
}

// holdStream and releaseStream count the uses that keep a stream number from being given to
// another group at this node.
func (n *Node) holdStream(number uint32) {
	n.mu.Lock()
	n.streams[number]++
	n.mu.Unlock()
}

func (n *Node) releaseStream(number uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.streams[number]--; n.streams[number] == 0 {
		delete(n.streams, number)
	}
}

// takeStream holds a number that is not in use here; false if it is.
func (n *Node) takeStream(number uint32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.streams[number] > 0 {
		return false
	}
	n.streams[number] = 1
	return true
}

// freeStream returns the lowest number, from least on, that is not in use here.
func (n *Node) freeStream(least uint32) uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.streams[least] > 0 {
		least++
	}
	return least
}

// closeStreams ends the streams of the group with all members.
func (g *Group) closeStreams() (errs []error) {
	for _, p := range g.peersMet() {
		errs = append(errs, p.closeStream(g.stream))
	}
	return errs
}

// awaitStreams waits until no peer is copying for handles of a queue any more.
func (g *Group) awaitStreams(ctx context.Context, handles []*Handle) error {
	queues := map[*queue]bool{}
	for _, h := range handles {
		if q := h.queued(); q != nil {
			queues[q] = true
		}
	}
	for q := range maps.Keys(queues) {
		if !wait.Until(ctx, func() bool { return q.streamOver(g.stream) }) {
			return groupError("close group", fmt.Errorf("%w: rank %d has not confirmed within %v that it has released the messages of the group", ErrBusy, q.peer.rank, g.node.opt.leaveTimeout))
		}
	}
	return nil
}

// peersMet returns the members with which this one has communicated.
func (g *Group) peersMet() (list []*peer) {
	n := g.node
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, rank := range g.ranks {
		if p := n.peers[rank].Load(); p != nil {
			list = append(list, p)
		}
	}
	return list
}
