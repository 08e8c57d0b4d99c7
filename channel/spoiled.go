package channel

import "sync/atomic"

// A handle is spoiled if its memory cannot be used towards its peer, which may turn
// out at the wire-up only. What has been started on it by then has a number on its
// stream, which the other side may have given to a start of its own: the pair is
// used up, as one is whose lengths differ. The spoiled side fails at once, the other
// when it learns of it.

// noMessage is the length, in what the sides tell each other, of a message that is
// not to come, or whose receive cannot be.
const noMessage = ^uint64(0)

// lengthTold returns the length that the other side has told, for errors: -1 where
// there is none.
func lengthTold(n uint64) int {
	if n == noMessage {
		return -1
	}
	return int(min(n, 1<<62))
}

// spoiledError is the error of a start of a spoiled handle.
func (h *Handle) spoiledError() error { return h.errorf("start", *h.bindErr.Load()) }

// publishSpoiled says that a message will not come. The caller holds the lock.
func (s *sendStream) publishSpoiled(h *Handle, slot *slot) {
	s.ends[h.k%ringSlots] = s.head
	h.err = h.spoiledError()
	h.setPhase(phaseFailed)
	slot.setRendezvous(rendezvous{h.id, h.generation, noMessage})
	atomic.StoreUint64(&slot.word, key(h.k, slotRendezvous<<8))
	s.peer.bell.ring()
}

// sendSpoiled says that a message will not come. Its receiver finds that the length
// is wrong, and says so.
func (q *queue) sendSpoiled(s *queueOut, h *Handle) {
	delete(s.opened, h.k)
	s.spoiled[h.k] = true
	q.tell(header{kind: queueReady, stream: s.number, k: h.k, length: noMessage, handle: h.id, generation: h.generation})
	q.finish(h, phaseFailed, h.spoiledError())
}

// awaitSpoiled fails a receive, and refuses its message, which may be here.
func (q *queue) awaitSpoiled(s *queueIn, h *Handle) {
	q.finish(h, phaseReceived, h.spoiledError())
	if _, ready := s.ready[h.k]; ready {
		delete(s.ready, h.k)
		q.refuseSpoiled(s, h.k)
		return
	}
	s.spoiled[h.k] = true
}

// refuseSpoiled tells the sender of start k that its receive cannot be.
func (q *queue) refuseSpoiled(s *queueIn, k uint64) {
	delete(s.spoiled, k)
	q.tell(header{kind: queueWrong, stream: s.number, k: k, length: noMessage})
}
