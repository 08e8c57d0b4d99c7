package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// Parameters of writing, in bytes.
const (
	// stageSize is the size of the buffer for headers, and for payloads that are copied
	// behind them.
	stageSize = 32 << 10
	// copyMax is the largest piece of payload that is copied to the stage, so that many
	// small messages are sent from one piece of memory; larger ones are sent from user
	// memory. Copying 4 KiB costs as much as an iovec (0.1 µs).
	copyMax = 4 << 10
	// batchMax ends a batch: more urgent frames may overtake what follows it. With half
	// of it, streams of 1 MiB are 7 % slower.
	batchMax = 1 << 20
	maxSegs  = 32
	maxBufs  = 64
)

// tx is the writing side of a connection. It makes a batch of frames, and the next batch
// when the transport has accepted all of it. Requests wait in the QP's send queue until
// then, so a more urgent frame, a response or a control frame, never waits for more than one
// batch.
type tx struct {
	stage  []byte
	staged int // end of what is used
	segs   [maxSegs]seg
	first  int // segs[first:end] are not sent yet
	end    int
	bufs   [maxBufs][]byte

	control uint32 // kinds to be sent, as bits 1<<kind: START, RNR, READY, RESUME
	rnrMSN  uint32 // the request that RNR refers to
	last    kind   // phaseClosing: DOWN or BYE, to be sent after everything; 0: was sent
	blocked bool   // the transport had no room, or the budget was spent
	dead    bool   // writing failed: the reading side will find out why

	// Requests.
	cur       *soft.SendEntry // begun, and not all of its frames are made
	faulty    *soft.SendEntry // its memory was deregistered meanwhile: fails when its turn comes
	next      uint32          // msn of the next request to be sent
	started   uint32          // msn of the next that was never sent; those before it are resends
	acked     uint32          // requests that the peer is known to have executed
	reads     int             // RDMA_READs and atomics without a complete response
	peerReads int             // RDMA_READs and atomics that the peer executes at once
	paused    bool            // the peer has no receive: until READY
	turn      bool            // the next frame is a response, if there is one

	answers ring
}

// seg is a piece of a batch.
type seg struct {
	kind  segKind
	trail bool // the byte after it, the first of the next seg, says whether it is void
	n     int  // bytes not sent yet
	off   uint64
	entry *soft.SendEntry // segSend
	rkey  uint32          // segAnswer
	msn   uint32          // segAnswer
}

// segKind says where the bytes are, and what off means.
type segKind uint8

const (
	segStage  segKind = iota // in the stage, at off
	segSend                  // in the message of entry, at off
	segAnswer                // in the region of rkey, at the address off
	segZero                  // gone: zeros, declared void by the trailer
)

// answer is a response to the peer: bytes of an RDMA_READ, the result of an atomic, or a
// refusal, which is always the last.
type answer struct {
	kind   answerKind
	msn    uint32
	rkey   uint32
	total  uint32
	off    uint32 // bytes that frames have been made of
	addr   uint64
	old    uint64         // answerAtomic
	status verbs.WCStatus // answerNak
}

type answerKind uint8

const (
	answerRead answerKind = iota
	answerAtomic
	answerNak
)

// ring holds the responses, oldest first.
type ring struct {
	ents []answer
	head int
	n    int
}

// limit is the number of responses to reads and atomics; a refusal always has room.
func (r *ring) limit() int { return len(r.ents) - 1 }

// front returns the oldest; it stays valid until pop.
func (r *ring) front() *answer { return &r.ents[r.head] }

func (r *ring) pop() {
	r.head = (r.head + 1) % len(r.ents)
	r.n--
}

func (r *ring) push(a answer) {
	r.ents[(r.head+r.n)%len(r.ents)] = a
	r.n++
}

// zeros replace memory that was deregistered while a frame of it was being sent.
var zeros [64 << 10]byte

// transmit writes what it can. With flush, acknowledgements that wait for a frame to carry
// them are sent on their own.
func (c *conn) transmit(s *soft.Sink, flush bool) {
	t := &c.tx
	for budget := writeBudget; c.phase <= phaseClosing && !t.dead; {
		if t.first == t.end {
			c.fill(s, flush)
			if t.first == t.end {
				if c.failFaulty(s) {
					continue
				}
				t.blocked = false
				if c.phase == phaseClosing {
					c.phase = phaseDraining
					c.tr.shutdown()
				}
				return
			}
		}
		if budget <= 0 {
			t.blocked = true
			return
		}
		bufs := c.outgoing(s)
		n, err := c.tr.writev(bufs)
		if err == errAgain {
			t.blocked = true
			return
		}
		if err != nil {
			c.cannotWrite(s, err)
			return
		}
		t.sent(n)
		budget -= n
	}
	t.blocked = false
}

// cannotWrite: the connection is broken. What the peer sent before still counts, so the
// reading side ends it.
func (c *conn) cannotWrite(s *soft.Sink, err error) {
	c.tx.dead, c.tx.blocked = true, false
	if c.rx.stalled {
		c.unstall()
		c.rx.drop = dropForever
	}
	for c.phase == phaseOpen && c.receive(s) {
	}
	c.lost(s, fmt.Errorf("write: %w", err))
}

// errGone: the peer's end of the connection is closed.
var errGone = errors.New("connection closed by the peer")

// errDown: the peer's QP is in ERR.
var errDown = errors.New("the peer's queue pair is in ERR")

// sent removes n bytes from the front of the batch.
func (t *tx) sent(n int) {
	for n > 0 {
		g := &t.segs[t.first]
		m := min(n, g.n)
		g.n -= m
		g.off += uint64(m)
		n -= m
		if g.n == 0 {
			t.first++
		}
	}
}

// outgoing returns as much of the batch as fits, as slices of memory. It looks user memory
// up each time; memory deregistered since becomes zeros.
func (c *conn) outgoing(s *soft.Sink) [][]byte {
	t := &c.tx
	out := t.bufs[:0]
	for i := t.first; i < t.end && len(out) < maxBufs; i++ {
		g := &t.segs[i]
		before := len(out)
		fault := soft.OK
		switch g.kind {
		case segStage:
			out = append(out, t.stage[g.off:g.off+uint64(g.n)])
			continue
		case segSend:
			out, fault = pieces(out, c.a.mrs, c.q.PD, g.entry.SGEs, g.off, uint64(g.n), 0)
		case segAnswer:
			var m *soft.MR
			if m, fault = c.a.mrs.Lookup(c.q.PD, g.rkey, g.off, uint64(g.n), verbs.AccessRemoteRead); fault == soft.OK {
				out = append(out, m.Slice(g.off, g.n))
			}
		}
		if fault == soft.OK && g.kind != segZero {
			continue
		}
		if fault != soft.OK {
			out = out[:before]
			c.void(s, i)
		}
		for n := t.segs[i].n; n > 0 && len(out) < maxBufs; {
			b := zeros[:min(n, len(zeros))]
			out = append(out, b)
			n -= len(b)
		}
	}
	return out
}

// pieces appends to out, within its capacity, the n bytes at offset off of the memory that
// sges describe.
func pieces(out [][]byte, mrs *soft.MRTable, pd *soft.PD, sges []verbs.SGE, off, n uint64, need verbs.AccessFlags) ([][]byte, soft.Fault) {
	for i := range sges {
		e := &sges[i]
		if off >= uint64(e.Length) {
			off -= uint64(e.Length)
			continue
		}
		if n == 0 || len(out) == cap(out) {
			return out, soft.OK
		}
		m, f := mrs.Lookup(pd, e.LKey, e.Addr, uint64(e.Length), need)
		if f != soft.OK {
			return out, f
		}
		take := min(n, uint64(e.Length)-off)
		out = append(out, m.Slice(e.Addr+off, int(take)))
		n -= take
		off = 0
	}
	if n > 0 && len(out) < cap(out) {
		return out, soft.BadRange
	}
	return out, soft.OK
}

// void: the memory of a segment was deregistered. The frame is completed with zeros and
// declared void, and the operation fails.
func (c *conn) void(s *soft.Sink, i int) {
	t := &c.tx
	g := t.segs[i]
	t.zero(i)
	if g.kind == segAnswer {
		c.refuseAnswer(s, g.msn)
		return
	}
	if t.cur == g.entry {
		t.cur = nil
	}
	if t.faulty == nil {
		g.entry.Status = verbs.WCLocProtErr
		t.faulty = g.entry
	}
}

// refuseAnswer: the region that an RDMA_READ is reading was deregistered.
func (c *conn) refuseAnswer(s *soft.Sink, msn uint32) {
	c.tx.answers.n = 0
	c.refuse(s, msn, verbs.WCRemAccessErr, verbs.EventQPAccessErr)
}

// failFaulty fails the request whose memory was deregistered meanwhile, once all before it
// are done, and says whether it did.
func (c *conn) failFaulty(s *soft.Sink) bool {
	e := c.tx.faulty
	if e == nil || c.q.SQ.Oldest() != e {
		return false
	}
	c.q.fail(s, e.Status, 0)
	return true
}

// zero replaces the user memory of a segment by zeros.
func (t *tx) zero(i int) {
	g := &t.segs[i]
	g.kind, g.entry = segZero, nil
	if g.trail {
		t.stage[t.segs[i+1].off] = 1
	}
}

// abandon stops sending requests and, with all, responses: frames partly sent are completed
// with zeros.
func (t *tx) abandon(all bool) {
	for i := t.first; i < t.end; i++ {
		if k := t.segs[i].kind; k == segSend || k == segAnswer && all {
			t.zero(i)
		}
	}
	t.cur, t.faulty = nil, nil
	t.control = 0
	if all {
		t.answers.dropReads()
	}
}

// dropReads drops all responses, except a refusal that is next.
func (r *ring) dropReads() {
	if r.n > 0 && r.front().kind != answerNak {
		r.n = 0
	}
}

// fill makes the next batch.
func (c *conn) fill(s *soft.Sink, flush bool) {
	t := &c.tx
	t.staged, t.first, t.end = 0, 0, 0
	for total := 0; total < batchMax && t.end+3 <= maxSegs && t.staged+maxHeader+copyMax+1 <= stageSize; {
		n := c.makeFrame(s, flush)
		if n == 0 {
			return
		}
		total += n
	}
}

// makeFrame makes the most urgent frame and returns its length, 0 if there is none.
func (c *conn) makeFrame(s *soft.Sink, flush bool) int {
	t := &c.tx
	if t.control != 0 {
		for _, k := range controls {
			if t.control&(1<<k) != 0 {
				t.control &^= 1 << k
				return c.makeControl(k)
			}
		}
	}
	if t.turn && t.answers.n > 0 {
		t.turn = false
		return c.makeAnswer(s)
	}
	if n := c.makeRequest(s); n > 0 {
		t.turn = true
		return n
	}
	if t.answers.n > 0 {
		return c.makeAnswer(s)
	}
	if c.phase == phaseClosing && t.last != 0 && t.answers.n == 0 {
		k := t.last
		t.last = 0
		return c.makeControl(k)
	}
	if c.rx.unacked > 0 && (flush || c.rx.unacked >= ackEvery || c.rx.unackedBytes >= ackBytes) && c.phase == phaseOpen {
		return c.makeControl(kindAck)
	}
	return 0
}

// Thresholds after which an acknowledgement is sent on its own, although the next poll might
// find a frame to carry it: messages, bytes, or polls in a row that found nothing. Bytes,
// because their sender waits to reuse its memory, and the receiver may never poll again.
// Polls, because a reply comes some microseconds after its request: acknowledging at the
// first empty poll delays by 30 % a reply of 8 KiB to a message that needs a small one
// before it.
const (
	ackEvery = 32
	ackBytes = 16 << 10
	ackPolls = 16
)

// controls in sending order: START and RESUME before requests, RNR before READY.
var controls = [...]kind{kindStart, kindRNR, kindReady, kindResume}

func (t *tx) want(k kind) { t.control |= 1 << k }

func (c *conn) makeControl(k kind) int {
	f := frame{kind: k}
	switch k {
	case kindStart:
		f.psn, f.rnrRetry = c.q.Attr.SQPSN, c.q.Attr.RNRRetry
	case kindRNR:
		f.msn = c.tx.rnrMSN
	case kindResume:
		f.msn = c.tx.next
	}
	return c.stageHeader(&f)
}

// stageHeader appends a header to the batch, with the acknowledgement that every
// frame carries, and returns its length.
func (c *conn) stageHeader(f *frame) int {
	t := &c.tx
	f.ack = c.rx.expect
	c.rx.unacked, c.rx.unackedBytes = 0, 0
	n := len(f.Append(t.stage[t.staged:t.staged]))
	t.extend(n)
	return n
}

// extend adds the next n bytes of the stage to the batch.
func (t *tx) extend(n int) {
	if t.end > t.first {
		if g := &t.segs[t.end-1]; g.kind == segStage && g.off+uint64(g.n) == uint64(t.staged) {
			g.n += n
			t.staged += n
			return
		}
	}
	t.segs[t.end] = seg{kind: segStage, n: n, off: uint64(t.staged)}
	t.end++
	t.staged += n
}

// attach adds user memory to the batch, and the trailer behind it.
func (t *tx) attach(g seg) {
	g.trail = true
	t.segs[t.end] = g
	t.end++
	t.stage[t.staged] = 0
	t.segs[t.end] = seg{kind: segStage, n: 1, off: uint64(t.staged)}
	t.end++
	t.staged++
}

// makeRequest makes the next frame of the request stream.
func (c *conn) makeRequest(s *soft.Sink) int {
	t, q := &c.tx, c.q
	if c.phase != phaseOpen || t.faulty != nil {
		return 0
	}
	f := frame{kind: kindMore}
	e := t.cur
	if e == nil {
		if e = c.startable(s); e == nil {
			return 0
		}
		if t.next == t.started {
			q.SQ.Started()
			e.Mark = t.next
			t.started++
		}
		e.Off = 0
		t.next++
		f.total, f.imm, f.rkey, f.addr = uint32(e.Length), e.Imm, e.RKey, e.RemoteAddr
		if e.Flags&verbs.SendSolicited != 0 {
			f.flags |= flagSolicited
		}
		switch e.Opcode {
		case verbs.OpSendWithImm:
			f.flags |= flagImm
			fallthrough
		case verbs.OpSend:
			f.kind = kindSend
		case verbs.OpRDMAWriteWithImm:
			f.flags |= flagImm
			fallthrough
		case verbs.OpRDMAWrite:
			f.kind = kindWrite
		default:
			f.flags = 0
			f.kind = kindRead
			if e.Opcode != verbs.OpRDMARead {
				f.kind = kindAtomic
				f.operand, f.swap = e.CompareAdd, e.Swap
				if e.Opcode == verbs.OpAtomicCmpAndSwp {
					f.flags = flagSwap
				}
			}
			f.msn = e.Mark
			t.reads++
			return c.stageHeader(&f)
		}
		if f.flags&flagImm == 0 {
			f.imm = 0
		}
	}
	f.msn = e.Mark
	n := int(min(e.Length-e.Off, maxPayload))
	f.size = uint32(n)
	off := e.Off
	e.Off += uint64(n)
	t.cur = nil
	if e.Off < e.Length {
		t.cur = e
	}
	if n > copyMax {
		f.flags |= flagTrailer
		h := c.stageHeader(&f)
		t.attach(seg{kind: segSend, n: n, off: off, entry: e})
		return h + n + 1
	}
	h := headerSize + layouts[f.kind].extension
	dst := t.stage[t.staged+h : t.staged+h+n]
	if e.IsInline {
		copy(dst, e.Inline[off:])
	} else if !c.gather(dst, e.SGEs, off) {
		t.cur = nil
		e.Status = verbs.WCLocProtErr
		t.faulty = e
		return 0
	}
	c.stageHeader(&f)
	t.extend(n)
	return h + n
}

// gather copies len(dst) bytes from offset off of a message, and returns false if the memory
// is no longer registered.
func (c *conn) gather(dst []byte, sges []verbs.SGE, off uint64) bool {
	if len(dst) == 0 {
		return true // elements of length 0 are not checked
	}
	if len(sges) == 1 {
		e := &sges[0]
		m, f := c.a.mrs.Lookup(c.q.PD, e.LKey, e.Addr, uint64(e.Length), 0)
		if f == soft.OK {
			copy(dst, m.Slice(e.Addr+off, len(dst)))
		}
		return f == soft.OK
	}
	var room [maxSGE][]byte
	src, f := pieces(room[:0], c.a.mrs, c.q.PD, sges, off, uint64(len(dst)), 0)
	if f != soft.OK {
		return false
	}
	for _, b := range src {
		dst = dst[copy(dst, b):]
	}
	return true
}

// startable returns the request whose turn it is, if it may start now.
func (c *conn) startable(s *soft.Sink) *soft.SendEntry {
	t, q := &c.tx, c.q
	if t.paused {
		return nil
	}
	e := q.SQ.Waiting()
	if t.next != t.started {
		e = c.entry(t.next)
	} else if e == nil || q.State() != verbs.QPRTS {
		return nil
	}
	if e.Status == verbs.WCSuccess && e.Opcode >= verbs.OpRDMARead && q.Attr.MaxRdAtomic == 0 {
		e.Status = verbs.WCLocQPOpErr
	}
	if e.Status != verbs.WCSuccess {
		// A request that was invalid when posted fails once everything before it is done.
		if t.next != t.started {
			t.faulty = e
		} else if !q.SQ.Outstanding() {
			q.fail(s, e.Status, 0)
		}
		return nil
	}
	if e.Flags&verbs.SendFence != 0 && t.reads > 0 {
		return nil
	}
	// One is sent even to a peer that accepts none: the peer must refuse it.
	if e.Opcode >= verbs.OpRDMARead && t.reads >= max(1, min(int(q.Attr.MaxRdAtomic), t.peerReads)) {
		return nil
	}
	return e
}

// makeAnswer makes the next response frame.
func (c *conn) makeAnswer(s *soft.Sink) int {
	t := &c.tx
	a := t.answers.front()
	f := frame{kind: kindResponse, msn: a.msn}
	switch a.kind {
	case answerNak:
		f.kind, f.status = kindNak, uint32(a.status)
		t.answers.pop()
		return c.stageHeader(&f)
	case answerAtomic:
		f.size = 8
		binary.NativeEndian.PutUint64(t.stage[t.staged+headerSize:], a.old)
		t.answers.pop()
		c.stageHeader(&f)
		t.extend(8)
		return headerSize + 8
	}
	n := int(min(a.total-a.off, maxPayload))
	f.size = uint32(n)
	from := a.addr + uint64(a.off)
	length := headerSize + n
	if n > copyMax {
		f.flags = flagTrailer
		c.stageHeader(&f)
		t.attach(seg{kind: segAnswer, n: n, off: from, rkey: a.rkey, msn: a.msn})
		length++
	} else {
		if n > 0 {
			m, fault := c.a.mrs.Lookup(c.q.PD, a.rkey, from, uint64(n), verbs.AccessRemoteRead)
			if fault != soft.OK {
				c.refuseAnswer(s, a.msn)
				return c.makeFrame(s, false)
			}
			copy(t.stage[t.staged+headerSize:], m.Slice(from, n))
		}
		c.stageHeader(&f)
		t.extend(n)
	}
	if a.off += uint32(n); a.off == a.total {
		t.answers.pop()
	}
	return length
}

// execute performs an atomic and returns the previous value.
func execute(b []byte, swap bool, operand, value uint64) uint64 {
	p := (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
	if !swap {
		return atomic.AddUint64(p, operand) - operand
	}
	for {
		if old := atomic.LoadUint64(p); old != operand || atomic.CompareAndSwapUint64(p, old, value) {
			return old
		}
	}
}

// ackable is the highest acknowledgement that the peer may send. It covers requests whose
// frames are all made, and whose payload no longer has to be sent from user memory:
// acknowledging releases that memory.
func (t *tx) ackable() uint32 {
	limit := t.next
	if t.cur != nil {
		limit = t.cur.Mark
	}
	for i := t.first; i < t.end; i++ {
		if g := &t.segs[i]; g.kind == segSend && g.entry.Mark-t.acked < limit-t.acked {
			limit = g.entry.Mark
		}
	}
	return limit
}
