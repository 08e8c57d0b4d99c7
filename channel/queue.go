package channel

import (
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// A queue moves the messages of all streams between two ranks through a queue pair, if the
// memory of the other side cannot be loaded and stored.
//
// A message of up to crossovers.eager bytes is sent behind a header and copied out by the
// receiver, at once or when its receive is started; a sender may be ahead by window such
// messages on each stream. A larger one goes straight from layout to layout: see transfer.
//
// Nothing here blocks: what cannot be posted yet waits for credits (receives that the other side
// has posted) or for room in the send queue.
type queue struct {
	peer  *peer
	link  *link
	cross *crossovers

	lock   wait.Lock // also of the streams' parts below
	polls  uint64    // by users
	failed bool

	view    *queueView // the engine's state for the queue; nil before there is one
	noted   bool       // the engine's next survey includes it
	watched bool       // the engine will survey it within engineTick

	outstanding outstanding

	inline  int      // bytes that a message may have to be sent inline, its header included
	credits int      // receives of the other side that we may use
	owed    int      // receives posted since the other side was last given credits
	control []header // to be sent
	waiting []*queueOut
	out     map[uint32]*queueOut
	in      map[uint32]*queueIn
	writes  lane
	reads   lane
	ends    map[uint32]*streamEnd           // streams that one side has finished with
	untold  int                             // of them, those not told to the other side
	telling int                             // ends of streams in control
	past    struct{ sent, received Counts } // of streams that have ended
	gated   map[uint32]*Handle              // receives whose gate is open, by handle
	landed  []*Handle                       // receives that are written, and wait in staging memory
	early   []earlyGate                     // open gates whose layouts were asked for
	spare   [][]byte                        // for eager messages that arrive early

	// Used within one call each; kept here to avoid allocation.
	wcs  [64]verbs.WC
	sges []verbs.SGE
	wrs  [chain]verbs.SendWR
}

const (
	// window is how many eager messages of a stream may wait for their receives.
	window = 32

	queueRecvs = 64 // receives posted
	queueSends = 64 // buffers for sends
	headerSize = 32
	// One credit is reserved for returning credits to the other side.
	reserve = 1
)

// Work request numbers identify completions. That of a send is the number of sends posted so far
// on the queue, this one included, modulo 2^32; that of a settling write is the same number
// behind a mark.
const (
	wrWrite  = uint64(1) << 32
	wrRead   = uint64(2) << 32
	wrSettle = uint64(3) << 32
)

// newQueue makes the queue of a link that is up. Its receives are posted before
// either side sends.
func newQueue(p *peer, l *link) (*queue, error) {
	attr, err := l.qp.Query()
	if err != nil {
		return nil, err
	}
	q := &queue{peer: p, link: l, cross: l.dev.crossovers(), credits: queueRecvs,
		out: map[uint32]*queueOut{}, in: map[uint32]*queueIn{}, ends: map[uint32]*streamEnd{}, gated: map[uint32]*Handle{}, sges: make([]verbs.SGE, 0, chain*maxSGE)}
	limits := l.qp.Cap()
	q.writes = lane{limit: queueWrites, sges: min(l.dev.sges, limits.MaxSendSGE)}
	if l.dev.reads > 0 {
		q.reads = lane{read: true, limit: min(int(attr.MaxRdAtomic), queueReads), sges: min(l.dev.reads, limits.MaxSendSGE)}
	}
	if l.dev.rdma {
		q.inline = min(limits.MaxInlineData, inlineMost)
	}
	return q, nil
}

// tell sends a message without payload as soon as possible.
func (q *queue) tell(h header) {
	if e := q.ends[h.stream]; e != nil && e.told {
		return
	}
	if q.control = append(q.control, h); h.kind == queueEnd {
		q.telling++
	}
	q.flush()
}

// flush posts waiting work as far as there is room: first control messages, then transfers in
// progress, then eager messages.
func (q *queue) flush() {
	if q.failed {
		return
	}
	n := 0
	for n < len(q.control) && q.credits > reserve {
		more := q.control[n].more()
		i, b := q.buffer(more)
		if b == nil {
			break
		}
		q.post(q.control[n], more, i, b)
		if q.control[n].kind == queueEnd {
			q.telling--
		}
		n++
	}
	q.control = slices.Delete(q.control, 0, n)
	q.advance(&q.writes)
	q.advance(&q.reads)
	q.waiting = slices.DeleteFunc(q.waiting, func(s *queueOut) bool {
		n := 0
		for n < len(s.pending) && q.sendEager(s, s.pending[n]) {
			n++
		}
		s.pending = slices.Delete(s.pending, 0, n)
		return len(s.pending) == 0
	})
	if q.owed >= queueRecvs/2 && q.credits > 0 {
		if i, b := q.buffer(0); b != nil {
			q.post(header{kind: queueCredit}, 0, i, b)
		}
	}
	if q.outstanding.quiet > 0 && q.link.dev.sends.short.Load() {
		q.settle() // others wait for buffers
	}
}

func (q *queue) finish(h *Handle, p uint32, err error) {
	h.err = err
	h.end(p)
}

// further makes progress on a message, for any goroutine.
func (q *queue) further(h *Handle) {
	if q.progress(); q.peer.state.Load() < peerFailed {
		return
	}
	q.lock.Lock()
	defer q.lock.Unlock()
	if !q.failed {
		return
	}
	switch p := h.phase.Load(); {
	case p == phaseWaiting && !h.copying:
		q.forget(q.in[h.in.number], h)
		q.finish(h, phaseReceived, q.peer.opError("receive", h.in.number, h.k))
	case p == phasePending || p == phaseOffered:
		s := q.out[h.out.number]
		delete(s.offers, h.k)
		s.pending = slices.DeleteFunc(s.pending, func(o *Handle) bool { return o == h })
		q.finish(h, phaseFailed, q.peer.opError("send", s.number, h.k))
	}
}

// progress handles completions, and posts waiting work. It does nothing if another goroutine
// holds the lock.
func (q *queue) progress() {
	if !q.lock.TryLock() {
		return
	}
	q.polls++
	q.note()
	q.poll()
	q.lock.Unlock()
}

// poll handles completions. The caller holds the lock, which poll releases while it copies out
// of staging memory.
func (q *queue) poll() {
	q.pollAll()
	q.unstage()
	if q.untold > 0 && !q.failed {
		q.endStreams()
	}
}

func (q *queue) pollAll() {
	for !q.failed {
		n, err := q.link.cq.Poll(q.wcs[:])
		if err != nil {
			q.broken(err)
			return
		}
		if n == 0 {
			break
		}
		for i := range q.wcs[:n] {
			if wc := &q.wcs[i]; isReceive(wc) {
				q.link.again(int(wc.WRID)) // repost posts it, after it has been read
			}
		}
		for i := range q.wcs[:n] {
			if err := q.complete(&q.wcs[i]); err != nil {
				for j := range q.wcs[i:n] {
					q.over(&q.wcs[i+j])
				}
				q.broken(err)
				return
			}
		}
		if err := q.repost(); err != nil {
			q.broken(err)
			return
		}
		q.flush()
		if n < len(q.wcs) {
			break
		}
	}
	if len(q.writes.moving)+len(q.reads.moving)+len(q.control)+len(q.waiting) > 0 || q.outstanding.quiet > 0 && q.link.dev.sends.short.Load() {
		q.flush()
	}
}

func (q *queue) complete(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return q.link.explain(err)
	}
	if isReceive(wc) {
		return q.arrived(wc)
	}
	switch wc.WRID {
	case wrWrite:
		q.moved(&q.writes)
	case wrRead:
		q.moved(&q.reads)
	default:
		q.over(wc)
	}
	return nil
}

// arrived handles the completion of a receive.
func (q *queue) arrived(wc *verbs.WC) error {
	if wc.Opcode == verbs.WCRecvRDMAWithImm {
		return q.written(wc.Imm)
	}
	mr, at := q.link.place(int(wc.WRID))
	b := mr.Bytes()[at : at+int(wc.ByteLen)]
	h, err := parseHeader(b)
	if err != nil {
		return err
	}
	return q.arrive(h, b[headerSize:])
}

// repost posts receives again, and then owes the other side as many credits.
func (q *queue) repost() error {
	n := len(q.link.batch.wrs)
	if err := q.link.postRecvs(); err != nil {
		return err
	}
	q.owed += n
	return nil
}

// arrive handles a message of the other side.
func (q *queue) arrive(m header, payload []byte) error {
	if q.credits += int(m.credits); q.credits > queueRecvs {
		return fmt.Errorf("%w: %d credits for %d receives", ErrProtocol, q.credits, queueRecvs)
	}
	if m.kind == queueEnd {
		if e := q.ends[m.stream]; e != nil && e.heard {
			return fmt.Errorf("%w: stream %d ends twice", ErrProtocol, m.stream)
		}
		return q.arriveEnd(m.stream)
	}
	if e := q.ends[m.stream]; e != nil {
		if e.heard {
			return fmt.Errorf("%w: kind %d on stream %d, which has ended", ErrProtocol, m.kind, m.stream)
		}
		return nil // this side no longer uses it
	}
	switch m.kind {
	case queueEager:
		if o := q.out[m.stream]; o != nil {
			n := uint64(m.taken - uint32(o.taken))
			if n > o.ahead-o.taken {
				return fmt.Errorf("%w: %d more eager messages consumed, %d outstanding", ErrProtocol, n, o.ahead-o.taken)
			}
			o.taken += n
		}
		return q.arriveReceive(m, payload)
	case queueReady:
		return q.arriveReceive(m, payload)
	case queueCredit:
		return nil
	}
	s := q.outStream(m.stream)
	switch m.kind {
	case queueTaken:
		if m.k > s.ahead || m.k < s.taken {
			return fmt.Errorf("%w: %d eager messages consumed, %d sent", ErrProtocol, m.k, s.ahead)
		}
		s.taken = m.k
	case queueGate:
		return q.arriveGate(s, m)
	case queueDone:
		return q.arriveDone(s, m)
	case queueWrong:
		if m.k == 0 || m.k > s.next {
			return fmt.Errorf("%w: refusal of start %d, last start is %d", ErrProtocol, m.k, s.next)
		}
		err := &Error{Op: "send", Rank: q.peer.rank, Stream: int(s.number), Start: m.k, Other: lengthTold(m.length), Err: ErrLength}
		if s.failed[m.k] {
			delete(s.failed, m.k)
			return nil
		}
		if len(s.late) >= maxAhead {
			return fmt.Errorf("%w: more than %d refusals of completed sends", ErrProtocol, len(s.late))
		}
		delete(s.opened, m.k)
		if h := s.offers[m.k]; h != nil {
			if h.transfer.begun {
				return fmt.Errorf("%w: refusal of start %d, which is being written", ErrProtocol, m.k)
			}
			delete(s.offers, m.k)
			q.answered(s, h)
			err.Len = h.shape.Len()
			q.finish(h, phaseFailed, err)
			return nil
		}
		var ok bool
		if err.Len, ok = s.length(m.k); !ok {
			return fmt.Errorf("%w: refusal of start %d, which awaits none; last start is %d", ErrProtocol, m.k, s.next)
		}
		s.late = append(s.late, err)
	}
	return nil
}
