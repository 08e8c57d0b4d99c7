package roce

import (
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// Parameters of the requester.
const (
	// windowPackets limits the packets in flight to a peer. A [packet.Selective] covers as
	// many, and it is far less than half of all PSNs.
	windowPackets = 256
	// ackEvery is the number of packets after which an acknowledgement is requested at the
	// latest.
	ackEvery = 16
	// readPart is the number of packets requested by one RDMA READ request. A work request
	// that reads more becomes several requests, so that the requester's window limits what
	// the responder sends. The ends of parts are fixed, because a repeated request must be
	// within the original one (9.7.5.1.3).
	readPart = 16
	// maxAsked limits the requests that wait for a response at once.
	maxAsked = 32
	// reorder is the number of packets that may overtake another one before that counts as
	// lost (as the threshold of RFC 5681 and RFC 8985).
	reorder = 3
)

// requester is the sending half of a QP: the state of chapter 9.7 of the architecture. PSNs are
// extended ones. Posted work is in the QP's send queue: an entry's First and Mark are the PSNs of its
// first and last packet. An RDMA READ takes as many PSNs as its response has packets; its Off counts
// the bytes that have arrived.
type requester struct {
	una uint32 // oldest not acknowledged
	nxt uint32 // next to send: less than max while packets are resent
	max uint32 // lowest never sent
	cur uint32 // position in the queue of the entry that nxt is in

	asked    [maxAsked]uint32 // end of each response that is awaited, or follows such a one; oldest first
	askedN   int
	reads    int // RDMA READs and atomics that are started but not done
	faulty   *soft.SendEntry
	sinceAck int    // packets since an acknowledgement was requested
	executed uint32 // end of what the peer has executed: only responses are missing before it

	// Selective recovery, by PSN modulo windowPackets: when the packet was last sent or
	// requested, whether the peer has it, and whether it is of a response and has arrived.
	// Times are counted in packets sent or requested.
	clock    uint32
	sentAt   [windowPackets]uint32
	arrived  [windowPackets / 64]uint64
	came     [windowPackets / 64]uint64
	newest   uint32 // highest sentAt of packets known to have arrived
	sackHigh uint32 // one past the highest PSN that arrived out of order, here or there

	// Timers, in nanoseconds of the adapter's clock; 0: not running.
	resendAt int64
	probeAt  int64 // when holes are filled again
	rnrUntil int64
	rnrCount uint8

	// Since the peer's last acknowledgement, or the start of sending.
	waits   uint  // waits that resendAt has ended
	waiting int64 // length of the current wait in nanoseconds
	silent  int64 // total length of the ended waits in nanoseconds
	refusal refusals

	pace pace
}

// reset starts a connection; at is the queue position of the next work request to be posted.
func (r *requester) reset(psn, at uint32, w pace) {
	*r = requester{una: psn, nxt: psn, max: psn, cur: at, executed: psn, sackHigh: psn, pace: w}
}

// packets returns the number of PSNs that a message of n bytes takes.
func (q *qp) packets(n uint64) uint32 {
	return max(1, uint32((n+uint64(q.mtu)-1)/uint64(q.mtu)))
}

// request sends the packets that may be sent, resends first.
func (q *qp) request(s *soft.Sink, now int64) {
	r := &q.req
	if r.rnrUntil != 0 {
		return
	}
	if before(r.una, r.sackHigh) {
		q.fillHoles(s, now)
	}
	for r.faulty == nil {
		if r.cur == q.SQ.Next() && !q.start(s) {
			break
		}
		e := q.SQ.At(r.cur)
		if before(r.nxt, r.max) && r.settled(e, r.nxt) {
			q.advance(e, 1)
			continue
		}
		n := q.sendAt(e, now, false)
		if n == 0 {
			break
		}
		q.advance(e, n)
	}
	if r.una != r.max && r.resendAt == 0 {
		q.armResend(now)
	}
	q.failFaulty(s)
}

// advance advances by n PSNs, within e.
func (q *qp) advance(e *soft.SendEntry, n uint32) {
	r := &q.req
	r.nxt += n
	if before(r.max, r.nxt) {
		r.max = r.nxt
	}
	if before(e.Mark, r.nxt) {
		r.cur++
	}
}

// start starts the next posted entry, if it may start now.
func (q *qp) start(s *soft.Sink) bool {
	r := &q.req
	e := q.SQ.Waiting()
	if e == nil || q.State() != verbs.QPRTS {
		return false
	}
	isRead := e.Opcode >= verbs.OpRDMARead
	if e.Status == verbs.WCSuccess && isRead && q.Attr.MaxRdAtomic == 0 {
		e.Status = verbs.WCLocQPOpErr
	}
	if e.Status != verbs.WCSuccess {
		// A request that was invalid when posted fails once everything before it is done.
		if !q.SQ.Outstanding() {
			q.fail(s, e.Status, 0)
		}
		return false
	}
	n := q.packets(e.Length)
	switch {
	case e.Flags&verbs.SendFence != 0 && r.reads > 0:
		return false
	case r.max-r.una+n > maxOutstanding && r.max != r.una:
		return false
	}
	e.First, e.Mark = r.max, r.max+n-1
	if isRead {
		r.reads++
	}
	q.SQ.Started()
	return true
}

// maxOutstanding limits the PSNs between the oldest and the newest unacknowledged packet: a
// responder takes the lower half of all PSNs for duplicates.
const maxOutstanding = 1 << 22

// sendAt sends the packet of entry e that starts at nxt, and returns the number of PSNs that it
// takes; 0: not now.
func (q *qp) sendAt(e *soft.SendEntry, now int64, hole bool) uint32 {
	r := &q.req
	flight, window := r.nxt-r.una, r.pace.packets()
	if flight >= window && flight > 0 && !hole {
		return 0
	}
	h := packet.Header{Migrated: true, PKey: packet.DefaultPKey, DestQP: q.Attr.DestQPNum, PSN: r.nxt & psnMask}
	k := r.nxt - e.First
	off := uint64(k) * uint64(q.mtu)
	if e.Opcode >= verbs.OpRDMARead {
		return q.ask(e, &h, off, flight, window, now, hole)
	}
	n := int(min(e.Length-off, uint64(q.mtu)))
	first, last := k == 0, r.nxt == e.Mark
	q.opcode(e, &h, first, last)
	h.Pad = packet.PadOf(n)
	r.sinceAck++
	h.AckReq = hole || r.sinceAck >= ackEvery || flight+1 >= window || last && (q.a.ackEach || q.pauses())
	if h.AckReq {
		r.sinceAck = 0
		q.timed(now)
	}
	q.carry(&h)
	b := q.frame(&h, n)
	if n > 0 {
		dst := b[h.Len():]
		if e.IsInline {
			copy(dst[:n], e.Inline[off:])
		} else if !q.gather(dst[:n], e.SGEs, off) {
			e.Status = verbs.WCLocProtErr
			r.faulty = e
			q.a.wire.cancel()
			if h.Carries {
				q.rsp.ackDue = true
			}
			return 0
		}
		clear(dst[n : n+int(h.Pad)])
	}
	q.sent(1, now)
	return 1
}

// refusals counts the tries for which the peer's host reported that nothing receives them.
type refusals struct {
	tries int
	last  uint // number of the wait of the last one, from 1
}

// progress restarts counting how long the peer is silent.
func (r *requester) progress() {
	r.waits, r.silent, r.refusal = 0, 0, refusals{}
}

// sent notes that n packets from nxt on have been sent, or requested.
func (q *qp) sent(n uint32, now int64) {
	r := &q.req
	for i := range n {
		r.clock++
		r.sentAt[(r.nxt+i)%windowPackets] = r.clock
	}
	if int32(r.clock-r.newest) > 1<<30 {
		r.newest = r.clock - 1<<30 // before all packets in flight, even if the clock wraps
	}
	r.pace.sent += n
	if r.resendAt == 0 {
		if r.una == r.max {
			r.progress()
		}
		q.armResend(now)
	}
}

// timed starts to measure a round trip with the packet at nxt, unless it is a resend: then the
// acknowledgement could be that of the earlier one (Karn and Partridge, 1987).
func (q *qp) timed(now int64) {
	if r := &q.req; r.nxt == r.max {
		r.pace.timed(r.nxt, now)
	}
}

// pauses says whether nothing will follow the packet that is being sent: then it must request an
// acknowledgement, or there will be none.
func (q *qp) pauses() bool {
	if q.req.cur+1 != q.SQ.Next() {
		return false
	}
	w := q.SQ.Waiting()
	return w == nil || w.Opcode >= verbs.OpRDMARead || w.Flags&verbs.SendFence != 0 || w.Status != verbs.WCSuccess
}

// opcode fills in the header fields that depend on the place of a packet in its message.
func (q *qp) opcode(e *soft.SendEntry, h *packet.Header, first, last bool) {
	write := e.Opcode == verbs.OpRDMAWrite || e.Opcode == verbs.OpRDMAWriteWithImm
	imm := e.Opcode == verbs.OpRDMAWriteWithImm || e.Opcode == verbs.OpSendWithImm
	switch {
	case first && last:
		h.Opcode = packet.SendOnly
		if imm {
			h.Opcode = packet.SendOnlyImm
		}
	case first:
		h.Opcode = packet.SendFirst
	case last:
		h.Opcode = packet.SendLast
		if imm {
			h.Opcode = packet.SendLastImm
		}
	default:
		h.Opcode = packet.SendMiddle
	}
	if write {
		h.Opcode += packet.WriteFirst - packet.SendFirst
		h.VA, h.RKey, h.Length = e.RemoteAddr, e.RKey, uint32(e.Length)
	}
	h.Imm = e.Imm
	h.Solicited = last && e.Flags&verbs.SendSolicited != 0 && (imm || !write)
}

// ask sends a request for a response: an atomic, or the part of an RDMA READ that starts at off; on
// a repeat, only what is missing of it. From a peer that may be an adapter it always requests the
// rest of the part: rdma_rxe takes the start of the last request for the start of all that may be
// requested.
func (q *qp) ask(e *soft.SendEntry, h *packet.Header, off uint64, flight, window uint32, now int64, hole bool) uint32 {
	r := &q.req
	fresh := r.nxt == r.max
	if fresh && r.askedN >= min(int(q.Attr.MaxRdAtomic), maxAsked) {
		return 0
	}
	n := uint32(1)
	h.VA, h.RKey = e.RemoteAddr, e.RKey
	switch e.Opcode {
	case verbs.OpRDMARead:
		n = q.partEnd(e, r.nxt) - r.nxt
		if q.ours && !fresh {
			n = r.gap(r.nxt, n)
		}
		if flight > 0 && flight+n > window && !hole {
			return 0
		}
		h.Opcode = packet.ReadRequest
		if q.ours && off == 0 && e.Length > uint64(n)*uint64(q.mtu) {
			// The first of several parts: the responder checks the whole before it sends any
			// of it.
			h.Opcode, h.WholeLength = packet.ReadPart, uint32(e.Length)
		}
		h.VA += off
		h.Length = uint32(min(e.Length-off, uint64(n)*uint64(q.mtu)))
	case verbs.OpAtomicCmpAndSwp:
		h.Opcode, h.Compare, h.SwapAdd = packet.CompareSwap, e.CompareAdd, e.Swap
	default:
		h.Opcode, h.SwapAdd = packet.FetchAdd, e.CompareAdd
	}
	r.sinceAck = 0
	h.AckReq = true
	if fresh {
		r.asked[r.askedN] = r.nxt + n
		r.askedN++
	}
	q.timed(now)
	q.frame(h, 0)
	q.sent(n, now)
	return n
}

// partEnd returns the end of the part of an RDMA READ, or of the atomic, that psn belongs to.
func (q *qp) partEnd(e *soft.SendEntry, psn uint32) uint32 {
	return psn + min(e.Mark-psn+1, readPart-(psn-e.First)%readPart)
}

// gather copies from the memory of a message.
func (q *qp) gather(dst []byte, sges []verbs.SGE, off uint64) bool {
	if len(sges) == 1 {
		e := &sges[0]
		m, f := q.a.mrs.Lookup(q.PD, e.LKey, e.Addr, uint64(e.Length), 0)
		if f == soft.OK {
			copy(dst, m.Slice(e.Addr+off, len(dst)))
		}
		return f == soft.OK
	}
	return q.a.mrs.Gather(q.PD, sges, off, dst) == soft.OK
}

// failFaulty fails the request whose memory was deregistered, once all before it is done.
func (q *qp) failFaulty(s *soft.Sink) {
	if e := q.req.faulty; e != nil && q.SQ.Oldest() == e {
		q.fail(s, e.Status, 0)
	}
}

// has says whether the peer has reported that it has the packet, or, for a response, has sent it.
func (r *requester) has(psn uint32) bool {
	i := psn % windowPackets
	return before(psn, r.sackHigh) && r.arrived[i/64]>>(i%64)&1 != 0 || r.hasCome(psn)
}

// hasCome says whether the packet is of a response and has arrived.
func (r *requester) hasCome(psn uint32) bool {
	i := psn % windowPackets
	return r.came[i/64]>>(i%64)&1 != 0
}

// gap counts the packets from psn on that have not arrived, at most n.
func (r *requester) gap(psn, n uint32) uint32 {
	for i := range n {
		if r.hasCome(psn + i) {
			return i
		}
	}
	return n
}

// settled says whether the packet psn of e needs nothing more.
func (r *requester) settled(e *soft.SendEntry, psn uint32) bool {
	if e.Opcode >= verbs.OpRDMARead {
		return r.hasCome(psn)
	}
	return before(psn, r.executed) || r.has(psn)
}

// overtook: psn has arrived, or missing packets before it count as overtaken by by more.
func (r *requester) overtook(psn, by uint32) {
	if before(r.sackHigh, psn+1) {
		r.sackHigh = psn + 1
	}
	if at := r.sentAt[psn%windowPackets] + by; before(r.newest, at) {
		r.newest = at
	}
}

// forgetArrived causes everything unacknowledged to be sent again, except responses that have
// arrived.
func (r *requester) forgetArrived() {
	r.sackHigh, r.arrived, r.probeAt = r.una, [windowPackets / 64]uint64{}, 0
}

// fillHoles resends packets that have not arrived although later ones have.
func (q *qp) fillHoles(s *soft.Sink, now int64) {
	r := &q.req
	nxt, cur := r.nxt, r.cur
	pos := q.SQ.Head()
	for psn := r.una; before(psn, r.sackHigh) && before(psn, nxt) && r.faulty == nil; {
		for pos != q.SQ.Next() && before(q.SQ.At(pos).Mark, psn) {
			pos++
		}
		if pos == q.SQ.Next() {
			break
		}
		e := q.SQ.At(pos)
		n, there := uint32(1), r.settled(e, psn)
		if e.Opcode >= verbs.OpRDMARead && !before(psn, r.executed) {
			n, there = q.partEnd(e, psn)-psn, r.has(psn) // a request without any response packet so far
		}
		if there || int32(r.newest-r.sentAt[psn%windowPackets]) < reorder {
			psn += n
			continue
		}
		if r.pace.timing && r.pace.timedPSN == psn {
			r.pace.untime()
		}
		r.nxt, r.cur = psn, pos
		n = max(q.sendAt(e, now, true), 1)
		if before(psn, r.executed) {
			r.pace.lost += r.gap(psn, n)
		} else {
			r.pace.lost++ // a lost request is one packet, however long its response
		}
		psn += n
	}
	r.nxt, r.cur = nxt, cur
}

// goBack causes everything from psn on to be sent again.
func (q *qp) goBack(psn uint32) {
	r := &q.req
	r.nxt, r.cur = psn, q.position(psn)
	r.faulty = nil
	r.sinceAck = 0
	r.pace.untime()
}

// position returns the queue position of the entry of an outstanding PSN, or the end of those.
func (q *qp) position(psn uint32) uint32 {
	pos := q.SQ.Head()
	for pos != q.SQ.Next() && before(q.SQ.At(pos).Mark, psn) {
		pos++
	}
	return pos
}
