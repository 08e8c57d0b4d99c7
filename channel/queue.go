package channel

import (
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/verbs"
)

// A queue moves the messages of all streams between two ranks through a queue
// pair, where the memory of the other side cannot be loaded and stored.
//
// A message up to crossovers.eager bytes is sent behind a header and copied out by the
// receiver, at once or when its receive is started; a sender may be ahead by
// window such messages on each stream. A larger one goes straight from layout to
// layout: see transfer.
//
// Nothing here blocks: what cannot be posted yet waits, for credits (receives
// that the other side has posted) or for room in the send queue.
type queue struct {
	peer  *peer
	link  *link
	cross *crossovers

	lock   spinLock // also of the streams' parts below
	polls  uint64   // by users
	failed bool

	attended *attended // the same, as the engine sees it; nil before it does
	noted    bool      // the engine looks at it when it looks next
	watched  bool      // the engine will look within engineTick

	sent    sent
	inline  int      // bytes that a message may have to be sent inline, its header included
	credits int      // receives of the other side that we may use
	owed    int      // receives that have been posted since the other side was told
	control []header // to be sent
	waiting []*queueOut
	out     map[uint32]*queueOut
	in      map[uint32]*queueIn
	writes  lane
	reads   lane
	ends    map[uint32]*streamEnd           // streams that one side is through with
	untold  int                             // of them, which the other side has not been told of
	past    struct{ sent, received Counts } // of streams that are over
	gated   map[uint32]*Handle              // receives whose gate is open, by handle
	landed  []*Handle                       // receives that are written, and wait in staging memory
	spare   [][]byte                        // for eager messages that come early

	// Of one call each, here so that they are not allocated.
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
	// One credit is kept for telling the other side that it has credits again.
	reserve = 1
)

// queueOut is a stream to the other side.
type queueOut struct {
	number  uint32
	sent    counts
	next    uint64             // k of the last start
	ahead   uint64             // eager messages sent
	taken   uint64             // of them, taken by the other side
	pending []*Handle          // eager messages that wait
	offers  map[uint64]*Handle // larger messages that are not over
	opened  map[uint64]header  // gates of messages that are not offered, or whose layout is not known
	spoiled map[uint64]bool    // messages that will not come, until the other side has refused them

	declared bool               // handles have been declared on it
	ended    bool               // nothing can be started on it any more
	late     faults             // the next start returns one
	eager    [2 * window]length // of the last eager messages, for errors
}

// length is that of an eager message. The other side's verdict on one comes before
// the sender is more than window ahead of it: each takes a place of the window until
// the receiver has seen its length, and control messages come in order.
type length struct {
	k uint64
	n int
}

// length returns that of an eager message that the other side may yet refuse.
func (s *queueOut) length(k uint64) (int, bool) {
	i := slices.IndexFunc(s.eager[:], func(l length) bool { return l.k == k })
	if i < 0 {
		return 0, false
	}
	return s.eager[i].n, true
}

// queueIn is a stream from the other side.
type queueIn struct {
	number   uint32
	received counts
	next     uint64             // k of the last start
	started  map[uint64]*Handle // receives that are not over
	arrived  map[uint64][]byte  // eager messages whose receive is not started
	ready    map[uint64]header  // larger ones
	spoiled  map[uint64]bool    // receives that cannot be, until their messages have come
	consumed uint64             // eager messages taken
	told     uint64             // of them, that the other side knows of

	declared bool // handles have been declared on it
	unstaged int  // receives that are being copied out of staging memory
	ended    bool // what has not arrived will not
}

// Work request numbers: what a completion is of. That of a send is how many of the
// queue have been posted with it, modulo 2^32, and that of a settling write as many
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

// startSend begins a send.
func (q *queue) startSend(h *Handle) error {
	q.lock.lock()
	defer q.lock.unlock()
	s := q.out[h.out.number]
	staged := false
	if h.shape.length > q.cross.eager {
		q.poll() // the gate may be here
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

// adoptSend takes over a stream with what has been started on it.
func (q *queue) adoptSend(s *sendStream) {
	q.lock.lock()
	defer q.lock.unlock()
	s.lock.lock()
	defer s.lock.unlock()
	s.q.Store(q) // before anything is in a phase that belongs to the queue
	o := q.outStream(s.number)
	o.declared = true
	o.next, o.sent = s.next, s.sent
	for _, h := range s.pending {
		h.transfer = transfer{}
		q.send(o, h)
	}
	s.pending = nil
}

// adoptReceive takes over a stream with what has been started on it.
func (q *queue) adoptReceive(s *receiveStream) {
	q.lock.lock()
	defer q.lock.unlock()
	s.lock.lock()
	defer s.lock.unlock()
	s.q.Store(q)
	i := q.inStream(s.number)
	i.declared = true
	i.next = s.next
	for h := s.first; h != nil; h = s.first {
		s.unlink(h)
		q.await(i, h)
	}
}

// send sends a message, or says that it is ready, or has it wait.
func (q *queue) send(s *queueOut, h *Handle) {
	switch {
	case h.bindErr.Load() != nil:
		q.sendSpoiled(s, h)
	case h.shape.length > q.cross.eager:
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

// sendEager copies a message into a buffer and posts it; false if that has to wait.
func (q *queue) sendEager(s *queueOut, h *Handle) bool {
	if q.failed || s.ahead-s.taken >= window || len(q.control) > 0 || q.credits <= reserve {
		return false
	}
	n := h.shape.length
	i, b := q.buffer(n)
	if b == nil {
		return false
	}
	h.shape.gather(b[headerSize:headerSize+n], 0)
	s.eager[s.ahead%uint64(len(s.eager))] = length{h.k, n}
	s.ahead++
	s.sent.Eager++
	h.setPhase(phaseSent)
	m := header{kind: queueEager, stream: s.number, k: h.k, length: uint64(n)}
	if i := q.in[s.number]; i != nil {
		i.told = i.consumed
		m.taken = uint32(i.consumed)
	}
	q.post(m, n, i, b)
	return true
}

// tell sends a message without payload, as soon as that is possible.
func (q *queue) tell(h header) {
	if e := q.ends[h.stream]; e != nil && e.told {
		return
	}
	q.control = append(q.control, h)
	q.flush()
}

// flush posts what waits, as far as there is room: first control messages, then what
// is under way, then eager messages.
func (q *queue) flush() {
	if q.failed {
		return
	}
	n := 0
	for n < len(q.control) && q.credits > reserve {
		i, b := q.buffer(0)
		if b == nil {
			break
		}
		q.post(q.control[n], 0, i, b)
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
	if q.sent.quiet > 0 && q.link.dev.sends.short.Load() {
		q.settle() // others wait for buffers
	}
}

// startReceive begins a receive.
func (q *queue) startReceive(h *Handle) error {
	q.lock.lock()
	defer q.lock.unlock()
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

// await takes a message that is here, or begins to read it, or opens the gate for
// it.
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
		q.awaitSpoiled(s, h)
		return
	}
	s.started[h.k] = h
	r, ready := s.ready[h.k]
	delete(s.ready, h.k)
	switch {
	case ready && r.length != uint64(h.shape.length):
		q.refuse(s, h, lengthTold(r.length))
	case h.shape.length > q.cross.eager && !(ready && q.fetch(h, r)):
		q.openGate(s, h)
	}
}

// takeEager receives an eager message.
func (q *queue) takeEager(s *queueIn, h *Handle, b []byte) {
	q.consume(s)
	if len(b) != h.shape.length {
		q.refuse(s, h, len(b))
		return
	}
	h.shape.scatter(b, 0)
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

// refuse ends a receive whose message has n bytes, a wrong number.
func (q *queue) refuse(s *queueIn, h *Handle, n int) {
	q.forget(s, h)
	q.tell(header{kind: queueWrong, stream: s.number, k: h.k, length: uint64(h.shape.length)})
	q.finish(h, phaseReceived, h.lengthError(n))
}

func (q *queue) finish(h *Handle, p uint32, err error) {
	h.err = err
	h.setPhase(p)
}

// testSend moves a send on and says whether it is over.
func (q *queue) testSend(h *Handle) (bool, error) {
	if p := h.phase.Load(); p == phasePending || p == phaseOffered {
		q.progress()
	}
	switch h.phase.Load() {
	case phaseSent:
		q.lock.lock()
		defer q.lock.unlock()
		return true, q.out[h.out.number].late.take(h.k)
	case phaseFailed:
		return true, h.err
	}
	if q.peer.state.Load() < peerFailed {
		return false, nil
	}
	q.lock.lock()
	defer q.lock.unlock()
	if p := h.phase.Load(); q.failed && (p == phasePending || p == phaseOffered) {
		s := q.out[h.out.number]
		delete(s.offers, h.k)
		s.pending = slices.DeleteFunc(s.pending, func(o *Handle) bool { return o == h })
		return true, q.peer.opError("send", s.number, h.k)
	}
	return false, nil
}

// testReceive moves a receive on and says whether it is over.
func (q *queue) testReceive(h *Handle) (bool, error) {
	q.progress()
	if h.phase.Load() == phaseReceived {
		return true, h.err
	}
	if q.peer.state.Load() < peerFailed {
		return false, nil
	}
	q.lock.lock()
	defer q.lock.unlock()
	if q.failed && h.phase.Load() == phaseWaiting && !h.copying {
		q.forget(q.in[h.in.number], h)
		return true, q.peer.opError("receive", h.in.number, h.k)
	}
	return false, nil
}

// progress handles what has completed, and posts what waits. It does nothing if
// somebody else does it.
func (q *queue) progress() {
	if !q.lock.tryLock() {
		return
	}
	q.polls++
	q.note()
	q.poll()
	q.lock.unlock()
}

// poll handles what has completed. The caller holds the lock, which poll lets go of
// while it copies what has landed.
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
				q.link.again(int(wc.WRID)) // by repost, when it has been read
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
	if len(q.writes.moving)+len(q.reads.moving)+len(q.control)+len(q.waiting) > 0 || q.sent.quiet > 0 && q.link.dev.sends.short.Load() {
		q.flush()
	}
}

func (q *queue) complete(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return err
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

// arrived handles a receive.
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
		return nil // nobody here uses it any more
	}
	switch m.kind {
	case queueEager:
		if o := q.out[m.stream]; o != nil {
			n := uint64(m.taken - uint32(o.taken))
			if n > o.ahead-o.taken {
				return fmt.Errorf("%w: %d more messages taken of %d", ErrProtocol, n, o.ahead-o.taken)
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
			return fmt.Errorf("%w: %d messages taken of %d", ErrProtocol, m.k, s.ahead)
		}
		s.taken = m.k
	case queueGate:
		return q.arriveGate(s, m)
	case queueDone:
		return q.arriveDone(s, m)
	case queueWrong:
		if m.k == 0 || m.k > s.next {
			return fmt.Errorf("%w: verdict on start %d of %d", ErrProtocol, m.k, s.next)
		}
		err := &Error{Op: "send", Rank: q.peer.rank, Stream: int(s.number), Start: m.k, Other: lengthTold(m.length), Err: ErrLength}
		if s.spoiled[m.k] {
			delete(s.spoiled, m.k)
			return nil
		}
		if len(s.late) >= maxAhead {
			return fmt.Errorf("%w: %d verdicts that nobody has asked for", ErrProtocol, len(s.late))
		}
		delete(s.opened, m.k)
		if h := s.offers[m.k]; h != nil {
			if h.transfer.begun {
				return fmt.Errorf("%w: verdict on start %d, which is being written", ErrProtocol, m.k)
			}
			delete(s.offers, m.k)
			err.Len = h.shape.length
			q.finish(h, phaseFailed, err)
			return nil
		}
		var ok bool
		if err.Len, ok = s.length(m.k); !ok {
			return fmt.Errorf("%w: verdict on start %d of %d, which does not wait for one", ErrProtocol, m.k, s.next)
		}
		s.late = append(s.late, err)
	}
	return nil
}

// maxAhead bounds what one side may tell of starts that the other has not made.
const maxAhead = 1 << 16

func (q *queue) arriveReceive(m header, payload []byte) error {
	s := q.inStream(m.stream)
	h := s.started[m.k]
	if s.spoiled[m.k] {
		if m.kind == queueEager {
			q.consume(s)
		}
		q.refuseSpoiled(s, m.k)
		return nil
	}
	switch {
	case m.k == 0 || m.k <= s.next && h == nil:
		return fmt.Errorf("%w: kind %d for start %d of %d", ErrProtocol, m.kind, m.k, s.next)
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
	case m.length != uint64(h.shape.length):
		q.refuse(s, h, lengthTold(m.length))
	}
	return nil
}

// outStream and inStream return streams, made if need be: the other side may be
// the first to use one.
func (q *queue) outStream(number uint32) *queueOut {
	s := q.out[number]
	if s == nil {
		s = &queueOut{number: number, ended: q.deaf(number), offers: map[uint64]*Handle{}, opened: map[uint64]header{}, spoiled: map[uint64]bool{}}
		q.out[number] = s
	}
	return s
}

func (q *queue) inStream(number uint32) *queueIn {
	s := q.in[number]
	if s == nil {
		s = &queueIn{number: number, ended: q.deaf(number), started: map[uint64]*Handle{}, arrived: map[uint64][]byte{}, ready: map[uint64]header{}, spoiled: map[uint64]bool{}}
		q.in[number] = s
	}
	return s
}

// deaf says whether the other side is through with a stream.
func (q *queue) deaf(number uint32) bool {
	e := q.ends[number]
	return e != nil && e.heard
}

// broken ends the queue and the peer. The QP leaves RTS first, so that nobody
// reads or writes our memory any more when the operations end.
func (q *queue) broken(err error) {
	if q.failed {
		return
	}
	q.cut()
	q.peer.node.wg.Go(func() { q.peer.lost(err) })
}

func (q *queue) cut() {
	q.failed = true
	if err := q.link.qp.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState); err != nil {
		q.peer.node.log.Warn("channel: queue pair not stopped", "peer", q.peer.rank, "error", err)
	}
	if q.sent.posted != q.sent.done && !q.sent.settling {
		if err := q.mark(); err != nil {
			q.peer.node.log.Info("channel: sends not given back", "peer", q.peer.rank, "error", err)
		}
	}
	q.drain()
	q.note()
	q.link.dev.kick()
}

// drain gives back what the queue pair, which is in ERR, has taken from the pools.
func (q *queue) drain() {
	if err := q.link.drain(q.over); err != nil {
		q.peer.node.log.Info("channel: receives not given back", "peer", q.peer.rank, "error", err)
	}
}

// end receives what has come and cuts the connection: the peer has left or died.
func (q *queue) end() {
	q.lock.lock()
	defer q.lock.unlock()
	if !q.failed {
		q.poll()
	}
	if !q.failed {
		q.cut()
	}
}

// drained says whether everything that is complete here, or has been begun, has
// reached the other side.
func (q *queue) drained() bool {
	q.lock.lock()
	defer q.lock.unlock()
	q.poll()
	moving := len(q.writes.moving) + len(q.writes.posted) + len(q.reads.moving) + len(q.reads.posted)
	q.settle()
	return q.failed || moving+len(q.control) == 0 && q.sent.posted == q.sent.done
}
