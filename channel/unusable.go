package channel

import "sync/atomic"

// A handle is unusable if its memory cannot be used towards its peer, which may turn out
// only at the wire-up. A start made on it by then has a number on its stream, which the
// other side may already have assigned to a start of its own: the pair is consumed, as
// if the lengths differed. The unusable side fails at once, the other when it learns of
// it.

// noMessage is the length, on the wire, of a message that will not be sent, or whose receive has
// failed.
const noMessage = ^uint64(0)

// lengthTold returns the length that the other side has told, for errors; -1 if there is none.
func lengthTold(n uint64) int {
	if n == noMessage {
		return -1
	}
	return int(min(n, 1<<62))
}

// unusableError is the error of a start of an unusable handle.
func (h *Handle) unusableError() error { return h.errorf("start", *h.bindErr.Load()) }

// publishUnusable announces that a message will not be sent. The caller holds the lock.
func (s *sendStream) publishUnusable(h *Handle, slot *slot) {
	h.err = h.unusableError()
	h.end(phaseFailed)
	slot.setRendezvous(rendezvous{length: noMessage})
	atomic.StoreUint64(&slot.word, key(h.k, slotRendezvous<<8))
	s.peer.bell.ring()
}

// sendUnusable announces that a message will not be sent. Its receiver finds a wrong length and
// refuses it.
func (q *queue) sendUnusable(s *queueOut, h *Handle) {
	delete(s.opened, h.k)
	s.failed[h.k] = true
	q.tell(header{kind: queueReady, stream: s.number, k: h.k, length: noMessage})
	q.finish(h, phaseFailed, h.unusableError())
}

// awaitUnusable fails a receive, and refuses its message, which may have arrived.
func (q *queue) awaitUnusable(s *queueIn, h *Handle) {
	q.finish(h, phaseReceived, h.unusableError())
	if _, ready := s.ready[h.k]; ready {
		delete(s.ready, h.k)
		q.refuseUnusable(s, h.k)
		return
	}
	s.failed[h.k] = true
}

// refuseUnusable tells the sender of start k that its receive has failed.
func (q *queue) refuseUnusable(s *queueIn, k uint64) {
	delete(s.failed, k)
	q.tell(header{kind: queueWrong, stream: s.number, k: k, length: noMessage})
}
