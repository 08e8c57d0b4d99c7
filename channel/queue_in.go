package channel

import "fmt"

// queueIn is a stream from the other side.
type queueIn struct {
	number   uint32
	received counts
	next     uint64             // k of the last start
	started  map[uint64]*Handle // receives that are not complete
	arrived  map[uint64][]byte  // eager messages whose receive has not been started
	ready    map[uint64]header  // larger ones
	gates    int                // open ones
	ungated  []uint64           // receives whose gates are not open yet, in order; some may have ended, or been begun
	failed   map[uint64]bool    // receives that failed, until their messages have come
	consumed uint64             // eager messages taken
	told     uint64             // of them, those that the other side knows of

	declared bool // handles have been declared on it
	unstaged int  // receives that are being copied out of staging memory
	ended    bool // nothing more will arrive
}

// adoptReceive takes over a stream with the receives started on it.
func (q *queue) adoptReceive(s *receiveStream) {
	q.lock.Lock()
	defer q.lock.Unlock()
	s.lock.Lock()
	defer s.lock.Unlock()
	s.q.Store(q)
	i := q.inStream(s.number)
	i.declared = true
	i.next = s.next
	for h := s.first; h != nil; h = s.first {
		s.unlink(h)
		q.await(i, h)
	}
}

// startReceive begins a receive.
func (q *queue) startReceive(h *Handle) error {
	q.lock.Lock()
	defer q.lock.Unlock()
	s := q.in[h.in.number]
	s.next++
	h.begin(s.next)
	h.setPhase(phaseWaiting)
	q.await(s, h)
	if h.phase.Load() == phaseWaiting && q.peer.state.Load() >= peerFailed {
		q.forget(s, h)
		h.setPhase(phaseIdle)
		return q.peer.opError("receive", s.number, 0)
	}
	if h.phase.Load() == phaseWaiting && s.ended {
		q.forget(s, h)
		h.setPhase(phaseIdle)
		return q.peer.opErrorOf("receive", s.number, 0, ErrPeerLeft)
	}
	return nil
}

// await takes a message that has arrived, begins to read it, or opens the gate for it.
func (q *queue) await(s *queueIn, h *Handle) {
	h.transfer = transfer{}
	if b, ok := s.arrived[h.k]; ok {
		delete(s.arrived, h.k)
		q.takeEager(s, h, b)
		if len(q.spare) < window {
			q.spare = append(q.spare, b[:0])
		}
		return
	}
	if h.bindErr.Load() != nil {
		q.awaitUnusable(s, h)
		return
	}
	s.started[h.k] = h
	r, ready := s.ready[h.k]
	delete(s.ready, h.k)
	switch {
	case ready && r.length != uint64(h.shape.Len()):
		q.refuse(s, h, lengthTold(r.length))
	case h.cancellable && !ready: // see arriveReceive
	case h.shape.Len() <= q.cross.eager, ready && q.fetch(h, r):
	case !ready && s.gates >= aheadMost:
		s.ungated = append(s.ungated, h.k)
	default:
		q.publishGate(s, h)
	}
}

// takeEager receives an eager message.
func (q *queue) takeEager(s *queueIn, h *Handle, b []byte) {
	q.consume(s)
	if len(b) != h.shape.Len() {
		q.refuse(s, h, len(b))
		return
	}
	h.shape.Scatter(b, 0)
	s.received.Eager++
	q.receive(s, h)
}

// consume counts an eager message that has been taken.
func (q *queue) consume(s *queueIn) {
	if s.consumed++; s.consumed-s.told >= window/2 {
		s.told = s.consumed
		q.tell(header{kind: queueTaken, stream: s.number, k: s.consumed})
	}
}

// refuse fails a receive whose message has a wrong length, n bytes.
func (q *queue) refuse(s *queueIn, h *Handle, n int) {
	q.forget(s, h)
	q.tell(header{kind: queueWrong, stream: s.number, k: h.k, length: uint64(h.shape.Len())})
	q.finish(h, phaseReceived, h.lengthError(n))
}

// maxAhead bounds what one side may tell about starts that the other has not made.
const maxAhead = 1 << 16

func (q *queue) arriveReceive(m header, payload []byte) error {
	s := q.inStream(m.stream)
	h := s.started[m.k]
	if s.failed[m.k] {
		if m.kind == queueEager {
			q.consume(s)
		}
		q.refuseUnusable(s, m.k)
		return nil
	}
	switch {
	case m.k == 0 || m.k <= s.next && h == nil:
		return fmt.Errorf("%w: kind %d for start %d, last start is %d", ErrProtocol, m.kind, m.k, s.next)
	case h != nil && h.transfer.begun:
		return fmt.Errorf("%w: kind %d for start %d, which is being read", ErrProtocol, m.kind, m.k)
	case m.kind == queueEager && h != nil:
		q.takeEager(s, h, payload)
	case m.kind == queueEager:
		if len(s.arrived) >= window {
			return fmt.Errorf("%w: more than %d messages ahead", ErrProtocol, window)
		}
		var b []byte
		if n := len(q.spare); n > 0 {
			b, q.spare = q.spare[n-1], q.spare[:n-1]
		}
		s.arrived[m.k] = append(b, payload...)
	case h == nil:
		if len(s.ready) >= maxAhead {
			return fmt.Errorf("%w: more than %d messages ready", ErrProtocol, maxAhead)
		}
		s.ready[m.k] = m
	case m.length != uint64(h.shape.Len()):
		q.refuse(s, h, lengthTold(m.length))
	case q.gated[h.id] != h && !q.fetch(h, m): // cancellable, or there were too many gates
		q.publishGate(s, h)
	}
	return nil
}

func (q *queue) inStream(number uint32) *queueIn {
	s := q.in[number]
	if s == nil {
		s = &queueIn{number: number, ended: q.deaf(number), started: map[uint64]*Handle{}, arrived: map[uint64][]byte{}, ready: map[uint64]header{}, failed: map[uint64]bool{}}
		q.in[number] = s
	}
	return s
}

// deaf says whether the other side has finished with a stream.
func (q *queue) deaf(number uint32) bool {
	e := q.ends[number]
	return e != nil && e.heard
}
