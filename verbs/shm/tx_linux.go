package shm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

const (
	// burst limits the bytes that are moved while the QP's lock is held once.
	burst = 1 << 20
	// packMax limits the payload of one slot in the bytes of the inbox: small enough that
	// both sides copy at the same time.
	packMax = 16 << 10
	// pullMin: shorter payload outside arenas is packed. Two copies of that
	// length cost less than the two system calls of fetching it.
	pullMin = 16 << 10
	// gatherMax: payload of several pieces up to this is packed.
	gatherMax = 2 << 10
)

// reach says how a region of the peer can be accessed.
type reach uint8

const (
	reachFault  reach = iota // wrong key, range, domain or access flags
	reachMapped              // through our mapping of its arena
	reachRead                // not in an arena: process_vm_readv
	reachLater               // in an arena that the peer has not sent yet
)

// enter looks a region of the peer up and marks it as being accessed until leave, for which
// the peer's MR.Close waits. It sets the mark, by an exchange, before it looks, so that either
// we see that the region is gone, or its owner sees the mark. With checkPD the peer's QP must
// allow the access, and the region must belong to the peer's domain pd.
func (q *QP) enter(key uint32, addr, n uint64, need verbs.AccessFlags, pd uint32, checkPD bool) ([]byte, reach) {
	i := key >> genBits
	if i >= maxMR {
		return nil, reachFault
	}
	atomic.StoreUint64(&q.out.hazard, uint64(i)+1)
	raceSync()
	if checkPD && verbs.AccessFlags(atomic.LoadUint32(&q.out.access))&need != need {
		return nil, reachFault
	}
	r := &q.link.ctrl.regions[i]
	state := atomic.LoadUint64(&r.state)
	if state&regionLive == 0 || uint32(state) != key || verbs.AccessFlags(state>>32)&need != need || checkPD && r.pd != pd {
		return nil, reachFault
	}
	base, length, arena, off := r.addr, r.length, r.arena, r.offset
	if addr < base || addr-base > length || n > length-(addr-base) {
		return nil, reachFault
	}
	if arena == noArena {
		return nil, reachRead
	}
	segs := *q.link.segments.Load()
	if uint64(arena) >= uint64(len(segs)) || segs[arena] == nil {
		return nil, q.link.lacks(arena)
	}
	mem := segs[arena].mem
	if off > uint64(len(mem)) || length > uint64(len(mem))-off {
		return nil, reachFault
	}
	off += addr - base
	return mem[off : off+n : off+n], reachMapped
}

// leave ends what enter began.
func (q *QP) leave() {
	if q.out.inbox != nil {
		raceSync()
		wait.StoreRelease64(&q.out.hazard, 0)
	}
}

// pump responds to the peer's requests and starts waiting sends, as far as room and order
// allow.
func (q *QP) pump(s *soft.Sink) {
	for len(q.answers) > 0 && q.answer() {
	}
	q.cut = false
	started := false
	for e := q.SQ.Waiting(); e != nil && q.State() != verbs.QPErr; e = q.SQ.Waiting() {
		if !q.joined {
			if q.out.inbox == noInbox {
				q.unanswered(s)
			} else {
				q.awaitPeer()
			}
			break
		}
		if e.Status != verbs.WCSuccess {
			// A fault of its own: it fails when everything before it is complete.
			if !q.SQ.Outstanding() {
				q.fail(s, e.Status)
			}
			break
		}
		if !q.start(e) {
			if e.Status != verbs.WCSuccess {
				continue
			}
			break
		}
		q.SQ.Started()
		started = true
	}
	if started {
		q.wakePeer()
		q.retire(s)
	}
}

// awaitPeer sets the deadline of sends that have no connection yet: hardware would send, time
// out and resend. The specification lets a timeout last up to 4 times its value (InfiniBand
// architecture, 9.7.6.1.3).
func (q *QP) awaitPeer() {
	t := verbs.AckTimeout(q.Attr.Timeout)
	if q.giveUp != 0 || t == 0 {
		return
	}
	q.giveUp = q.ctx.now() + 4*int64(t)*int64(q.Attr.RetryCnt+1)
	q.setDeadline()
	q.ctx.kick()
}

// settle notes for polling and the engine what is left to do.
func (q *QP) settle() {
	t := uint32(todoNothing)
	switch e := q.SQ.Waiting(); {
	case q.msg.cut || q.cut:
		t = todoNow
	case e != nil || len(q.answers) > 0:
		t = todoWait
	}
	if t != q.todo.Load() {
		q.todo.Store(t)
		if t != todoNothing {
			q.ctx.ctrl.boards.note(q.places)
		}
	}
}

func (q *QP) retire(s *soft.Sink) {
	if !q.SQ.Retire(q.out.acked, &q.scq.CQ, s, q.Num, q.Attr.DestQPNum) {
		q.overrun(s)
	}
	q.Drained()
}

// overrun: the CQ lost a completion, so the QP fails.
func (q *QP) overrun(s *soft.Sink) {
	if q.State() != verbs.QPErr {
		q.Events.Add(verbs.EventQPFatal, q)
		q.fail(s, verbs.WCSuccess)
	}
}

// wakePeer does what the peer requests after a write to its inbox. Without membarrier,
// publishing was a full fence.
func (q *QP) wakePeer() {
	if q.out.inbox == nil {
		return // left meanwhile
	}
	if notify := atomic.LoadUint64(&q.out.notify); notify != 0 {
		q.notify(notify)
	}
}

// notify sets the bits on the boards of the peer's CQs, if these have boards, and rings if
// the peer's engine waits for this inbox.
func (q *QP) notify(notify uint64) {
	q.link.ctrl.boards.note(notify)
	if notify&notifyWake != 0 && atomic.AndUint64(&q.out.notify, ^uint64(notifyWake))&notifyWake != 0 {
		q.link.ring()
	}
}

// start begins an entry whose turn it is. False: not now.
func (q *QP) start(e *soft.SendEntry) bool {
	if q.packing {
		return q.sendMore(e)
	}
	if e.Flags&verbs.SendFence != 0 && q.requests > 0 {
		return false
	}
	switch e.Opcode {
	case verbs.OpRDMAWrite:
		if !q.SQ.Outstanding() {
			switch q.directWrite(e) {
			case directDone:
				return true
			case directLater:
				return false
			}
		}
		return q.sendMessage(e)
	case verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd:
		// Slots that the peer has not consumed yet must be executed first.
		if q.out.sent != q.out.acked {
			return false
		}
		if !q.SQ.Outstanding() {
			d := directRing
			if e.Opcode == verbs.OpRDMARead {
				d = q.directRead(e)
			} else {
				d = q.directAtomic(e)
			}
			switch d {
			case directDone:
				return true
			case directLater:
				return false
			}
		}
		return q.sendRequest(e)
	default:
		return q.sendMessage(e)
	}
}

// direct is the result of trying a one-sided operation without the peer.
type direct uint8

const (
	directRing  direct = iota // the peer must execute it, or find the fault
	directDone                // complete
	directLater               // go on with it later
)

// directWrite copies into the peer's arena.
func (q *QP) directWrite(e *soft.SendEntry) direct {
	if e.Length == 0 {
		e.Done = true
		return directDone
	}
	n := min(e.Length-e.Off, burst)
	mem, how := q.enter(e.RKey, e.RemoteAddr+e.Off, n, verbs.AccessRemoteWrite, q.out.pd, true)
	defer q.leave()
	switch how {
	case reachLater:
		return directLater
	case reachMapped:
	default:
		e.Off = 0
		return directRing
	}
	if e.Off == 0 && n < e.Length {
		// The whole range must be valid before the first byte is written.
		if _, how := q.enter(e.RKey, e.RemoteAddr, e.Length, verbs.AccessRemoteWrite, q.out.pd, true); how != reachMapped {
			return directRing
		}
	}
	if e.IsInline {
		copy(mem, e.Inline[e.Off:])
	} else if q.ctx.mrs.Gather(q.PD, e.SGEs, e.Off, mem) != soft.OK {
		e.Status = verbs.WCLocProtErr
		return directLater
	}
	e.Off += n
	return q.moved(e)
}

func (q *QP) moved(e *soft.SendEntry) direct {
	if e.Off < e.Length {
		q.cut = true
		return directLater
	}
	e.Done = true
	return directDone
}

// directRead copies out of the peer's arena, or has the kernel do it.
func (q *QP) directRead(e *soft.SendEntry) direct {
	if e.Length == 0 {
		e.Done = true
		return directDone
	}
	n := min(e.Length-e.Off, burst)
	if _, how := q.enter(e.RKey, e.RemoteAddr, e.Length, verbs.AccessRemoteRead, q.out.pd, true); how == reachFault {
		q.leave()
		return directRing
	}
	mem, how := q.enter(e.RKey, e.RemoteAddr+e.Off, n, verbs.AccessRemoteRead, q.out.pd, true)
	defer q.leave()
	fault := soft.OK
	switch how {
	case reachLater:
		return directLater
	case reachMapped:
		fault = q.ctx.mrs.Scatter(q.PD, e.SGEs, e.Off, mem)
	case reachRead:
		if !q.link.canRead.Load() {
			q.link.sayForbidden()
			return directRing
		}
		var ok bool
		if ok, fault = q.fetch(e.SGEs, e.Off, e.RemoteAddr+e.Off, n); !ok {
			return directRing
		}
	default:
		return directRing
	}
	if fault != soft.OK {
		e.Status = verbs.WCLocProtErr
		return directLater
	}
	e.Off += n
	return q.moved(e)
}

// fetch reads n bytes at addr in the peer's process into the memory of sges at offset off. It
// returns false if the kernel refuses.
func (q *QP) fetch(sges []verbs.SGE, off, addr, n uint64) (bool, soft.Fault) {
	iov := q.local[:0]
	for f, dst := range q.ctx.mrs.Pieces(q.PD, sges, off, n, verbs.AccessLocalWrite) {
		if f != soft.OK {
			return true, f
		}
		iov = append(iov, unix.Iovec{Base: unsafe.SliceData(dst)})
		iov[len(iov)-1].SetLen(len(dst))
	}
	ok := q.link.readPeer(iov, addr, int(n))
	clear(iov)
	return ok, soft.OK
}

// directAtomic operates on the peer's arena.
func (q *QP) directAtomic(e *soft.SendEntry) direct {
	if e.RemoteAddr%8 != 0 {
		return directRing
	}
	mem, how := q.enter(e.RKey, e.RemoteAddr, 8, verbs.AccessRemoteAtomic, q.out.pd, true)
	defer q.leave()
	switch how {
	case reachLater:
		return directLater
	case reachMapped:
	default:
		return directRing
	}
	if _, f := q.ctx.mrs.CheckSGEs(q.PD, e.SGEs, verbs.AccessLocalWrite); f != soft.OK {
		e.Status = verbs.WCLocProtErr
		return directLater
	}
	old := nativeUint64(execute(e.Opcode, word(mem), e.CompareAdd, e.Swap))
	q.ctx.mrs.Scatter(q.PD, e.SGEs, 0, old[:])
	e.Done = true
	return directDone
}

// execute does an atomic and returns the old value.
func execute(op verbs.Opcode, p *uint64, compareAdd, swap uint64) uint64 {
	if op == verbs.OpAtomicFetchAndAdd {
		return atomic.AddUint64(p, compareAdd) - compareAdd
	}
	for {
		old := atomic.LoadUint64(p)
		if old != compareAdd || atomic.CompareAndSwapUint64(p, old, swap) {
			return old
		}
	}
}

// publish adds the acknowledgement to the next slot, which is otherwise complete, and writes
// its flag.
func (q *QP) publish(sl *slot, op, bits uint8, inline int) {
	seen := atomic.LoadUint32(&q.seen)
	sl.ack = seen
	o := &q.out
	o.advance()
	f := flagOf(o.sent, op, bits, inline)
	raceSync()
	if q.link.fenced {
		atomic.StoreUint64(&sl.flag, f)
	} else {
		wait.StoreRelease64(&sl.flag, f)
	}
	wait.StoreRelaxed32(&q.published, seen)
}

// quick is the short path of sendMessage and sendInline for small latencies: it sends a
// request that fits a slot, if nothing else has to come first. Otherwise it does nothing and
// returns false.
func (q *QP) quick(wr *verbs.SendWR) bool {
	if !q.joined || !q.SQ.Straight() || !q.out.room() || q.State() == verbs.QPErr ||
		wr.Flags&^(verbs.SendSignaled|verbs.SendSolicited|verbs.SendInline) != 0 {
		return false
	}
	var src []byte
	switch {
	case wr.Flags&verbs.SendInline != 0:
		if wr.Inline == nil || len(wr.SGList) != 0 || len(wr.Inline) > q.Attr.Cap.MaxInlineData {
			return false
		}
		src = wr.Inline
	case len(wr.SGList) == 1 && wr.Inline == nil:
		g := &wr.SGList[0]
		if g.Length-1 >= inlineSend { // 0 as well, which needs no region
			return false
		}
		m, f := q.ctx.mrs.Lookup(q.PD, g.LKey, g.Addr, uint64(g.Length), 0)
		if f != soft.OK {
			return false
		}
		src = m.Slice(g.Addr, int(g.Length))
	default:
		return false
	}
	sl := q.out.next()
	var dst []byte
	switch wr.Opcode {
	case verbs.OpSend, verbs.OpSendWithImm:
		if len(src) > inlineSend {
			return false
		}
		dst = sl.sendPayload()[:]
	case verbs.OpRDMAWriteWithImm:
		if len(src) > inlineWrite {
			return false
		}
		sl.length, sl.rkey, sl.raddr = uint32(len(src)), wr.RKey, wr.RemoteAddr
		dst = sl.body[:]
	default:
		return false
	}
	sl.imm = wr.Imm
	if len(src) == 8 {
		*(*[8]byte)(dst) = [8]byte(src)
	} else {
		copy(dst, src)
	}
	var bits uint8
	if wr.Flags&verbs.SendSolicited != 0 {
		bits = bitSolicited
	}
	q.publish(sl, uint8(wr.Opcode), bits, len(src))
	q.SQ.Quick(wr, uint64(len(src)), q.out.sent)
	q.wakePeer()
	return true
}

// sendMessage puts a SEND or an RDMA_WRITE, with or without immediate, into the peer's inbox:
// the payload if it fits the slot, else where to fetch it, else the payload in pieces through
// the bytes of the inbox. False: there is no room; Off says how much has been sent.
func (q *QP) sendMessage(e *soft.SendEntry) bool {
	o := &q.out
	if !o.room() {
		return false
	}
	sl := o.next()
	sl.imm = e.Imm
	var bits uint8
	if e.Flags&verbs.SendSolicited != 0 {
		bits = bitSolicited
	}
	op := uint8(e.Opcode)
	if e.Opcode == verbs.OpSend || e.Opcode == verbs.OpSendWithImm {
		if e.Length <= inlineSend {
			return q.sendInline(e, sl, sl.sendPayload()[:e.Length], op, bits)
		}
	} else {
		sl.rkey, sl.raddr = e.RKey, e.RemoteAddr
		if e.Length <= inlineWrite {
			sl.length = uint32(e.Length)
			return q.sendInline(e, sl, sl.body[:e.Length], op, bits)
		}
	}
	sl.length = uint32(e.Length)
	if !e.IsInline && q.pullable(e) {
		p := sl.pull()
		first := true
		p.count = 0
		var list []piece
		for i := range e.SGEs {
			s := &e.SGEs[i]
			if s.Length == 0 {
				continue
			}
			d := piece{s.Addr, s.Length, s.LKey}
			if first {
				p.first, first = d, false
			} else if list == nil {
				want := uint32(len(e.SGEs)-i) * uint32(unsafe.Sizeof(d))
				pos, b, ok := o.take(want) // aligned
				if !ok {
					return false
				}
				p.pos = pos
				list = unsafe.Slice((*piece)(unsafe.Pointer(unsafe.SliceData(b))), len(e.SGEs)-i)[:0]
				list = append(list, d)
			} else {
				list = append(list, d)
			}
			p.count++
		}
		q.publish(sl, op, bits|bitPull, 0)
		e.Mark = o.sent
		return true
	}
	if !q.pack(e, sl.packed()) {
		return false
	}
	q.publish(sl, op, bits|bitPacked, 0)
	q.packing = true
	q.wakePeer()
	if !q.sendMore(e) {
		return false
	}
	o.prepare(uint32(e.Length), atomic.LoadUint32(&q.seen))
	return true
}

func (q *QP) sendInline(e *soft.SendEntry, sl *slot, dst []byte, op, bits uint8) bool {
	if !q.payload(e, 0, dst) {
		return false
	}
	q.publish(sl, op, bits, len(dst))
	e.Mark = q.out.sent
	return true
}

// payload copies the entry's bytes from offset off. On a fault it sets the entry's status,
// which fails the entry when it is next processed.
func (q *QP) payload(e *soft.SendEntry, off uint64, dst []byte) bool {
	if e.IsInline {
		copy(dst, e.Inline[off:])
		return true
	}
	if len(e.SGEs) == 1 && off == 0 {
		s := &e.SGEs[0]
		if m, f := q.ctx.mrs.Lookup(q.PD, s.LKey, s.Addr, uint64(len(dst)), 0); f == soft.OK {
			layout.Copy(dst, m.Slice(s.Addr, len(dst)))
			return true
		}
	}
	if q.ctx.mrs.Gather(q.PD, e.SGEs, off, dst) != soft.OK {
		e.Status = verbs.WCLocProtErr
		return false
	}
	return true
}

// pullable says whether the receiver should fetch the payload.
func (q *QP) pullable(e *soft.SendEntry) bool {
	if len(e.SGEs) > 1 && e.Length <= gatherMax {
		return false
	}
	for i := range e.SGEs {
		s := &e.SGEs[i]
		if s.Length == 0 {
			continue
		}
		if r := s.LKey >> genBits; q.ctx.ctrl.regions[r].arena != noArena {
			continue
		}
		if e.Length < pullMin {
			return false
		}
		if !q.link.readable.Load() {
			if !q.link.canRead.Load() { // it is known earlier, and hardly ever differs
				q.link.sayForbidden()
			}
			return false
		}
	}
	return true
}

// pack copies the next piece of the payload into the bytes of the inbox. False: no room,
// or a fault.
func (q *QP) pack(e *soft.SendEntry, p *packed) bool {
	want := uint32(min(e.Length-e.Off, packMax))
	pos, b, ok := q.out.take(want)
	if !ok && want > packMax/4 {
		want = packMax / 4
		pos, b, ok = q.out.take(want)
	}
	if !ok || !q.payload(e, e.Off, b) {
		return false
	}
	p.pos, p.n = pos, want
	e.Off += uint64(want)
	return true
}

// sendMore goes on with a packed message.
func (q *QP) sendMore(e *soft.SendEntry) bool {
	o := &q.out
	for e.Off < e.Length {
		if !o.room() {
			return false
		}
		sl := o.next()
		if !q.pack(e, sl.packed()) {
			return false
		}
		q.publish(sl, opMore, 0, 0)
		q.wakePeer()
	}
	q.packing = false
	e.Mark = o.sent
	return true
}

// sendRequest asks the peer to execute an RDMA_READ or an atomic.
func (q *QP) sendRequest(e *soft.SendEntry) bool {
	if !q.out.room() || q.requests >= min(int(q.Attr.MaxRdAtomic), maxAnswers) {
		return false
	}
	sl := q.out.next()
	sl.length, sl.rkey, sl.raddr = uint32(e.Length), e.RKey, e.RemoteAddr
	*sl.atomicArgs() = atomicArgs{e.CompareAdd, e.Swap}
	q.publish(sl, uint8(e.Opcode), 0, 0)
	e.Mark = q.out.sent
	e.Off = 0
	q.requests++
	return true
}

// answer sends the next piece of the oldest response. False: no room.
func (q *QP) answer() bool {
	a := &q.answers[0]
	o := &q.out
	if !o.room() {
		return false
	}
	sl := o.next()
	if a.atomic {
		sl.raddr = a.old
		q.publish(sl, opAtomicDone, 0, 0)
	} else {
		want := min(a.length-a.off, packMax)
		pos, b, ok := o.take(want)
		if !ok {
			return false
		}
		if want > 0 {
			m, f := q.ctx.mrs.Lookup(q.PD, a.rkey, a.raddr+uint64(a.off), uint64(want), verbs.AccessRemoteRead)
			if f != soft.OK {
				q.answers = q.answers[:0]
				q.refuseEvent(verbs.WCRemAccessErr)
				return false
			}
			layout.Copy(b, m.Slice(a.raddr+uint64(a.off), int(want)))
		}
		*sl.packed() = packed{pos, want}
		q.publish(sl, opReadBytes, 0, 0)
		a.off += want
	}
	q.wakePeer()
	if a.atomic || a.off == a.length {
		q.answers = append(q.answers[:0], q.answers[1:]...)
	}
	return true
}
