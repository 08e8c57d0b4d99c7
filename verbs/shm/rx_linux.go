package shm

import (
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// message is the message being received, if that takes more than one call.
type message struct {
	active bool // its header is accepted; for SEND and immediates a receive is taken
	cut    bool // it was interrupted only for its length
	op     verbs.Opcode
	bits   uint8
	imm    uint32
	rkey   uint32
	length uint32
	off    uint32
	raddr  uint64
	pieces []piece // where the payload of a pulled message is
}

// answer is a request of the peer that awaits a response.
type answer struct {
	atomic bool
	rkey   uint32
	length uint32
	off    uint32
	raddr  uint64
	old    uint64
}

// ready says whether progress would find work. The caller holds the lock, or the driving lock
// of a CQ.
func (q *QP) ready() bool {
	in := q.in.Load()
	if in == nil {
		return q.todo.Load() != todoNothing
	}
	seen := atomic.LoadUint32(&q.seen)
	if _, ok := in.arrived(seen + 1); ok {
		return true
	}
	return seen != atomic.LoadUint32(&q.published) ||
		atomic.LoadUint64(&in.ack) != atomic.LoadUint64(&q.lastAck) ||
		q.todo.Load() != todoNothing
}

// progress receives messages, completes sends that the peer has executed, and starts sends
// that may now start. s belongs to the Poll that calls it, nil without one.
func (q *QP) progress(s *soft.Sink) {
	if q.State() == verbs.QPErr {
		q.FlushAll(s)
		return
	}
	in := q.in.Load()
	if in == nil || q.out.inbox == nil || q.out.inbox == noInbox || atomic.LoadUint32(&in.writer) != q.peerInc {
		// There is no peer, or the attached one is an earlier incarnation of the QP that
		// writes here: its own ctlOpen is on the way, and responses and acknowledgements
		// would go to the wrong place.
		if q.SQ.Waiting() != nil {
			q.pump(s)
			q.settle()
		}
		return
	}
	// Read the word before the slots: messages that the peer wrote before a refusal come
	// before it.
	word := atomic.LoadUint64(&in.ack)
	raceSync()
	n := q.receive(in, s)
	if word != q.lastAck && q.State() != verbs.QPErr {
		q.acknowledged(word, s)
	}
	if q.State() != verbs.QPErr && (q.SQ.Waiting() != nil || len(q.answers) > 0) {
		q.pump(s)
	}
	// A message that this side sends soon carries the acknowledgement. It is written on
	// its own when a poll finds nothing to receive, when too many slots are
	// unacknowledged, and when the engine receives: it will not look again.
	if q.seen != q.published && (n == 0 || s == nil || q.seen-q.published >= q.ackAfter) {
		q.publishAck(0)
	}
	q.settle()
}

// publishAck tells the peer how many slots we have consumed and, with a status, that the next
// message is refused.
func (q *QP) publishAck(status verbs.WCStatus) {
	if q.out.inbox == nil || q.out.inbox == noInbox {
		return
	}
	word := uint64(q.seen) | uint64(status)<<32
	raceSync()
	if q.link.fenced {
		atomic.StoreUint64(&q.out.ack, word)
	} else {
		wait.StoreRelease64(&q.out.ack, word)
	}
	wait.StoreRelease32(&q.published, q.seen)
	q.wakePeer()
}

// acknowledged acts on the peer's word: slots consumed, and a status if it refuses the
// message after them.
func (q *QP) acknowledged(word uint64, s *soft.Sink) {
	wait.StoreRelease64(&q.lastAck, word)
	if !q.consumed(uint32(word), s) {
		return
	}
	if status := verbs.WCStatus(word >> 32); status != verbs.WCSuccess {
		switch status {
		case verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCRemOpErr, verbs.WCRNRRetryExcErr, verbs.WCLocProtErr:
		default:
			status = verbs.WCBadRespErr
		}
		q.fail(s, status)
	}
}

// consumed completes the sends whose slots the peer has consumed. An impossible count breaks
// the connection, and consumed returns false.
func (q *QP) consumed(n uint32, s *soft.Sink) bool {
	if n == q.out.acked {
		return true
	}
	if int32(n-q.out.acked) < 0 {
		// The count in a message may be older than the word: by any amount if the
		// message has been waiting for a receive.
		return true
	}
	if !q.out.consumed(n) {
		q.broken(s)
		return false
	}
	q.retire(s)
	return q.State() != verbs.QPErr // the completions may have overrun the CQ
}

// broken: the peer wrote invalid values.
func (q *QP) broken(s *soft.Sink) {
	q.ctx.log.Error("shm: peer wrote invalid values to the inbox, failing the QP", "peer", q.link.gid, "qp", q.Num)
	q.fail(s, verbs.WCBadRespErr)
	q.Events.Add(verbs.EventQPFatal, q)
}

// receive processes the slots that have arrived, and returns how many it consumed. It stops
// when s is full.
func (q *QP) receive(in *inbox, s *soft.Sink) int {
	n := 0
	q.msg.cut = false
	for !q.deaf {
		flag, ok := in.arrived(q.seen + 1)
		if !ok {
			break
		}
		if s != nil && s.N == len(s.WCs) || n == slotCount {
			q.msg.cut = true
			return n
		}
		if n == 0 && uint8(flag>>40)&bitPacked != 0 && q.packed > 0 {
			q.trail.Fetch(in.bytes[:], q.packed)
		}
		sl := &in.slots[q.seen&slotMask]
		if !q.msg.active && q.quickReceive(sl, flag, s) {
			n++
			continue
		}
		if q.State() == verbs.QPErr {
			return n
		}
		if ack := sl.ack; ack != q.out.acked && !q.consumed(ack, s) {
			return n
		}
		if !q.accept(in, sl, flag, s) {
			if q.State() != verbs.QPErr {
				q.acksBehind(in, s)
			}
			return n
		}
		wait.StoreRelease32(&q.seen, q.seen+1)
		n++
		if q.State() == verbs.QPErr {
			return n
		}
	}
	return n
}

// acksBehind accepts the newest acknowledgement in the slots behind one that has to wait: the
// peer considers it delivered.
func (q *QP) acksBehind(in *inbox, s *soft.Sink) {
	newest := q.out.acked
	for i := q.seen + 2; i-q.seen <= slotCount; i++ {
		if _, ok := in.arrived(i); !ok {
			break
		}
		newest = in.slots[(i-1)&slotMask].ack
	}
	q.consumed(newest, s)
}

// quickReceive is the short path of accept for small latencies: it completes a SEND whose
// payload is in its slot, if nothing else has to come first. Otherwise it does nothing and
// returns false.
func (q *QP) quickReceive(sl *slot, flag uint64, s *soft.Sink) bool {
	op, bits, n := uint8(flag>>32), uint8(flag>>40), uint32(flag>>48)
	if op != uint8(verbs.OpSend) && op != uint8(verbs.OpSendWithImm) || bits&(bitPacked|bitPull) != 0 ||
		n > inlineSend || q.SRQ || q.stalled.Load() || !q.RecvCQ.Straight(s) {
		return false
	}
	r := q.RQ.Peek()
	if r == nil || len(r.SGEs) != 1 || n > r.SGEs[0].Length {
		return false
	}
	m, f := q.ctx.mrs.Lookup(q.PD, r.SGEs[0].LKey, r.SGEs[0].Addr, uint64(r.SGEs[0].Length), verbs.AccessLocalWrite)
	if f != soft.OK {
		return false
	}
	if ack := sl.ack; ack != q.out.acked {
		// Completions of sends come before that of the reply to them.
		if !q.consumed(ack, s) || !q.RecvCQ.Straight(s) {
			return false
		}
	}
	dst := m.Slice(r.SGEs[0].Addr, int(n))
	if n == 8 {
		*(*[8]byte)(dst) = *(*[8]byte)(sl.sendPayload()[:])
	} else {
		copy(dst, sl.sendPayload()[:])
	}
	wc := s.Next(q.RQ.Polled())
	*wc = verbs.WC{WRID: r.WRID, Opcode: verbs.WCRecv, ByteLen: n, QPNum: q.Num, SrcQP: q.Attr.DestQPNum}
	if op == uint8(verbs.OpSendWithImm) {
		wc.Imm, wc.Flags = sl.imm, verbs.WCWithImm
	}
	q.RQ.Drop()
	wait.StoreRelease32(&q.seen, q.seen+1)
	return true
}

// accept processes one slot. False: the slot stays, for later or for ever.
func (q *QP) accept(in *inbox, sl *slot, flag uint64, s *soft.Sink) bool {
	m := &q.msg
	op, bits, inline := uint8(flag>>32), uint8(flag>>40), int(flag>>48)
	switch op {
	case opMore:
		if !m.active || m.bits&bitPacked == 0 {
			q.broken(s)
			return false
		}
		return q.acceptPacked(in, *sl.packed(), s)
	case opReadBytes:
		return q.acceptRead(in, *sl.packed(), s)
	case opAtomicDone:
		return q.acceptAtomic(sl.raddr, s)
	case uint8(verbs.OpRDMARead), uint8(verbs.OpAtomicCmpAndSwp), uint8(verbs.OpAtomicFetchAndAdd):
		return !m.active && q.acceptRequest(verbs.Opcode(op), sl, s)
	case uint8(verbs.OpSend), uint8(verbs.OpSendWithImm), uint8(verbs.OpRDMAWrite), uint8(verbs.OpRDMAWriteWithImm):
	default:
		q.broken(s)
		return false
	}
	if m.active && m.bits&bitPull == 0 || bits&bitPacked != 0 && bits&bitPull != 0 {
		q.broken(s)
		return false
	}
	if !m.active {
		m.op, m.bits, m.imm, m.off = verbs.Opcode(op), bits, sl.imm, 0
		send := m.op == verbs.OpSend || m.op == verbs.OpSendWithImm
		var payload []byte
		if bits&(bitPacked|bitPull) == 0 {
			if send && inline > inlineSend || !send && inline > inlineWrite {
				q.broken(s)
				return false
			}
			m.length = uint32(inline)
			payload = sl.body[:]
			if send {
				payload = sl.sendPayload()[:]
			}
			payload = payload[:inline]
		} else if m.length = sl.length; m.length > maxMsg {
			q.broken(s)
			return false
		}
		if !send {
			m.rkey, m.raddr = sl.rkey, sl.raddr
		}
		if len(q.answers) > 0 {
			return false // a fault must not overtake responses
		}
		if !q.begin(s) {
			return false
		}
		m.active = true
		if bits&(bitPacked|bitPull) == 0 {
			if !q.place(payload, s) {
				return false
			}
			return q.finish(s)
		}
		if bits&bitPacked != 0 {
			return q.acceptPacked(in, *sl.packed(), s)
		}
		if !q.readPieces(in, *sl.pull(), s) {
			return false
		}
	}
	return q.acceptPull(s)
}

// begin checks what a message needs before its first byte: a receive for SEND
// and immediates, a writable region for writes. False: not now, or refused.
func (q *QP) begin(s *soft.Sink) bool {
	m := &q.msg
	write := m.op == verbs.OpRDMAWrite || m.op == verbs.OpRDMAWriteWithImm
	if write && m.length > 0 {
		if q.Attr.AccessFlags&verbs.AccessRemoteWrite == 0 {
			q.refuseEvent(verbs.WCRemInvReqErr)
			return false
		}
		if _, f := q.ctx.mrs.Lookup(q.PD, m.rkey, m.raddr, uint64(m.length), verbs.AccessRemoteWrite); f != soft.OK {
			q.refuseEvent(verbs.WCRemAccessErr)
			return false
		}
	}
	if m.op == verbs.OpRDMAWrite {
		return true
	}
	if !q.RQ.Take(&q.Receive) && !q.notReady() {
		return false
	}
	if q.rnrUntil != 0 || q.stalled.Load() {
		q.stalled.Store(false)
		q.ctx.stalled.Add(-1)
		q.rnrUntil = 0
		q.setDeadline()
	}
	if write {
		return true
	}
	total, f := q.ctx.mrs.CheckSGEs(q.PD, q.Receive.SGEs, verbs.AccessLocalWrite)
	switch {
	case f != soft.OK:
		q.failReceive(verbs.WCLocProtErr, verbs.WCRemOpErr, s)
		return false
	case uint64(m.length) > total:
		q.failReceive(verbs.WCLocLenErr, verbs.WCRemInvReqErr, s)
		return false
	}
	return true
}

// notReady: there is no receive for the message. It waits as long as the peer's retry counter
// and our timer allow; PostRecv sees stalled and kicks the engine. PostRecv needs no fence
// for that: the barrier here, which is rare, makes at least one side see the other. notReady
// returns true if a receive has been posted by now.
func (q *QP) notReady() bool {
	if q.stalled.Load() {
		return false
	}
	q.stalled.Store(true)
	q.ctx.stalled.Add(1)
	wait.Barrier()
	if q.RQ.Take(&q.Receive) {
		return true
	}
	retry := atomic.LoadUint32(&q.in.Load().rnrRetry)
	if retry < 7 {
		q.rnrUntil = q.ctx.now() + int64(retry+1)*int64(verbs.RNRTimer(q.Attr.MinRNRTimer))
		q.setDeadline()
		q.ctx.kick()
	}
	return false
}

// place copies payload bytes to the destination of the message.
func (q *QP) place(b []byte, s *soft.Sink) bool {
	m := &q.msg
	if m.op == verbs.OpSend || m.op == verbs.OpSendWithImm {
		if len(q.Receive.SGEs) == 1 && m.off == 0 {
			r := &q.Receive.SGEs[0]
			if mr, f := q.ctx.mrs.Lookup(q.PD, r.LKey, r.Addr, uint64(len(b)), verbs.AccessLocalWrite); f == soft.OK && int(r.Length) >= len(b) {
				layout.Copy(mr.Slice(r.Addr, len(b)), b)
				m.off += uint32(len(b))
				return true
			}
		}
		if q.ctx.mrs.Scatter(q.PD, q.Receive.SGEs, uint64(m.off), b) != soft.OK {
			q.failReceive(verbs.WCLocProtErr, verbs.WCRemOpErr, s)
			return false
		}
	} else if len(b) > 0 {
		mr, f := q.ctx.mrs.Lookup(q.PD, m.rkey, m.raddr+uint64(m.off), uint64(len(b)), verbs.AccessRemoteWrite)
		if f != soft.OK {
			q.refuseEvent(verbs.WCRemAccessErr)
			return false
		}
		layout.Copy(mr.Slice(m.raddr+uint64(m.off), len(b)), b)
	}
	m.off += uint32(len(b))
	return true
}

// acceptPacked places the bytes of one slot, and finishes the message after the last.
func (q *QP) acceptPacked(in *inbox, p packed, s *soft.Sink) bool {
	b, ok := in.payloadBytes(p)
	if !ok || p.n > q.msg.length-q.msg.off {
		q.broken(s)
		return false
	}
	q.trail.Follow(p.pos, p.n)
	q.packed = p.n
	if !q.place(b, s) {
		return false
	}
	if q.msg.off == q.msg.length {
		return q.finish(s)
	}
	return true
}

// payloadBytes returns a piece of the bytes of the inbox, if it lies in them.
func (b *inbox) payloadBytes(p packed) ([]byte, bool) {
	if p.pos > payloadLen || p.n > payloadLen-p.pos {
		return nil, false
	}
	return b.bytes[p.pos : p.pos+p.n], true
}

// readPieces copies the description of a payload in the peer's memory.
func (q *QP) readPieces(in *inbox, p pull, s *soft.Sink) bool {
	m := &q.msg
	m.pieces = append(m.pieces[:0], p.first)
	if p.count < 1 || p.count > maxSGE {
		q.broken(s)
		return false
	}
	if p.count > 1 {
		size := uint32(unsafe.Sizeof(piece{}))
		b, ok := in.payloadBytes(packed{p.pos, (p.count - 1) * size})
		if !ok || p.pos%8 != 0 {
			q.broken(s)
			return false
		}
		m.pieces = append(m.pieces, unsafe.Slice((*piece)(unsafe.Pointer(unsafe.SliceData(b))), p.count-1)...)
	}
	var total uint64
	for _, d := range m.pieces {
		total += uint64(d.length)
	}
	if total != uint64(m.length) {
		q.broken(s)
		return false
	}
	return true
}

// acceptPull fetches payload from the peer's memory, with one copy straight to its
// destination.
func (q *QP) acceptPull(s *soft.Sink) bool {
	m := &q.msg
	budget := uint32(burst)
	for m.off < m.length {
		skip := m.off
		i := 0
		for skip >= m.pieces[i].length {
			skip -= m.pieces[i].length
			i++
		}
		d := m.pieces[i]
		n := min(d.length-skip, budget)
		if n == 0 {
			m.cut = true
			return false
		}
		mem, how := q.enter(d.key, d.addr+uint64(skip), uint64(n), 0, 0, false)
		ok := false
		switch how {
		case reachMapped:
			ok = q.place(mem, s)
		case reachRead:
			ok = q.placeFetched(d.addr+uint64(skip), n, s)
		case reachLater:
			q.leave()
			return false
		default:
			// The sender has closed the region in the meantime.
			q.leave()
			q.refuse(verbs.WCLocProtErr)
			return false
		}
		q.leave()
		if !ok {
			return false
		}
		budget -= n
	}
	// If the sender has left, it has flushed this send, and may have reused the memory
	// since: the message did not arrive, and the ctlClose is on the way. leave above
	// ensures that the bytes were read before this check.
	if atomic.LoadUint32(&q.out.left) != 0 {
		return false
	}
	return q.finish(s)
}

// placeFetched is place for bytes at addr in the peer's process.
func (q *QP) placeFetched(addr uint64, n uint32, s *soft.Sink) bool {
	m := &q.msg
	sges, off := q.Receive.SGEs, uint64(m.off)
	var one [1]verbs.SGE
	if m.op == verbs.OpRDMAWrite || m.op == verbs.OpRDMAWriteWithImm {
		one[0] = verbs.SGE{Addr: m.raddr, Length: m.length, LKey: m.rkey}
		sges = one[:]
	}
	ok, fault := q.fetch(sges, off, addr, uint64(n))
	switch {
	case fault != soft.OK && m.op == verbs.OpRDMAWrite || fault != soft.OK && m.op == verbs.OpRDMAWriteWithImm:
		q.refuseEvent(verbs.WCRemAccessErr)
		return false
	case fault != soft.OK:
		q.failReceive(verbs.WCLocProtErr, verbs.WCRemOpErr, s)
		return false
	case !ok:
		q.refuse(verbs.WCRemOpErr)
		return false
	}
	m.off += n
	return true
}

// finish completes a message that is in place.
func (q *QP) finish(s *soft.Sink) bool {
	m := &q.msg
	m.active, m.cut = false, false
	if m.op == verbs.OpRDMAWrite {
		return true
	}
	wc := verbs.WC{WRID: q.Receive.WRID, Opcode: verbs.WCRecv, ByteLen: m.length}
	if m.op == verbs.OpRDMAWriteWithImm {
		wc.Opcode = verbs.WCRecvRDMAWithImm
	}
	if m.op == verbs.OpRDMAWriteWithImm || m.op == verbs.OpSendWithImm {
		wc.Imm, wc.Flags = m.imm, verbs.WCWithImm
	}
	if !q.CompleteRecv(s, &wc, m.bits&bitSolicited != 0) {
		q.overrun(s)
	}
	return true
}

// refuse refuses the message at the head of the inbox with a status, and receives no more.
func (q *QP) refuse(status verbs.WCStatus) {
	q.deaf = true
	q.msg.cut = false
	if q.stalled.Swap(false) {
		q.ctx.stalled.Add(-1)
	}
	q.rnrUntil = 0
	q.setDeadline()
	q.publishAck(status)
}

// refuseEvent refuses a violation by the peer: this QP goes to ERR as well, with an event.
func (q *QP) refuseEvent(status verbs.WCStatus) {
	q.refuse(status)
	ev := verbs.EventQPAccessErr
	if status == verbs.WCRemInvReqErr {
		ev = verbs.EventQPReqErr
	}
	q.Events.Add(ev, q)
	q.fail(nil, verbs.WCSuccess)
}

// failReceive refuses a message because of a fault of the receive that it took.
func (q *QP) failReceive(local, remote verbs.WCStatus, s *soft.Sink) {
	q.refuse(remote)
	q.msg.active = false
	q.CompleteRecv(s, &verbs.WC{WRID: q.Receive.WRID, Status: local, Opcode: verbs.WCRecv}, false)
	q.fail(s, verbs.WCSuccess)
}

// acceptRequest accepts an RDMA_READ or atomic that the peer could not execute itself.
func (q *QP) acceptRequest(op verbs.Opcode, sl *slot, s *soft.Sink) bool {
	a := answer{rkey: sl.rkey, raddr: sl.raddr, length: sl.length}
	args := *sl.atomicArgs()
	need := verbs.AccessRemoteRead
	if a.atomic = op != verbs.OpRDMARead; a.atomic {
		need = verbs.AccessRemoteAtomic
	}
	if len(q.answers) == cap(q.answers) {
		return false
	}
	fault := verbs.WCSuccess
	var mr *soft.MR
	switch {
	case q.Attr.AccessFlags&need == 0, a.atomic && a.raddr%8 != 0, !a.atomic && a.length > maxMsg:
		fault = verbs.WCRemInvReqErr
	case a.atomic || a.length > 0:
		n := uint64(a.length)
		if a.atomic {
			n = 8
		}
		var f soft.Fault
		if mr, f = q.ctx.mrs.Lookup(q.PD, a.rkey, a.raddr, n, need); f != soft.OK {
			fault = verbs.WCRemAccessErr
		}
	}
	if fault != verbs.WCSuccess {
		if len(q.answers) == 0 {
			q.refuseEvent(fault)
		}
		return false
	}
	if a.atomic {
		a.old = execute(op, word(mr.Slice(a.raddr, 8)), args.compareAdd, args.swap)
	}
	q.answers = append(q.answers, a)
	return true
}

// asked returns the oldest request without a complete response.
func (q *QP) asked(isAtomic bool) *soft.SendEntry {
	for e := range q.SQ.OutstandingEntries {
		if !e.Done && e.Opcode >= verbs.OpRDMARead {
			if isAtomic == (e.Opcode != verbs.OpRDMARead) {
				return e
			}
			return nil
		}
	}
	return nil
}

// acceptRead places bytes of the response to an RDMA_READ.
func (q *QP) acceptRead(in *inbox, p packed, s *soft.Sink) bool {
	e := q.asked(false)
	b, ok := in.payloadBytes(p)
	if e == nil || !ok || uint64(p.n) > e.Length-e.Off {
		q.broken(s)
		return false
	}
	if q.ctx.mrs.Scatter(q.PD, e.SGEs, e.Off, b) != soft.OK {
		q.fail(s, verbs.WCLocProtErr)
		return false
	}
	e.Off += uint64(p.n)
	if e.Off == e.Length {
		q.answered(e, s)
	}
	return true
}

// acceptAtomic places the response to an atomic.
func (q *QP) acceptAtomic(old uint64, s *soft.Sink) bool {
	e := q.asked(true)
	if e == nil {
		q.broken(s)
		return false
	}
	b := nativeUint64(old)
	if q.ctx.mrs.Scatter(q.PD, e.SGEs, 0, b[:]) != soft.OK {
		q.fail(s, verbs.WCLocProtErr)
		return false
	}
	q.answered(e, s)
	return true
}

func (q *QP) answered(e *soft.SendEntry, s *soft.Sink) {
	e.Done = true
	q.requests--
	q.retire(s)
}
