package channel

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/sluice-hpc/sluice/verbs"
)

// A queue moves the messages of all streams between two ranks through a queue
// pair, where the memory of the other side cannot be loaded and stored.
//
// A message up to eagerQueued bytes is sent behind a header and copied out by the
// receiver, at once or when its receive is started; a sender may be ahead by
// window such messages on each stream. For a larger one the receiver opens its
// gate: it tells where its memory is, and the sender writes there.
//
//	sender                               receiver
//	  ready: k, length               ──▶
//	                                 ◀── gate: k, length, handle
//	  RDMA_WRITE ... RDMA_WRITE, done: k ──▶
//
// Nothing here blocks: what cannot be posted yet waits, for credits (receives
// that the other side has posted) or for room in the send queue.
type queue struct {
	peer *peer
	link *link

	lock   spinLock // also of the streams' parts below
	polls  uint64   // by users
	failed bool

	recvs, sends *verbs.MR // buffers of one message each
	free         []int     // of sends
	room         int       // in the send queue
	credits      int       // receives of the other side that we may use
	owed         int       // receives that have been posted since the other side was told
	control      []header  // to be sent
	moving       []*Handle // whose writes are not all posted
	writes       []int     // bytes of the writes that are posted, oldest first
	flying       int       // their sum
	waiting      []*queueOut
	out          map[uint32]*queueOut
	in           map[uint32]*queueIn

	// Of one call each, here so that they are not allocated.
	wcs  [64]verbs.WC
	sges []verbs.SGE
	wr   [1]verbs.SendWR
}

const (
	// eagerQueued is the largest message that is copied at both ends.
	eagerQueued = 4 << 10
	// window is how many eager messages of a stream may wait for their receives.
	window = 32

	queueRecvs  = 128 // receives posted
	queueSends  = 128 // buffers for sends
	queueWrites = 256 // RDMA_WRITEs outstanding
	headerSize  = 32
	bufferSize  = headerSize + eagerQueued
	// One credit is kept for telling the other side that it has credits again.
	reserve = 1
)

// header begins every message of a queue.
type header struct {
	kind               queueKind
	credits            uint16 // that the sender of the header gives back
	stream             uint32
	k                  uint64
	length             uint64
	handle, generation uint32
}

type queueKind uint8

const (
	queueEager  queueKind = 1 + iota // payload of length bytes follows
	queueReady                       // a message of length bytes waits for the gate
	queueGate                        // write a message of length bytes to the layout of handle
	queueDone                        // the message has been written
	queueWrong                       // the length of the message was wrong; length is that of the receive
	queueTaken                       // k eager messages of the stream have been taken
	queueCredit                      // nothing but credits
	queueKinds
)

func (h *header) put(b []byte) {
	b[0], b[1] = byte(h.kind), 0
	binary.BigEndian.PutUint16(b[2:], h.credits)
	binary.BigEndian.PutUint32(b[4:], h.stream)
	binary.BigEndian.PutUint64(b[8:], h.k)
	binary.BigEndian.PutUint64(b[16:], h.length)
	binary.BigEndian.PutUint32(b[24:], h.handle)
	binary.BigEndian.PutUint32(b[28:], h.generation)
}

// parseHeader checks what can be checked of a message of n bytes by itself.
func parseHeader(b []byte) (header, error) {
	if len(b) < headerSize {
		return header{}, fmt.Errorf("%w: message of %d bytes", ErrProtocol, len(b))
	}
	h := header{
		kind:       queueKind(b[0]),
		credits:    binary.BigEndian.Uint16(b[2:]),
		stream:     binary.BigEndian.Uint32(b[4:]),
		k:          binary.BigEndian.Uint64(b[8:]),
		length:     binary.BigEndian.Uint64(b[16:]),
		handle:     binary.BigEndian.Uint32(b[24:]),
		generation: binary.BigEndian.Uint32(b[28:]),
	}
	payload := uint64(len(b) - headerSize)
	switch {
	case h.kind == 0 || h.kind >= queueKinds || b[1] != 0,
		h.kind == queueEager && h.length != payload, h.kind != queueEager && payload != 0,
		h.stream > MaxStream, h.credits > queueRecvs:
		return h, fmt.Errorf("%w: message of kind %d on stream %d with %d bytes and %d credits", ErrProtocol, b[0], h.stream, payload, h.credits)
	}
	return h, nil
}

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
	late    faults             // the next start returns one
	sizes   [window]int        // of the last starts, for errors
}

// queueIn is a stream from the other side.
type queueIn struct {
	number   uint32
	received counts
	next     uint64             // k of the last start
	started  map[uint64]*Handle // receives that are not over
	arrived  map[uint64][]byte  // eager messages whose receive is not started
	ready    map[uint64]header  // larger ones
	consumed uint64             // eager messages taken
	told     uint64             // of them, that the other side knows of
}

// Work request numbers: what a completion is of.
const (
	wrSend  = uint64(1) << 32 // + number of the buffer
	wrDone  = uint64(2) << 32 // + number of the buffer: of a queueDone
	wrWrite = uint64(3) << 32
)

// newQueue makes the queue of a link that is up. Its receives are posted before
// either side sends.
func newQueue(p *peer, l *link) *queue {
	return &queue{peer: p, link: l, recvs: l.recvs, sends: l.sends, free: l.free, room: queueSends + queueWrites,
		credits: queueRecvs, out: map[uint32]*queueOut{}, in: map[uint32]*queueIn{}}
}

// postRecvs posts the receive buffers from number first on.
func (l *link) postRecvs(first, n int) error {
	for i := range n {
		sge := &l.recvSGEs[i]
		*sge = l.recvs.SGE((first+i)*bufferSize, bufferSize)
		l.recvWRs[i] = verbs.RecvWR{WRID: uint64(first + i), SGList: l.recvSGEs[i : i+1]}
	}
	m, err := l.qp.PostRecv(l.recvWRs[:n])
	if err == nil && m < n {
		err = fmt.Errorf("%d of %d receives taken", m, n)
	}
	return err
}

// startSend begins a send.
func (q *queue) startSend(h *Handle) error {
	q.lock.lock()
	defer q.lock.unlock()
	s := q.out[h.out.number]
	if err := s.late.take(0); err != nil {
		return err
	}
	if q.peer.state.Load() >= peerFailed {
		return q.peer.opError("send", s.number, 0)
	}
	s.next++
	h.begin(s.next)
	s.sent.add(h)
	s.sizes[h.k%window] = h.shape.length
	q.offer(s, h)
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
	o.next, o.sent = s.next, s.sent
	for _, h := range s.pending {
		o.sizes[h.k%window] = h.shape.length
		q.offer(o, h)
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
	i.next = s.next
	for h := s.first; h != nil; h = s.first {
		s.unlink(h)
		q.await(i, h)
	}
}

// offer sends a message, or says that it is ready, or has it wait.
func (q *queue) offer(s *queueOut, h *Handle) {
	switch {
	case h.shape.length > eagerQueued:
		h.setPhase(phaseOffered)
		h.transfer = transfer{}
		s.offers[h.k] = h
		q.tell(header{kind: queueReady, stream: s.number, k: h.k, length: uint64(h.shape.length), handle: h.id, generation: h.generation})
		if g, ok := s.opened[h.k]; ok {
			delete(s.opened, h.k)
			q.open(h, g)
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
	if q.failed || s.ahead-s.taken >= window || len(q.control) > 0 || q.credits <= reserve || len(q.free) == 0 || q.room == 0 {
		return false
	}
	n := h.shape.length
	b := q.buffer()
	h.shape.gather(b[headerSize:headerSize+n], 0)
	s.ahead++
	s.sent.Eager++
	h.setPhase(phaseSent)
	q.post(header{kind: queueEager, stream: s.number, k: h.k, length: uint64(n)}, n, wrSend)
	return true
}

// buffer is the send buffer that post will use.
func (q *queue) buffer() []byte {
	i := q.free[len(q.free)-1]
	return q.sends.Bytes()[i*bufferSize : (i+1)*bufferSize]
}

// post sends a buffer whose payload of n bytes is in place. There are a credit, a
// buffer and room.
func (q *queue) post(h header, n int, id uint64) {
	i := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	q.room--
	q.credits--
	h.credits = uint16(q.owed)
	q.owed = 0
	h.put(q.sends.Bytes()[i*bufferSize:])
	q.sges = append(q.sges[:0], q.sends.SGE(i*bufferSize, headerSize+n))
	q.wr[0] = verbs.SendWR{WRID: id + uint64(i), SGList: q.sges, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	if m, err := q.link.qp.PostSend(q.wr[:]); err != nil || m < 1 {
		q.broken(fmt.Errorf("post send: %d of 1 taken: %w", m, err))
	}
}

// tell sends a message without payload, as soon as that is possible.
func (q *queue) tell(h header) {
	q.control = append(q.control, h)
	q.flush()
}

// flush posts what waits, as far as there is room: first the writes that are under
// way, then control messages, then eager messages.
func (q *queue) flush() {
	if q.failed {
		return
	}
	for len(q.moving) > 0 && q.write(q.moving[0]) {
		q.moving = slices.Delete(q.moving, 0, 1)
	}
	n := 0
	for n < len(q.control) && len(q.free) > 0 && q.room > 0 && q.credits > reserve {
		c := q.control[n]
		id := wrSend
		if c.kind == queueDone {
			id = wrDone
			q.link.done[q.free[len(q.free)-1]] = c
		}
		q.post(c, 0, id)
		n++
	}
	q.control = slices.Delete(q.control, 0, n)
	q.waiting = slices.DeleteFunc(q.waiting, func(s *queueOut) bool {
		n := 0
		for n < len(s.pending) && q.sendEager(s, s.pending[n]) {
			n++
		}
		s.pending = slices.Delete(s.pending, 0, n)
		return len(s.pending) == 0
	})
	if q.owed >= queueRecvs/2 && len(q.free) > 0 && q.room > 0 && q.credits > 0 {
		q.post(header{kind: queueCredit}, 0, wrSend)
	}
}

// open begins to write a message to where the receiver says, or leaves it to the
// receiver to say that the lengths differ.
func (q *queue) open(h *Handle, g header) {
	if g.length != uint64(h.shape.length) {
		return
	}
	l := q.peer.remoteInfo(g.handle, g.generation)
	if l != nil && l.length() != h.shape.length {
		go q.peer.fail(fmt.Errorf("%w: gate for %d bytes in the layout of handle %d, which has %d", ErrProtocol, g.length, g.handle, l.length()))
		return
	}
	if l == nil {
		s := q.out[h.out.number]
		s.opened[h.k] = g // the layout is on its way, over the control connection
		return
	}
	if h.staging != nil {
		h.shape.gather(h.staging.Bytes()[:h.shape.length], 0)
	}
	h.transfer = transfer{to: l, active: true}
	// Behind what is under way and those of no less priority.
	i := 0
	for i < len(q.moving) && (q.moving[i].priority >= h.priority || q.moving[i].transfer.moved > 0) {
		i++
	}
	q.moving = slices.Insert(q.moving, i, h)
	q.flush()
}

// transfer is how far the writing of a message has come.
type transfer struct {
	active      bool
	to          *layoutInfo
	part, block int // of to
	within      int
	moved       int // bytes
}

// write posts the writes of a message and its queueDone; false if there is no room
// for all of them.
func (q *queue) write(h *Handle) bool {
	t := &h.transfer
	src := &h.source
	for t.moved < h.shape.length {
		if q.room <= queueSends || q.flying >= flyingMax {
			return false
		}
		p := &t.to.parts[t.part]
		r := t.to.regions[p.region]
		addr := r.addr + uint64(p.off+t.block*p.stride+t.within)
		n := min(p.block-t.within, maxWrite)
		q.sges = q.sges[:0]
		got := 0
		at := src.seek(t.moved)
		for got < n && len(q.sges) < q.link.dev.sges {
			part := at.part
			b := src.next(&at, n-got)
			q.sges = append(q.sges, verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Length: uint32(len(b)), LKey: h.lkeys[part]})
			got += len(b)
		}
		q.wr[0] = verbs.SendWR{WRID: wrWrite, SGList: q.sges, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RKey: r.rkey, RemoteAddr: addr}
		q.room--
		if m, err := q.link.qp.PostSend(q.wr[:]); err != nil || m < 1 {
			q.broken(fmt.Errorf("post write: %d of 1 taken: %w", m, err))
			return true
		}
		q.writes = append(q.writes, got)
		q.flying += got
		t.moved += got
		if t.within += got; t.within == p.block {
			t.within = 0
			if t.block++; t.block == p.count {
				t.block = 0
				t.part++
			}
		}
	}
	t.active = false
	q.control = append(q.control, header{kind: queueDone, stream: h.out.number, k: h.k, length: uint64(h.shape.length)})
	return true
}

// maxWrite is the most bytes of one RDMA_WRITE, flyingMax about those of all that
// are posted: what a message of higher priority may have to wait for.
const (
	maxWrite  = 1 << 20
	flyingMax = 4 << 20
)

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
		delete(s.started, h.k)
		h.setPhase(phaseIdle)
		return q.peer.opError("receive", s.number, 0)
	}
	return nil
}

// await takes a message that is here, or opens the gate for it.
func (q *queue) await(s *queueIn, h *Handle) {
	if b, ok := s.arrived[h.k]; ok {
		delete(s.arrived, h.k)
		q.takeEager(s, h, b)
		return
	}
	if r, ok := s.ready[h.k]; ok {
		delete(s.ready, h.k)
		if r.length != uint64(h.shape.length) {
			q.refuse(s, h, int(r.length))
			return
		}
	}
	s.started[h.k] = h
	if h.shape.length > eagerQueued {
		q.tell(header{kind: queueGate, stream: s.number, k: h.k, length: uint64(h.shape.length), handle: h.id, generation: h.generation})
	}
}

// takeEager receives an eager message.
func (q *queue) takeEager(s *queueIn, h *Handle, b []byte) {
	if s.consumed++; s.consumed-s.told >= window/2 {
		s.told = s.consumed
		q.tell(header{kind: queueTaken, stream: s.number, k: s.consumed})
	}
	if len(b) != h.shape.length {
		q.refuse(s, h, len(b))
		return
	}
	h.shape.scatter(b, 0)
	s.received.add(h)
	s.received.Eager++
	q.finish(h, phaseReceived, nil)
}

// refuse ends a receive whose message has n bytes, a wrong number.
func (q *queue) refuse(s *queueIn, h *Handle, n int) {
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
	if q.failed && h.phase.Load() == phaseWaiting {
		delete(q.in[h.in.number].started, h.k)
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
	q.poll()
	q.lock.unlock()
}

func (q *queue) poll() {
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
			if err := q.complete(&q.wcs[i]); err != nil {
				q.broken(err)
				return
			}
		}
		q.flush()
		if n < len(q.wcs) {
			break
		}
	}
	if len(q.moving) > 0 || len(q.control) > 0 || len(q.waiting) > 0 {
		q.flush()
	}
	q.retryGates()
}

// retryGates looks whether layouts have come that gates were waiting for.
func (q *queue) retryGates() {
	for _, s := range q.out {
		for k, g := range s.opened {
			if h := s.offers[k]; h != nil && !h.transfer.active {
				delete(s.opened, k)
				q.open(h, g)
			}
		}
	}
}

func (q *queue) complete(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	if wc.Opcode == verbs.WCRecv {
		i := int(wc.WRID)
		b := q.recvs.Bytes()[i*bufferSize:]
		h, err := parseHeader(b[:wc.ByteLen])
		if err == nil {
			err = q.arrive(h, b[headerSize:wc.ByteLen])
		}
		if err != nil {
			return err
		}
		if err := q.link.postRecvs(i, 1); err != nil {
			return err
		}
		q.owed++
		return nil
	}
	q.room++
	i := int(uint32(wc.WRID))
	switch wc.WRID &^ (1<<32 - 1) {
	case wrSend:
		q.free = append(q.free, i)
	case wrDone:
		q.free = append(q.free, i)
		d := q.link.done[i]
		s := q.out[d.stream]
		if h := s.offers[d.k]; h != nil {
			delete(s.offers, d.k)
			q.finish(h, phaseSent, nil)
		}
	case wrWrite:
		q.flying -= q.writes[0]
		q.writes = slices.Delete(q.writes, 0, 1)
	}
	return nil
}

// arrive handles a message of the other side.
func (q *queue) arrive(m header, payload []byte) error {
	if q.credits += int(m.credits); q.credits > queueRecvs {
		return fmt.Errorf("%w: %d credits for %d receives", ErrProtocol, q.credits, queueRecvs)
	}
	switch m.kind {
	case queueEager, queueReady, queueDone:
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
		switch h := s.offers[m.k]; {
		case h != nil && !h.transfer.active && h.transfer.moved == 0:
			q.open(h, m)
		case m.k > s.next:
			if len(s.opened) >= maxAhead {
				return fmt.Errorf("%w: more than %d gates open", ErrProtocol, maxAhead)
			}
			s.opened[m.k] = m
		}
	case queueWrong:
		if m.k == 0 || m.k > s.next {
			return fmt.Errorf("%w: verdict on start %d of %d", ErrProtocol, m.k, s.next)
		}
		err := &Error{Op: "send", Rank: q.peer.rank, Stream: int(s.number), Start: m.k, Other: int(min(m.length, 1<<62)), Err: ErrLength}
		if h := s.offers[m.k]; h != nil && (h.transfer.active || h.transfer.moved > 0) || len(s.late) >= maxAhead {
			return fmt.Errorf("%w: verdict on start %d, which is not open to one", ErrProtocol, m.k)
		}
		delete(s.opened, m.k)
		if h := s.offers[m.k]; h != nil {
			delete(s.offers, m.k)
			err.Len = h.shape.length
			q.finish(h, phaseFailed, err)
			return nil
		}
		err.Len = s.sizes[m.k%window]
		s.late = append(s.late, err)
	}
	return nil
}

// maxAhead bounds what one side may tell of starts that the other has not made.
const maxAhead = 1 << 16

func (q *queue) arriveReceive(m header, payload []byte) error {
	s := q.inStream(m.stream)
	h := s.started[m.k]
	switch {
	case m.k == 0 || m.k <= s.next && h == nil:
		return fmt.Errorf("%w: kind %d for start %d of %d", ErrProtocol, m.kind, m.k, s.next)
	case m.kind == queueEager && h != nil:
		delete(s.started, m.k)
		q.takeEager(s, h, payload)
	case m.kind == queueEager:
		if len(s.arrived) >= window {
			return fmt.Errorf("%w: more than %d messages ahead", ErrProtocol, window)
		}
		s.arrived[m.k] = slices.Clone(payload)
	case m.kind == queueReady && h != nil:
		if m.length != uint64(h.shape.length) {
			delete(s.started, m.k)
			q.refuse(s, h, int(min(m.length, 1<<62)))
		}
	case m.kind == queueReady:
		if len(s.ready) >= maxAhead {
			return fmt.Errorf("%w: more than %d messages ready", ErrProtocol, maxAhead)
		}
		s.ready[m.k] = m
	case h == nil || h.shape.length <= eagerQueued || m.length != uint64(h.shape.length):
		return fmt.Errorf("%w: start %d done, which was not open", ErrProtocol, m.k)
	default:
		delete(s.started, m.k)
		if h.staging != nil {
			h.shape.scatter(h.staging.Bytes()[:h.shape.length], 0)
		}
		s.received.add(h)
		q.finish(h, phaseReceived, nil)
	}
	return nil
}

// outStream and inStream return streams, made if need be: the other side may be
// the first to use one.
func (q *queue) outStream(number uint32) *queueOut {
	s := q.out[number]
	if s == nil {
		s = &queueOut{number: number, offers: map[uint64]*Handle{}, opened: map[uint64]header{}}
		q.out[number] = s
	}
	return s
}

func (q *queue) inStream(number uint32) *queueIn {
	s := q.in[number]
	if s == nil {
		s = &queueIn{number: number, started: map[uint64]*Handle{}, arrived: map[uint64][]byte{}, ready: map[uint64]header{}}
		q.in[number] = s
	}
	return s
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
	return q.failed || len(q.control)+len(q.moving)+len(q.writes) == 0 && len(q.free) == queueSends
}
