package channel

import (
	"fmt"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/parts"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// receiveStream is this end of a stream that comes from a peer.
type receiveStream struct {
	peer     *peer
	number   uint32
	declared bool // handles here have used it; under the peer's mu
	q        atomic.Pointer[queue]
	r        atomic.Pointer[ring] // nil until the peer has said where it is

	pipe atomic.Pointer[[]byte] // nil until the peer has said where it is

	lock     wait.Lock
	emptied  uint64 // bytes of the pipe since the beginning
	received counts
	spares   spares
	next     uint64             // k of the last start
	gates    [ringSlots]*Handle // whose gate it is: an active receive
	// The active receives, in the order of their starts. A goroutine that waits for one
	// also makes progress on the others, because the sender may be waiting for them.
	first, last *Handle
	large       int  // of the active: longer than eagerMax
	releases    uint // how often the lock has been released during a copy
	trail       parts.Trail
	heard       uint64 // receives that have ended; atomic
	users       int    // handles; under the peer's mu
}

// start begins a receive.
func (s *receiveStream) start(h *Handle) error {
	if q := s.q.Load(); q != nil {
		return q.startReceive(h)
	}
	s.lock.Lock()
	if q := s.q.Load(); q != nil {
		s.lock.Unlock()
		return q.startReceive(h)
	}
	if s.peer.state.Load() >= peerFailed {
		// Only a message that has already arrived can be received.
		r, k := s.r.Load(), s.next+1
		if r == nil || atomic.LoadUint64(&r.slots[k%ringSlots].word)>>16 != k {
			s.lock.Unlock()
			return s.peer.opError("receive", s.number, 0)
		}
	}
	s.next++
	h.begin(s.next)
	h.next, h.prev = nil, s.last
	if s.last != nil {
		s.last.next = h
	} else {
		s.first = h
	}
	s.last = h
	h.gated, h.awaited, h.moved = false, false, 0
	wait.StoreRelaxed32(&h.tried, 0)
	h.setPhase(phaseWaiting)
	if h.shape.Len() > eagerMax {
		s.large++
	}
	if r := s.r.Load(); r != nil && h.shape.Len() > gateMin {
		s.publishGate(h, r)
	}
	s.lock.Unlock()
	return nil
}

// unlink removes a receive from the active ones. The caller holds the lock.
func (s *receiveStream) unlink(h *Handle) {
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		s.first = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	} else {
		s.last = h.prev
	}
	if h.shape.Len() > eagerMax {
		s.large--
	}
}

// finish ends a receive. The caller holds the lock.
func (s *receiveStream) finish(h *Handle, err error) {
	if s.unlink(h); h.prev == nil && s.first != nil {
		s.first.rouse() // packed messages come in their order
	}
	if h.gated {
		s.gates[h.k%ringSlots] = nil
	}
	wait.StoreRelaxed64(&s.heard, s.heard+1)
	h.err = err
	h.end(phaseReceived)
}

// publishGate announces a waiting receive if the sender can use that, and takes the message if it has
// already arrived. The caller holds the lock.
func (s *receiveStream) publishGate(h *Handle, r *ring) {
	i := h.k % ringSlots
	s.openGate(h, r)
	if w := atomic.LoadUint64(&r.slots[i].word); w>>16 == h.k {
		if s.take(h, r, w, false); h.gated && h.phase.Load() == phaseWaiting {
			s.peer.bell.ring() // a sender that sleeps may be the one that can copy
		}
	}
}

func (s *receiveStream) openGate(h *Handle, r *ring) {
	wait.StoreRelease32(&h.tried, 1)
	if i := h.k % ringSlots; h.reachable && !h.cancellable && s.gates[i] == nil {
		h.gated = true
		s.gates[i] = h
		r.gates[i].open(h.k, h.where, h.shape.Len())
	}
}

// test makes progress on a receive and says whether it is complete.
func (s *receiveStream) test(h *Handle) (bool, error) {
	if q := s.q.Load(); q != nil {
		q.further(h)
	} else {
		r := s.r.Load()
		if r != nil {
			if w := atomic.LoadUint64(&r.slots[h.k%ringSlots].word); w>>16 != h.k && (atomic.LoadUint32(&h.tried) != 0 || h.shape.Len() <= gateMin) &&
				s.peer.state.Load() < peerFailed {
				h.awaited = true
				return false, nil
			}
			if h.awaited {
				s.fetch(h, r)
			}
		} else if s.peer.state.Load() < peerFailed {
			return false, nil
		}
		s.further(h)
	}
	if h.phase.Load() == phaseReceived {
		return true, h.err
	}
	return false, nil
}

// fetch begins to fetch a message that has just come, before the lock is taken: where its lines are known without
// the slot, the CPU does so while the slot is still on its way.
func (s *receiveStream) fetch(h *Handle, r *ring) {
	switch n := h.shape.Len(); {
	case n <= slotData || n > eagerMax || n > gateMin && h.reachable:
	case n <= inlineMax:
		wait.Prefetches(&r.more[h.k%ringSlots][0], n-slotData)
	default:
		s.trail.Fetch(r.data[:], uint32(n))
	}
}

// further makes progress on a receive, for any goroutine.
func (s *receiveStream) further(h *Handle) {
	s.lock.Lock()
	q := s.q.Load()
	if q == nil && h.phase.Load() == phaseWaiting {
		s.advance(h)
	}
	s.lock.Unlock()
	if q != nil {
		q.further(h)
	}
}

// ready says whether the next test may find progress.
func (s *receiveStream) ready(h *Handle) bool {
	switch {
	case h.phase.Load() != phaseWaiting || s.peer.state.Load() >= peerFailed:
		return true
	case s.q.Load() != nil || s.r.Load() == nil: // what brings it wakes
		return false
	case !s.lock.TryLock():
		return true
	}
	defer s.lock.Unlock()
	r := s.r.Load()
	if r == nil { // the handle has been closed in between, and the stream left
		return true
	}
	return atomic.LoadUint64(&r.slots[h.k%ringSlots].word)>>16 == h.k || atomic.LoadUint32(&h.tried) == 0 && h.shape.Len() > gateMin
}

// drive makes progress on all active receives: a peer may be waiting for one of them while we
// wait for something else.
func (s *receiveStream) drive() {
	r := s.r.Load()
	if r == nil {
		return
	}
	s.lock.Lock()
	if s.r.Load() == nil { // closed in between
		s.lock.Unlock()
		return
	}
	all := s.large > 0 || atomic.LoadUint32(&r.starving) != 0
	releases := s.releases
	end := uint64(0) // no message from here on has a slot
	if s.first != nil {
		end = s.first.k + ringSlots
	}
	for h := s.first; h != nil && h.k < end && s.releases == releases; {
		next := h.next
		// A sender may also be waiting to be told that its message is too large.
		if w := atomic.LoadUint64(&r.slots[h.k%ringSlots].word); all || w>>16 == h.k && w>>8&0xff >= slotRendezvous {
			s.advance(h)
		}
		h = next
	}
	s.lock.Unlock()
}

// advance makes as much progress on a receive as possible. The caller holds the lock.
func (s *receiveStream) advance(h *Handle) {
	failed := s.peer.state.Load() >= peerFailed // read first: what was sent before the end counts
	r := s.r.Load()
	if r != nil {
		// The gate first: if the sender's layout is not known yet because its memory has not
		// arrived, the sender may copy.
		if atomic.LoadUint32(&h.tried) == 0 && h.shape.Len() > gateMin {
			s.publishGate(h, r)
			return
		}
		if w := atomic.LoadUint64(&r.slots[h.k%ringSlots].word); w>>16 == h.k {
			s.take(h, r, w, failed)
			return
		}
	}
	if failed && !h.copying && s.peerDone(h, r) {
		s.finish(h, s.peer.opError("receive", s.number, h.k))
	}
}

// peerDone says whether the peer, which has failed, will no longer write into the memory of a
// receive: it is gone, or the gate was closed before it began, or it has finished. The end of
// the connection does not imply that: the peer may still run.
func (s *receiveStream) peerDone(h *Handle, r *ring) bool {
	if r == nil || !h.gated || s.peer.gone() {
		return true
	}
	m := &r.matches[h.k%ringSlots]
	n, _ := chunks(h.shape.Len())
	return m.judge(h.k, verdictWithdrawn) || m.finished(h.k, n)
}

// take receives the message in the slot of k, or continues to. The caller holds the lock, which
// take releases while it copies a large message. failed says that the peer had failed before w
// was read.
func (s *receiveStream) take(h *Handle, r *ring, w uint64, failed bool) {
	slot := &r.slots[h.k%ringSlots]
	n := int(w & 0xff)
	switch w >> 8 & 0xff {
	case slotInline:
		switch {
		case n != h.shape.Len() || n > inlineMax:
			s.refuse(h, r, n)
			return
		case n > slotData:
			b := h.flat
			var packed [inlineMax]byte
			if b == nil {
				b = packed[:n]
			}
			copy(b[slotData:], r.more[h.k%ringSlots][:])
			copy(b, slot.data[:])
			if h.flat == nil {
				h.shape.Scatter(b, 0)
			}
		case h.flat == nil:
			h.shape.Scatter(slot.data[:n], 0)
		case n == 8:
			*(*[8]byte)(h.flat) = [8]byte(slot.data[:])
		default:
			copy(h.flat, slot.data[:n])
		}
	case slotEager:
		off, size := slot.eager()
		if int(size) != h.shape.Len() {
			s.refuse(h, r, int(size))
			return
		}
		if off > ringData || size > ringData-off {
			s.finish(h, h.broken("eager message of %d bytes at %#x", size, off))
			return
		}
		s.trail.Follow(off, size)
		if h.flat != nil {
			layout.Copy(h.flat, r.data[off:off+size])
		} else {
			h.shape.Scatter(r.data[off:off+size], 0)
		}
	case slotMoved:
		if v := slot.rendezvous(); !h.gated || v.length != uint64(h.shape.Len()) {
			s.finish(h, h.broken("%d bytes moved, where %d wait at gate: %v", v.length, h.shape.Len(), h.gated))
			return
		}
		s.acknowledge(h.k, r, 0)
		s.received.add(h)
		s.finish(h, nil)
		return
	case slotRendezvous, slotDirect:
		s.takeRendezvous(h, r, slot, w>>8&0xff == slotDirect)
		return
	case slotPacked:
		s.takePacked(h, r, slot, n == 1, failed)
		return
	default:
		s.finish(h, h.broken("slot %#x", w))
		return
	}
	s.acknowledge(h.k, r, 0)
	s.received.add(h)
	s.received.Eager++
	s.finish(h, nil)
}

// acknowledge frees a slot; fault is 1 if its length was wrong.
func (s *receiveStream) acknowledge(k uint64, r *ring, fault uint64) {
	p := &r.acks[k%ringSlots]
	if s.peer.fenced {
		atomic.StoreUint64(p, k<<1|fault)
	} else {
		wait.StoreRelease64(p, k<<1|fault)
	}
	if atomic.LoadUint32(&r.starving) != 0 {
		s.peer.bell.ring()
	}
}

// refuse fails a receive whose message has a wrong length, n bytes.
func (s *receiveStream) refuse(h *Handle, r *ring, n int) {
	h.tellLength(r)
	s.acknowledge(h.k, r, 1)
	atomic.AddUint32(&r.faults, 1)
	s.finish(h, h.lengthError(n))
}

// tellLength tells the sender of a message of a wrong length the length of the receive.
func (h *Handle) tellLength(r *ring) {
	wait.StoreRelease64(&r.lengths[h.k%ringSlots], uint64(h.shape.Len()))
}

// takeRendezvous makes progress on a rendezvous as the receiver. With direct, the sender does
// all the copying.
func (s *receiveStream) takeRendezvous(h *Handle, r *ring, slot *slot, direct bool) {
	if h.copying {
		return
	}
	if direct && !h.gated {
		s.finish(h, h.broken("message copied although no receive is waiting"))
		return
	}
	m := &r.matches[h.k%ringSlots]
	v := slot.rendezvous()
	if v.length != uint64(h.shape.Len()) {
		h.tellLength(r)
		m.judge(h.k, verdictLength)
		s.acknowledge(h.k, r, 0)
		s.peer.bell.ring()
		s.finish(h, h.lengthError(lengthTold(v.length)))
		return
	}
	n, _ := chunks(h.shape.Len())
	if !direct && !m.finished(h.k, n) {
		h.copying = true
		s.releases++
		s.lock.Unlock()
		h.assistReceive(m, v)
		s.lock.Lock()
		h.copying = false
	}
	switch {
	case m.finished(h.k, n):
		s.acknowledge(h.k, r, 0)
		s.received.add(h)
		s.finish(h, nil)
	case m.verdict(h.k) == verdictWithdrawn:
		s.finish(h, s.peer.withdrawn("receive", s.number, h.k))
	case m.verdict(h.k) == verdictLength || !m.sane(h.k, n):
		s.finish(h, h.broken("match of %d pieces in state %#x, %#x", n, atomic.LoadUint64(&m.next), atomic.LoadUint64(&m.done)))
	case s.peer.state.Load() >= peerFailed && s.peerDone(h, r) && !m.finished(h.k, n):
		s.finish(h, s.peer.opError("receive", s.number, h.k))
	}
}

// assistReceive copies the chunks that the sender offers and the other side has not claimed. The
// sender may not have told its layout yet.
func (h *Handle) assistReceive(m *match, v rendezvous) {
	p := h.in.peer
	src := h.remoteShape(p, m, v.where, v.length)
	if n, _ := chunks(h.shape.Len()); src == nil && !m.claimed(h.k, n) {
		p.awaitsLayout(v.where)
	}
	if src != nil && h.copyChunks(m, &h.shape, src) {
		p.bell.ring()
	}
}

// assistSend copies the chunks that the other side has not claimed into the memory of a waiting
// receiver.
func (h *Handle) assistSend() {
	s := h.out
	i := h.k % ringSlots
	if dst := h.lookupGate(s.r, i); dst != nil {
		if h.copyChunks(&s.r.matches[i], dst, &h.shape) {
			s.peer.bell.ring()
		}
	}
}

// lookupGate returns the layout of the receive that waits at a gate; nil if it is unknown or has
// another length, which the receiver reports.
func (h *Handle) lookupGate(r *ring, i uint64) *layout.Shape {
	at, length, ok := r.gates[i].read(h.k)
	if !ok || length != uint64(h.shape.Len()) {
		return nil
	}
	return h.remoteShape(h.out.peer, &r.matches[i], at, length)
}

// remoteShape returns the memory of the peer for a match, nil if it is not known yet or no longer
// needed.
func (h *Handle) remoteShape(p *peer, m *match, at where, length uint64) *layout.Shape {
	l := h.remote.Load()
	if l == nil || l.where != at || at.addr != 0 && uint64(l.shape.Len()) != length {
		var err error
		l, err = p.find(at, length)
		if n, _ := chunks(h.shape.Len()); err != nil && !m.claimed(h.k, n) {
			p.failLater(err)
		}
		h.remote.Store(l)
	}
	switch {
	case l == nil:
		return nil
	case uint64(l.shape.Len()) != length:
		p.failLater(fmt.Errorf("%w: message of %d bytes in the layout of handle %d, which has %d", ErrProtocol, length, at.handle, l.shape.Len()))
		return nil
	}
	return &l.shape
}

// copyChunks claims chunks and copies them until none is left. It says whether there
// were any.
func (h *Handle) copyChunks(m *match, dst, src *layout.Shape) (moved bool) {
	n, size := chunks(h.shape.Len())
	for range n { // bounded, whatever a peer does to the match
		i, _ := m.claim(h.k, n)
		if i < 0 {
			break
		}
		from := i * size
		layout.Move(dst, src, from, min(size, h.shape.Len()-from))
		m.finish(h.k)
		moved = true
	}
	return moved
}
