package channel

import "slices"

// queueOut is a stream to the other side.
type queueOut struct {
	number  uint32
	sent    counts
	next    uint64             // k of the last start
	ahead   uint64             // eager messages sent
	taken   uint64             // of them, taken by the other side
	pending []*Handle          // eager messages that wait
	offers  map[uint64]*Handle // larger messages that are not complete
	told    int                // of them, announced, and not answered
	untold  []uint64           // of them, not announced yet, in order; some may have ended, or been begun
	opened  map[uint64]header  // gates of messages that are not offered, or whose layout is unknown
	failed  map[uint64]bool    // messages that will not be sent, until the other side has refused them

	declared bool               // handles have been declared on it
	ended    bool               // nothing more can be started on it
	late     faults             // the next start returns one of them
	eager    [2 * window]length // of the last eager messages, for errors
}

// length is the length of an eager message. A refusal of one arrives before the sender is more
// than window ahead of it: each message takes a place in the window until the receiver has seen
// its length, and control messages arrive in order.
type length struct {
	k uint64
	n int
}

// length returns the length of an eager message that the other side may still refuse.
func (s *queueOut) length(k uint64) (int, bool) {
	i := slices.IndexFunc(s.eager[:], func(l length) bool { return l.k == k })
	if i < 0 {
		return 0, false
	}
	return s.eager[i].n, true
}

// startSend begins a send.
func (q *queue) startSend(h *Handle) error {
	q.lock.Lock()
	defer q.lock.Unlock()
	s := q.out[h.out.number]
	staged := false
	if h.shape.Len() > q.cross.eager {
		q.poll() // the gate may have arrived
		if _, ok := s.opened[s.next+1]; !ok && h.staging != nil {
			q.stage(h)
			staged = true
		}
	}
	if err := s.late.take(0); err != nil {
		return err
	}
	if q.peer.state.Load() >= peerFailed {
		return q.peer.opError("send", s.number, 0)
	}
	if s.ended {
		return q.peer.opErrorOf("send", s.number, 0, ErrPeerLeft)
	}
	s.next++
	h.begin(s.next)
	s.sent.add(h)
	h.transfer = transfer{packed: staged}
	q.send(s, h)
	return nil
}

// adoptSend takes over a stream with the sends started on it. Those that are staged are packed before, while
// others have the locks.
func (q *queue) adoptSend(s *sendStream) {
	q.lock.Lock()
	defer q.lock.Unlock()
	s.lock.Lock()
	defer s.lock.Unlock()
	for i := 0; i < len(s.pending); i++ {
		h := s.pending[i]
		if h.staging == nil || h.transfer.packed {
			continue
		}
		h.copying = true
		s.lock.Unlock()
		q.lock.Unlock()
		byPiece(h, h.shape.Gather)
		q.lock.Lock()
		s.lock.Lock()
		h.copying, h.transfer.packed = false, true
		if i >= len(s.pending) || s.pending[i] != h { // some have been dropped
			i = -1
		}
	}
	s.q.Store(q) // before anything is in a phase that belongs to the queue
	o := q.outStream(s.number)
	o.declared = true
	o.next, o.sent = s.next, s.sent
	for _, h := range s.pending {
		h.transfer = transfer{packed: h.transfer.packed}
		q.send(o, h)
	}
	s.pending = nil
}

// send sends a message, announces that it is ready, or queues it.
func (q *queue) send(s *queueOut, h *Handle) {
	switch {
	case h.bindErr.Load() != nil:
		q.sendUnusable(s, h)
	case h.shape.Len() > q.cross.eager:
		if err := q.offer(s, h); err != nil {
			q.broken(err)
		}
	case len(s.pending) > 0 || !q.sendEager(s, h):
		h.setPhase(phasePending)
		s.sent.Waited++
		s.pending = append(s.pending, h)
		if !slices.Contains(q.waiting, s) {
			q.waiting = append(q.waiting, s)
		}
	}
}

// sendEager copies a message into a buffer and posts it; false if it has to wait.
func (q *queue) sendEager(s *queueOut, h *Handle) bool {
	if q.failed || s.ahead-s.taken >= window || len(q.control) > 0 || q.credits <= reserve {
		return false
	}
	n := h.shape.Len()
	i, b := q.buffer(n)
	if b == nil {
		return false
	}
	h.shape.Gather(b[headerSize:headerSize+n], 0)
	s.eager[s.ahead%uint64(len(s.eager))] = length{h.k, n}
	s.ahead++
	s.sent.Eager++
	h.end(phaseSent)
	m := header{kind: queueEager, stream: s.number, k: h.k, length: uint64(n)}
	if i := q.in[s.number]; i != nil {
		i.told = i.consumed
		m.taken = uint32(i.consumed)
	}
	q.post(m, n, i, b)
	return true
}

// refused returns the error of a send that is complete, if the other side has refused it.
func (q *queue) refused(h *Handle) error {
	q.lock.Lock()
	defer q.lock.Unlock()
	return q.out[h.out.number].late.take(h.k)
}

// outStream and inStream return a stream, making it if needed: the other side may use it first.
func (q *queue) outStream(number uint32) *queueOut {
	s := q.out[number]
	if s == nil {
		s = &queueOut{number: number, ended: q.deaf(number), offers: map[uint64]*Handle{}, opened: map[uint64]header{}, failed: map[uint64]bool{}}
		q.out[number] = s
	}
	return s
}
