package roce

import (
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// responder is the receiving half of a QP: the state of chapter 9.7 of the architecture. PSNs are
// extended ones.
type responder struct {
	expect uint32 // PSN of the next request packet
	msn    uint32 // messages completed

	// The SEND or RDMA WRITE that is arriving.
	msg message

	// records holds recent RDMA READs and atomics, the newest at recordN-1 modulo the length:
	// a duplicate of an atomic gets its response from there and is not executed again
	// (9.7.1.1).
	records []record
	recordN uint32

	answers answers

	ackDue   bool // an acknowledgement is owed
	hurried  bool // it must not wait: its message has several packets, and the sender waits for it
	acked    bool // one was sent on its own, and nothing since
	replies  int  // consecutive times that a packet was sent after a request and before the next
	unacked  int  // packets that requested one since the last
	naked    bool // a sequence error or RNR was reported for expect; no more are until it arrives
	nakDue   bool // that NAK is still to be sent
	nak      uint8
	refusal  bool // a request was refused permanently: fatal says why, at refusedAt
	fatal    uint8
	refuseAt uint32
	marked   bool // a packet carried a congestion mark: a CNP is due
	owing    bool // in the adapter's list of QPs that owe an acknowledgement
	behind   bool // in its list of QPs with responses left to send, which wait for their turn

	held held
}

// message is a SEND or RDMA WRITE of which more packets will, or may, arrive.
type message struct {
	active bool
	write  bool
	rkey   uint32
	addr   uint64
	total  uint64 // length of an RDMA WRITE; for a SEND the room in the receive
	off    uint64
}

// record is an RDMA READ or atomic that was executed.
type record struct {
	first, n uint32 // its PSNs
	atomic   bool
	rkey     uint32
	addr     uint64
	length   uint32
	original uint64
}

// answer is a response to send, or the rest of one.
type answer struct {
	record
	sent  uint32 // packets
	again bool   // the response to a request that was executed before
}

// answers is a queue of responses.
type answers struct {
	ents    []answer
	head, n int
}

func (a *answers) front() *answer { return &a.ents[a.head] }

func (a *answers) pop() {
	a.head = (a.head + 1) % len(a.ents)
	a.n--
}

func (a *answers) push(x answer) bool {
	if a.n == len(a.ents) {
		return false
	}
	*a.at(a.n) = x
	a.n++
	return true
}

// fresh counts the responses to requests that had not been executed before.
func (a *answers) fresh() (n int) {
	for i := range a.n {
		if !a.at(i).again {
			n++
		}
	}
	return n
}

func (a *answers) at(i int) *answer { return &a.ents[(a.head+i)%len(a.ents)] }

// repeat queues the response to a repeated request. It drops no other response, as the network may
// have duplicated the request. A response that is still queued is not sent twice. With inOrder the
// response goes before those to later requests, which a peer that goes back cannot use before.
func (a *answers) repeat(x answer, inOrder bool) {
	end, i := x.first+x.n, a.n
	for k := range a.n {
		e := a.at(k)
		next := e.first + e.sent
		if !before(x.first, next) && !before(e.first+e.n, end) {
			return
		}
		if !before(x.first, e.first) && before(x.first, next) && end == e.first+e.n {
			x.again = e.again
			*e = x
			return
		}
		if inOrder && i == a.n && before(x.first, next) {
			i = k
		}
	}
	if !a.push(x) {
		return
	}
	for k := a.n - 1; k > i; k-- {
		*a.at(k) = *a.at(k - 1)
	}
	*a.at(i) = x
}

func (p *responder) reset(psn uint32, depth int) {
	p.drop()
	records, ents := p.records, p.answers.ents
	if len(records) < depth+1 {
		// One more, for atomics, whose repetition the architecture allows.
		records, ents = make([]record, depth+1), make([]answer, 2*(depth+1))
	}
	*p = responder{expect: psn, records: records, answers: answers{ents: ents}, owing: p.owing, behind: p.behind}
}

// drop releases memory.
func (p *responder) drop() { p.held.release() }

// requested handles a packet of the requester.
func (q *qp) requested(s *soft.Sink, h *packet.Header, payload []byte) {
	p := &q.rsp
	psn := extend(h.PSN, p.expect)
	switch st := q.State(); {
	case st == verbs.QPRTR || st == verbs.QPRTS || st == verbs.QPSQD:
	case p.refusal && st == verbs.QPErr:
		// The NAK was lost, or later packets are still arriving; or a response to an earlier
		// request was lost, without which the requester does not reach the refusal.
		if before(psn, p.refuseAt) {
			q.duplicate(psn, h)
		} else {
			p.nakDue = true
		}
		return
	default:
		q.tellGone(h)
		return
	}
	switch {
	case psn == p.expect:
		q.execute(s, h, payload)
		q.unhold(s)
	case before(psn, p.expect):
		q.duplicate(psn, h)
	default:
		q.gap(psn, h, payload)
	}
}

// gap: packets before psn are missing.
func (q *qp) gap(psn uint32, h *packet.Header, payload []byte) {
	p := &q.rsp
	if p.naked && p.nak != packet.SyndromeSequence {
		return // receiver not ready: later packets are sent again
	}
	if q.ours && q.hold(psn, h, payload) {
		p.naked, p.nakDue, p.nak = true, true, packet.SyndromeSequence
		return
	}
	if !p.naked {
		p.naked, p.nakDue, p.nak = true, true, packet.SyndromeSequence
	}
}

// execute executes the expected packet.
func (q *qp) execute(s *soft.Sink, h *packet.Header, payload []byte) {
	p := &q.rsp
	switch op := h.Opcode; {
	case op == packet.ReadRequest, op == packet.ReadPart, op == packet.CompareSwap, op == packet.FetchAdd:
		if p.msg.active {
			q.refuse(s, packet.SyndromeInvalid, verbs.EventQPReqErr)
			return
		}
		q.question(s, h)
		return
	case op <= packet.SendOnlyImm:
		q.message(s, h, payload, op == packet.SendFirst || op >= packet.SendOnly, op >= packet.SendLast,
			op == packet.SendLastImm || op == packet.SendOnlyImm, false)
	case op <= packet.WriteOnlyImm:
		q.message(s, h, payload, op == packet.WriteFirst || op >= packet.WriteOnly, op >= packet.WriteLast,
			op == packet.WriteLastImm || op == packet.WriteOnlyImm, true)
	default: // SEND with invalidate: there are no memory windows to invalidate
		q.refuse(s, packet.SyndromeInvalid, verbs.EventQPReqErr)
	}
}

// message executes a packet of a SEND or RDMA WRITE.
func (q *qp) message(s *soft.Sink, h *packet.Header, payload []byte, first, last, imm, write bool) {
	p := &q.rsp
	m := &p.msg
	if first == m.active || !first && m.write != write || len(payload) > q.mtu || !last && len(payload) != q.mtu ||
		last && !first && len(payload) == 0 {
		q.refuse(s, packet.SyndromeInvalid, verbs.EventQPReqErr)
		return
	}
	if first {
		if write && !q.beginWrite(s, h) || !write && !q.beginSend(s) {
			return
		}
	}
	n := uint64(len(payload))
	switch {
	case write && (m.off+n > m.total || last && m.off+n != m.total):
		q.refuse(s, packet.SyndromeInvalid, verbs.EventQPReqErr)
		return
	case !write && m.off+n > m.total:
		q.failTaken(s, verbs.WCLocLenErr)
		q.refuse(s, packet.SyndromeInvalid, verbs.EventQPReqErr)
		return
	}
	if write && imm && !q.takeReceive() {
		if first {
			m.active = false
		}
		return
	}
	if n > 0 && !q.place(s, payload) {
		return
	}
	m.off += n
	p.expect++
	p.naked, p.nakDue = false, false
	p.unacked++
	p.ackDue = p.ackDue || h.AckReq
	p.hurried = p.hurried || h.AckReq && !first
	if last {
		m.active = false
		p.msn++
		if imm || !write {
			q.deliver(s, h, imm, write)
		}
	}
}

// beginWrite checks all the memory that an RDMA WRITE will access.
func (q *qp) beginWrite(s *soft.Sink, h *packet.Header) bool {
	if h.Length > 0 {
		if q.Attr.AccessFlags&verbs.AccessRemoteWrite == 0 {
			q.refuse(s, packet.SyndromeInvalid, verbs.EventQPReqErr)
			return false
		}
		if _, fault := q.a.mrs.Lookup(q.PD, h.RKey, h.VA, uint64(h.Length), verbs.AccessRemoteWrite); fault != soft.OK {
			q.refuse(s, packet.SyndromeAccess, verbs.EventQPAccessErr)
			return false
		}
	}
	q.rsp.msg = message{active: true, write: true, rkey: h.RKey, addr: h.VA, total: uint64(h.Length)}
	return true
}

// beginSend takes the receive for a SEND.
func (q *qp) beginSend(s *soft.Sink) bool {
	if !q.takeReceive() {
		return false
	}
	room, fault := q.a.mrs.CheckSGEs(q.recvPD, q.Receive.SGEs, verbs.AccessLocalWrite)
	if fault != soft.OK {
		q.failTaken(s, verbs.WCLocProtErr)
		q.refuse(s, packet.SyndromeOperation, verbs.EventQPFatal)
		return false
	}
	q.rsp.msg = message{active: true, total: room}
	return true
}

// takeReceive takes the next receive, or schedules an RNR NAK if there is none.
func (q *qp) takeReceive() bool {
	if q.RQ.Take(&q.Receive) {
		q.taken = true
		return true
	}
	p := &q.rsp
	p.naked, p.nakDue, p.nak = true, true, packet.SyndromeRNR|q.Attr.MinRNRTimer
	q.rsp.held.release()
	return false
}

// place copies the payload of a packet to its destination. It looks the memory up again, which may
// have been deregistered since the message started.
func (q *qp) place(s *soft.Sink, payload []byte) bool {
	m := &q.rsp.msg
	if m.write {
		mr, fault := q.a.mrs.Lookup(q.PD, m.rkey, m.addr+m.off, uint64(len(payload)), verbs.AccessRemoteWrite)
		if fault != soft.OK {
			q.failTaken(s, verbs.WCLocAccessErr)
			q.refuse(s, packet.SyndromeAccess, verbs.EventQPAccessErr)
			return false
		}
		copy(mr.Slice(m.addr+m.off, len(payload)), payload)
		return true
	}
	if q.a.mrs.Scatter(q.recvPD, q.Receive.SGEs, m.off, payload) != soft.OK {
		q.failTaken(s, verbs.WCLocProtErr)
		q.refuse(s, packet.SyndromeOperation, verbs.EventQPFatal)
		return false
	}
	return true
}

// deliver completes the receive of a message.
func (q *qp) deliver(s *soft.Sink, h *packet.Header, imm, write bool) {
	wc := verbs.WC{WRID: q.Receive.WRID, Opcode: verbs.WCRecv, ByteLen: uint32(q.rsp.msg.off)}
	if write {
		wc.Opcode = verbs.WCRecvRDMAWithImm
	}
	if imm {
		wc.Flags, wc.Imm = verbs.WCWithImm, h.Imm
	}
	q.taken = false
	if !q.CompleteRecv(s, &wc, h.Solicited) {
		q.fail(s, verbs.WCSuccess, 0)
	}
}

// question executes an RDMA READ or atomic request.
func (q *qp) question(s *soft.Sink, h *packet.Header) {
	p := &q.rsp
	a := answer{record: record{first: p.expect, n: 1, rkey: h.RKey, addr: h.VA, length: h.Length, atomic: isAtomic(h.Opcode)}}
	need, n := verbs.AccessRemoteRead, uint64(h.Length)
	if a.atomic {
		need, n = verbs.AccessRemoteAtomic, 8
	} else {
		a.n = q.packets(n)
	}
	if q.Attr.AccessFlags&need == 0 || a.atomic && h.VA%8 != 0 || n > maxMessage ||
		p.answers.fresh() >= len(p.records) || q.Attr.MaxDestRdAtomic == 0 {
		q.refuse(s, packet.SyndromeInvalid, verbs.EventQPReqErr)
		return
	}
	if n > 0 {
		whole := n
		if h.Opcode == packet.ReadPart {
			whole = max(n, uint64(h.WholeLength))
		}
		m, fault := q.a.mrs.Lookup(q.PD, h.RKey, h.VA, whole, need)
		if fault != soft.OK {
			q.refuse(s, packet.SyndromeAccess, verbs.EventQPAccessErr)
			return
		}
		if a.atomic {
			a.original = atomically(m.Slice(h.VA, 8), h)
		}
	}
	p.answers.push(a)
	p.records[p.recordN%uint32(len(p.records))] = a.record
	p.recordN++
	p.expect += a.n
	p.msn++
	p.naked, p.nakDue = false, false
}

func isAtomic(o packet.Opcode) bool { return o == packet.CompareSwap || o == packet.FetchAdd }

// atomically executes an atomic and returns the previous value.
func atomically(b []byte, h *packet.Header) uint64 {
	w := (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
	if h.Opcode == packet.FetchAdd {
		return atomic.AddUint64(w, h.SwapAdd) - h.SwapAdd
	}
	for {
		if old := atomic.LoadUint64(w); old != h.Compare || atomic.CompareAndSwapUint64(w, old, h.SwapAdd) {
			return old
		}
	}
}

// duplicate responds to a packet that was executed before (9.7.1.1, 9.7.5.1.3).
func (q *qp) duplicate(psn uint32, h *packet.Header) {
	p := &q.rsp
	switch h.Opcode {
	case packet.ReadRequest, packet.ReadPart, packet.CompareSwap, packet.FetchAdd:
	default:
		p.ackDue = true
		p.unacked++
		return
	}
	for i := range min(p.recordN, uint32(len(p.records))) {
		r := &p.records[(p.recordN-1-i)%uint32(len(p.records))]
		skip := psn - r.first
		if skip >= r.n {
			continue
		}
		a := answer{record: *r, again: true}
		if r.atomic != isAtomic(h.Opcode) {
			return
		}
		if !r.atomic {
			// Any part of the original request, and nothing else.
			off := uint64(skip) * uint64(q.mtu)
			if h.RKey != r.rkey || h.VA != r.addr+off || off+uint64(h.Length) > uint64(r.length) {
				return
			}
			a.first, a.addr, a.length, a.n = psn, h.VA, h.Length, q.packets(uint64(h.Length))
		}
		p.answers.repeat(a, !q.ours)
		return
	}
}

// refuse tells the peer that the expected request fails, and moves the QP to ERR. Responses still
// owed to the peer are sent first.
func (q *qp) refuse(s *soft.Sink, syndrome uint8, event verbs.EventType) {
	p := &q.rsp
	p.refusal, p.fatal, p.refuseAt, p.nakDue = true, syndrome, p.expect, true
	q.fail(s, verbs.WCSuccess, 0)
	q.Events.Add(event, q)
}
