package channel

import (
	"slices"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/parts"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// sendStream is this end of a stream to a peer. Once the peer is connected it uses a ring or a
// queue.
type sendStream struct {
	peer   *peer
	number uint32
	q      atomic.Pointer[queue]

	lock    wait.Lock
	sent    counts
	spares  spares
	next    uint64     // k of the last start
	r       *ring      // nil until the peer is connected
	fenced  bool       // publishing needs a full fence: see peer.fenced
	freed   uint64     // every k up to here has been taken
	data    parts.Area // of the ring
	heard   uint64     // receives of stream 0 that had ended when the place of a message was prepared last
	pending []*Handle  // started but not in the ring: no connection, or no slot
	offered [ringSlots]*Handle

	pipe     []byte      // nil until it is needed
	packing  []*Handle   // in the pipe, the first of them in part
	busy     *Handle     // being packed, without the lock
	reserved uint64      // bytes of the pipe assigned to messages since the beginning
	filled   uint64      // those of them that are filled
	unpacked atomic.Bool // there are messages left to pack
	served   bool        // the engine checks that packing goes on
	packs    packs

	faults uint32            // of the ring, as last seen; atomic
	noted  [ringSlots]uint64 // k whose fault is or was in late
	late   faults            // the next start returns one of them
	sizes  [ringSlots]int    // length of k

	users  int // handles; under the peer's mu, and likewise
	memory streamMemory
	aside  *ring // that may be about to be freed: r is nil meanwhile
}

// faults are the errors of sends that were already complete when the receiver found their length
// to be wrong.
type faults []*Error

// take removes and returns the error of start k, or any if k == 0.
func (f *faults) take(k uint64) error {
	for i, e := range *f {
		if k == 0 || e.Start == k {
			*f = slices.Delete(*f, i, i+1)
			return e
		}
	}
	return nil
}

// begin gives the stream its ring, and publishes the sends that waited for it.
func (s *sendStream) begin(r *ring, fenced bool) {
	s.lock.Lock()
	s.r, s.fenced = r, fenced
	s.flush()
	s.lock.Unlock()
}

// start begins a send.
func (s *sendStream) start(h *Handle) error {
	if q := s.q.Load(); q != nil {
		return q.startSend(h)
	}
	s.lock.Lock()
	if q := s.q.Load(); q != nil {
		s.lock.Unlock()
		return q.startSend(h)
	}
	if s.r != nil && atomic.LoadUint32(&s.r.faults) != s.faults {
		s.collect()
	}
	if len(s.late) > 0 {
		err := s.late.take(0)
		s.lock.Unlock()
		return err
	}
	if st := s.peer.state.Load(); st >= peerFailed {
		s.lock.Unlock()
		return s.peer.opError("send", s.number, 0)
	}
	s.next++
	h.begin(s.next)
	s.sent.add(h)
	if s.r == nil || len(s.pending) > 0 || !s.publish(h, true) {
		s.queue(h)
	}
	if len(s.packing) > 0 {
		s.packStarted()
	}
	s.lock.Unlock()
	if h.phase.Load() == phaseOffered && !h.packed {
		h.assistSend() // the second side copies
	}
	return nil
}

// queue puts a send behind those that wait for a connection or a slot.
func (s *sendStream) queue(h *Handle) {
	h.setPhase(phasePending)
	s.pending = append(s.pending, h)
	if s.r != nil {
		s.sent.Waited++
		s.flush()
	}
}

// flush publishes pending sends as far as there are slots; the engine takes care of the rest. The
// caller holds the lock, which flush releases while it packs.
func (s *sendStream) flush() {
	if s.publishPending(); len(s.pending) > 0 {
		atomic.StoreUint32(&s.r.starving, 1)
		// A slot may have become free before the receiver could see starving.
		if s.publishPending(); len(s.pending) > 0 {
			s.peer.node.starve(s)
		}
	}
	if len(s.packing) > 0 {
		s.packStarted()
	}
}

func (s *sendStream) publishPending() {
	n := 0
	for n < len(s.pending) && s.publish(s.pending[n], false) {
		s.pending[n].rouse()
		n++
	}
	s.pending = slices.Delete(s.pending, 0, n)
	if len(s.pending) == 0 && atomic.LoadUint32(&s.r.starving) != 0 {
		atomic.StoreUint32(&s.r.starving, 0)
	}
}

// publish puts a send into its slot; false if that is not free. present says that the call comes
// from the program, not the engine.
func (s *sendStream) publish(h *Handle, present bool) bool {
	k := h.k
	if k > s.freed+ringSlots {
		if s.reap(); k > s.freed+ringSlots {
			return false
		}
	}
	i := k % ringSlots
	slot := &s.r.slots[i]
	n := h.shape.Len()
	s.sizes[i] = n
	switch {
	case n <= inlineMax:
		switch {
		case n == 8 && h.flat != nil:
			*(*[8]byte)(slot.data[:]) = [8]byte(h.flat)
		case n <= slotData && h.flat != nil:
			copy(slot.data[:n], h.flat)
		case n <= slotData:
			h.shape.Gather(slot.data[:n], 0)
		default:
			b := h.flat
			var packed [inlineMax]byte
			if b == nil {
				b = packed[:n]
				h.shape.Gather(b, 0)
			}
			copy(s.r.more[i][:], b[slotData:])
			copy(slot.data[:], b)
		}
		h.setPhase(phaseSent)
		s.store(&slot.word, key(k, slotInline<<8|uint32(n)))
	case n > gateMin && n <= eagerMax && s.publishMoved(h, slot):
		s.peer.bell.ring()
		return true
	case n <= eagerMax && s.publishEager(h, slot):
	case n <= eagerMax && !h.reachable:
		return false
	case h.bindErr.Load() != nil:
		s.publishUnusable(h, slot)
		return true
	default:
		s.publishRendezvous(h, slot, present)
		return true
	}
	s.sent.Eager++
	s.peer.bell.ring()
	if n > inlineMax {
		s.touch(uint32(n))
	}
	return true
}

// store makes a slot visible.
func (s *sendStream) store(p *uint64, v uint64) {
	if s.fenced {
		atomic.StoreUint64(p, v)
	} else {
		wait.StoreRelease64(p, v)
	}
}

// publishEager copies a message into the data of the ring; false if that is full.
func (s *sendStream) publishEager(h *Handle, slot *slot) bool {
	n := h.shape.Len()
	off, ok := s.data.Next(h.k, uint32(n))
	if !ok {
		s.reap()
		if off, ok = s.data.Enter(h.k, uint32(n), s.freed); !ok {
			return false
		}
	}
	h.shape.Gather(s.r.data[off:int(off)+n], 0)
	slot.setEager(off, uint32(n))
	h.setPhase(phaseSent)
	s.store(&slot.word, key(h.k, slotEager<<8))
	return true
}

// touch prepares the place of the next message, one of n bytes, if the peer answers each: a receive from it has
// ended since the last time. Only those of stream 0 are looked at.
func (s *sendStream) touch(n uint32) {
	in := s.peer.in0.Load()
	if in == nil {
		return
	}
	heard := atomic.LoadUint64(&in.heard)
	if heard == s.heard {
		return
	}
	s.heard = heard
	if !s.data.Room(n) {
		s.reap()
	}
	s.data.Touch(s.r.data[:], n, s.freed)
}

// publishMoved copies a message of eager size straight into the waiting receive; false if there
// is none.
func (s *sendStream) publishMoved(h *Handle, slot *slot) bool {
	i := h.k % ringSlots
	dst := h.lookupGate(s.r, i)
	if dst == nil {
		return false
	}
	m := &s.r.matches[i]
	if h.copyChunks(m, dst, &h.shape); !m.finished(h.k, 1) {
		return false // the receive is being withdrawn
	}
	slot.setRendezvous(rendezvous{length: uint64(h.shape.Len())})
	h.setPhase(phaseSent)
	s.store(&slot.word, key(h.k, slotMoved<<8))
	return true
}

// publishRendezvous publishes the location of the message. If a receiver already waits and only
// the sender could copy, that needs present.
func (s *sendStream) publishRendezvous(h *Handle, slot *slot, present bool) {
	kind := uint32(slotRendezvous)
	if !h.reachable {
		if !present || h.lookupGate(s.r, h.k%ringSlots) == nil {
			s.publishPacked(h, slot)
			return
		}
		kind = slotDirect
	}
	h.packed = false
	slot.setRendezvous(rendezvous{h.where, uint64(h.shape.Len())})
	s.offer(h, slot, kind<<8)
}

// offer makes a slot of a large message visible.
func (s *sendStream) offer(h *Handle, slot *slot, kind uint32) {
	h.setPhase(phaseOffered)
	s.offered[h.k%ringSlots] = h
	// The receiver's gate and this word: the side that writes second must see the first.
	atomic.StoreUint64(&slot.word, key(h.k, kind))
	s.peer.bell.ring()
}

// reap frees the slots that have been taken, in order.
func (s *sendStream) reap() {
	for s.freed < s.next {
		k := s.freed + 1
		v := atomic.LoadUint64(&s.r.acks[k%ringSlots])
		if v>>1 != k {
			return
		}
		s.note(k, v)
		if h := s.offered[k%ringSlots]; h != nil {
			s.settle(h)
			switch {
			case s.copies(h):
				return
			case h.phase.Load() == phaseOffered:
				s.failOffered(h, h.broken("taken, and not moved"))
			}
		}
		s.freed = k
	}
}

// collect looks for faults among the sends that have not been reaped.
func (s *sendStream) collect() {
	wait.StoreRelaxed32(&s.faults, atomic.LoadUint32(&s.r.faults))
	for k := s.freed + 1; k <= s.next; k++ {
		s.note(k, atomic.LoadUint64(&s.r.acks[k%ringSlots]))
	}
}

// note keeps the error of a send that was already complete when the receiver found its length to
// be wrong. An incomplete send gets the error from settle.
func (s *sendStream) note(k, ack uint64) {
	if i := k % ringSlots; ack == k<<1|1 && s.noted[i] != k && s.offered[i] == nil {
		s.noted[i] = k
		s.late = append(s.late, &Error{Op: "send", Rank: s.peer.rank, Stream: int(s.number), Start: k, Len: s.sizes[i], Other: s.wanted(k), Err: ErrLength})
	}
}

// wanted is the length of the receive that has refused send k.
func (s *sendStream) wanted(k uint64) int {
	return lengthTold(atomic.LoadUint64(&s.r.lengths[k%ringSlots]))
}

// settle completes a rendezvous that has ended. The caller holds the lock.
func (s *sendStream) settle(h *Handle) {
	if h.phase.Load() != phaseOffered {
		return
	}
	i := h.k % ringSlots
	m := &s.r.matches[i]
	n, _ := chunks(h.shape.Len())
	switch {
	case s.copies(h):
		return
	case !h.packed && m.finished(h.k, n):
		s.forget(h)
		h.end(phaseSent)
	case s.refused(h):
		s.noted[i] = h.k
		s.failOffered(h, &Error{Op: "send", Rank: s.peer.rank, Stream: int(s.number), Start: h.k, Len: h.shape.Len(), Other: s.wanted(h.k), Err: ErrLength})
	case m.verdict(h.k) == verdictWithdrawn, m.verdict(h.k+ringSlots) == verdictWithdrawn: // the latter overwrites a verdict on k
		s.failOffered(h, s.peer.withdrawn("send", s.number, h.k))
	case !h.packed && !m.sane(h.k, n):
		s.failOffered(h, h.broken("match of %d pieces in state %#x, %#x", n, atomic.LoadUint64(&m.next), atomic.LoadUint64(&m.done)))
	}
}

// refused says whether the receiver has found the length of a send to be wrong.
func (s *sendStream) refused(h *Handle) bool {
	if h.packed {
		return atomic.LoadUint64(&s.r.acks[h.k%ringSlots]) == h.k<<1|1
	}
	return s.r.matches[h.k%ringSlots].verdict(h.k) == verdictLength
}

// forget removes a complete send from the offered ones. The caller holds the lock.
func (s *sendStream) forget(h *Handle) {
	s.offered[h.k%ringSlots] = nil
	if h.packed {
		s.packing = slices.DeleteFunc(s.packing, func(o *Handle) bool { return o == h })
		s.unpacked.Store(len(s.packing) > 0)
	}
}

// failOffered fails a rendezvous. The caller holds the lock.
func (s *sendStream) failOffered(h *Handle, err error) {
	s.forget(h)
	h.err = err
	h.end(phaseFailed)
}

// peerDone says whether the peer, which has failed, will no longer read a rendezvous: it is gone,
// or it has not begun and will find the message withdrawn. Messages in the pipe are not read from
// their own memory.
func (s *sendStream) peerDone(h *Handle) bool {
	return h.packed || s.peer.gone() || s.r.matches[h.k%ringSlots].judge(h.k, verdictWithdrawn)
}

// further makes progress on a send, for any goroutine.
func (s *sendStream) further(h *Handle) {
	s.lock.Lock()
	if q := s.q.Load(); q != nil {
		s.lock.Unlock()
		q.further(h)
		return
	}
	if h.phase.Load() == phaseOffered && !h.packed && !h.copying && s.awaited(h) {
		h.copying = true // so that it does not end
		s.lock.Unlock()
		h.assistSend()
		s.lock.Lock()
		h.copying = false
	}
	switch h.phase.Load() {
	case phasePending:
		s.advancePending(h)
	case phaseOffered:
		s.advanceOffered(h)
	}
	s.lock.Unlock()
}

// advanceOffered makes progress on a rendezvous as the sender, but for copying it. The caller holds the
// lock.
func (s *sendStream) advanceOffered(h *Handle) {
	if h.packed {
		s.pack()
	}
	s.settle(h)
	if h.phase.Load() == phaseOffered && s.peer.state.Load() >= peerFailed && !s.copies(h) {
		// Check again: it may have been moved before the end.
		if s.settle(h); h.phase.Load() == phaseOffered && s.peerDone(h) {
			s.failOffered(h, s.peer.opError("send", s.number, h.k))
		}
	}
}

// advancePending tries to publish a pending send. The caller holds the lock.
func (s *sendStream) advancePending(h *Handle) {
	if s.r != nil && len(s.pending) > 0 {
		s.flush()
	}
	if h.phase.Load() == phasePending && s.peer.state.Load() >= peerFailed && !s.copies(h) {
		s.drop(h)
		h.err = s.peer.opError("send", s.number, h.k)
		h.end(phaseFailed)
	}
}

// awaited says whether a receive waits for an offered send of which some has not been claimed.
func (s *sendStream) awaited(h *Handle) bool {
	i := h.k % ringSlots
	n, _ := chunks(h.shape.Len())
	_, _, gate := s.r.gates[i].read(h.k)
	return gate && !s.r.matches[i].claimed(h.k, n)
}

// copies says whether a goroutine copies the message, without the lock.
func (s *sendStream) copies(h *Handle) bool { return h == s.busy || h.copying }

// drop removes a send from the pending ones. It may have been packed for the queue that takes over the stream.
func (s *sendStream) drop(h *Handle) {
	h.transfer = transfer{}
	s.pending = slices.DeleteFunc(s.pending, func(p *Handle) bool { return p == h })
}

// test makes progress on a send and says whether it is complete.
func (s *sendStream) test(h *Handle) (bool, error) {
	p := h.phase.Load()
	if p == phasePending || p == phaseOffered {
		s.further(h)
		p = h.phase.Load()
	}
	switch p {
	case phasePending, phaseOffered:
		return false, nil
	case phaseSent:
		if q := s.q.Load(); q != nil { // loaded after the phase, which may be the queue's
			return true, q.refused(h)
		}
		return true, s.testSent(h)
	}
	return true, h.err
}

// ready says whether the next test may find progress.
func (s *sendStream) ready(h *Handle) bool {
	switch p := h.phase.Load(); {
	case p != phaseOffered && p != phasePending || s.peer.state.Load() >= peerFailed:
		return true
	case s.q.Load() != nil: // what completes it wakes
		return false
	case !s.lock.TryLock():
		return true
	}
	defer s.lock.Unlock()
	if s.r == nil || h.phase.Load() != phaseOffered {
		return s.r != nil
	}
	m := &s.r.matches[h.k%ringSlots]
	if s.refused(h) || m.verdict(h.k) != 0 || m.verdict(h.k+ringSlots) != 0 {
		return true
	}
	if h.packed {
		_, _, ok := s.nextPiece()
		return ok
	}
	n, _ := chunks(h.shape.Len())
	_, _, gate := s.r.gates[h.k%ringSlots].read(h.k)
	return gate || m.finished(h.k, n)
}

// testSent looks for a fault of a send that is complete.
func (s *sendStream) testSent(h *Handle) error {
	if s.r == nil || atomic.LoadUint32(&s.r.faults) == atomic.LoadUint32(&s.faults) {
		return nil
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.collect()
	return s.late.take(h.k)
}
