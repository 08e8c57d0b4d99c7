package tcp

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// Parameters of reading, in bytes.
const (
	// bufferSize is the size of the buffer for headers, and for payloads that are
	// copied to their destination.
	bufferSize = 32 << 10
	// directMin is the smallest rest of a payload that is read straight into its
	// destination.
	directMin = 4 << 10
	// lookFirst is the smallest rest of a payload for which it pays to check for data
	// before reading; see transport.readable.
	lookFirst = 32 << 10
	// tailRoom is the room to read after such a rest: the trailer and the next header.
	tailRoom = 1 + maxHeader
)

// rx is the reading side of a connection: bytes arrive in the buffer, which parse
// processes, or directly at their destination.
type rx struct {
	buf    []byte
	r, w   int  // buf[r:w] has arrived and is not parsed yet
	direct int  // bytes of the next read that bypass buf
	dry    bool // the last read found nothing, or emptied the socket
	bufs   [maxSGE + 1][]byte

	// The frame whose payload is arriving.
	hdr     frame
	body    bool
	trailer bool   // a trailer follows
	left    uint32 // bytes of payload still to come
	to      target
	entry   *soft.SendEntry // toEntry
	void    bool            // the response was void: a refusal follows, what is before it does not count

	// The request stream.
	expect       uint32 // msn of the request that is arriving, or comes next
	msg          message
	met          bool // a request has arrived
	rnrRetry     uint8
	drop         drop
	stalled      bool      // the next message waits for a receive
	since        time.Time // since when
	unacked      int       // messages executed since the last acknowledgement was sent
	unackedBytes uint64
	quiet        int // polls in a row that found nothing
}

// target is the destination of a payload.
type target uint8

const (
	toNowhere target = iota
	toMessage        // the message of the request stream
	toEntry          // our own RDMA_READ or atomic
)

// message is the SEND or RDMA_WRITE that is arriving.
type message struct {
	active bool
	write  bool
	flags  uint8
	total  uint32
	off    uint32
	imm    uint32
	rkey   uint32
	addr   uint64
}

// drop says until when arriving requests are dropped.
type drop uint8

const (
	dropNothing     drop = iota
	dropUntilRecv        // RNR was sent
	dropUntilResume      // READY was sent
	dropForever          // a request was refused, or the peer abandoned one
)

// discard drops what has arrived: the connection ends.
func (x *rx) discard() {
	x.r, x.w, x.direct = 0, 0, 0
	x.body, x.trailer = false, false
	x.msg.active = false
}

// receive reads and executes what has arrived, and says whether anything has.
func (c *conn) receive(s *soft.Sink) (got bool) {
	for budget := readBudget; budget > 0 && c.phase != phaseClosed; {
		if c.phase == phaseOpen && c.rx.r < c.rx.w {
			// The start of a header, or everything after a message that was, or
			// still is, waiting for a receive.
			if c.parse(s); c.rx.stalled || c.phase == phaseClosed {
				break
			}
		}
		if c.rx.dry && c.rx.body && c.rx.left >= lookFirst && !c.tr.readable() {
			break
		}
		bufs, size := c.incoming(s)
		n, err := c.tr.readv(bufs)
		c.rx.dry = n < size
		if err != nil {
			if err != errAgain {
				c.lost(s, err)
			}
			break
		}
		got = true
		c.feed(s, n)
		if n < size {
			break // the socket is empty
		}
		budget -= n
	}
	return got
}

// incoming returns where the next bytes go, and the room there.
func (c *conn) incoming(s *soft.Sink) (bufs [][]byte, size int) {
	x := &c.rx
	out := x.bufs[:0]
	if x.r == x.w {
		x.r, x.w = 0, 0
	}
	if x.body && x.w == 0 && x.left >= directMin && x.to != toNowhere {
		var fault soft.Fault
		if out, fault = c.place(out, x.left); fault != soft.OK {
			c.misplaced(s) // and discards
			return c.incoming(s)
		}
		for _, b := range out {
			size += len(b)
		}
		x.direct = size
		if uint32(size) == x.left {
			out = append(out, x.buf[:tailRoom])
			size += tailRoom
		}
		return out, size
	}
	if x.w > len(x.buf)/2 {
		// At most the start of a header.
		x.w = copy(x.buf, x.buf[x.r:x.w])
		x.r = 0
	}
	return append(out, x.buf[x.w:]), len(x.buf) - x.w
}

// feed accounts for n bytes that were read into the buffers of incoming.
func (c *conn) feed(s *soft.Sink, n int) {
	x := &c.rx
	if c.phase != phaseOpen {
		return
	}
	if x.direct > 0 {
		d := min(n, x.direct)
		c.placed(d)
		n -= d
		x.direct = 0
	}
	x.w += n
	c.parse(s)
}

// placed advances by n bytes of payload.
func (c *conn) placed(n int) {
	x := &c.rx
	x.left -= uint32(n)
	switch x.to {
	case toMessage:
		x.msg.off += uint32(n)
	case toEntry:
		x.entry.Off += uint64(n)
	}
}

// place appends to out, within its capacity, the destination of the next n bytes of
// payload. It looks the memory up each time.
func (c *conn) place(out [][]byte, n uint32) ([][]byte, soft.Fault) {
	x, q := &c.rx, c.q
	switch {
	case x.to == toEntry:
		return pieces(out[:0:maxSGE], c.a.mrs, q.PD, x.entry.SGEs, x.entry.Off, uint64(n), verbs.AccessLocalWrite)
	case !x.msg.write:
		return pieces(out[:0:maxSGE], c.a.mrs, q.recvPD, q.Receive.SGEs, uint64(x.msg.off), uint64(n), verbs.AccessLocalWrite)
	}
	at := x.msg.addr + uint64(x.msg.off)
	m, f := c.a.mrs.Lookup(q.PD, x.msg.rkey, at, uint64(n), verbs.AccessRemoteWrite)
	if f != soft.OK {
		return out, f
	}
	return append(out, m.Slice(at, int(n))), soft.OK
}

// misplaced: the payload has no destination, or no longer has one.
func (c *conn) misplaced(s *soft.Sink) {
	x, q := &c.rx, c.q
	switch {
	case x.to == toEntry:
		q.fail(s, verbs.WCLocProtErr, 0)
	case x.msg.write:
		q.failTaken(s, verbs.WCLocAccessErr)
		c.refuse(s, x.expect, verbs.WCRemAccessErr, verbs.EventQPAccessErr)
	default:
		q.failTaken(s, verbs.WCLocProtErr)
		c.refuse(s, x.expect, verbs.WCRemOpErr, verbs.EventQPFatal)
	}
}

// parse executes the frames in the buffer.
func (c *conn) parse(s *soft.Sink) {
	x := &c.rx
	for c.phase == phaseOpen {
		if x.body {
			if !c.payload(s) {
				return
			}
			continue
		}
		n, err := x.hdr.Parse(x.buf[x.r:x.w])
		if err != nil {
			c.lost(s, err)
			return
		}
		if n == 0 {
			return
		}
		ok, err := c.frame(s)
		if err != nil {
			c.lost(s, fmt.Errorf("%w: %v: %w", errFrame, x.hdr.kind, err))
			return
		}
		if !ok || c.phase != phaseOpen {
			return
		}
		x.r += n
		if layouts[x.hdr.kind].payload {
			x.body, x.left, x.trailer = true, x.hdr.size, x.hdr.flags&flagTrailer != 0
		}
	}
}

// payload copies the part of a payload that is in the buffer to its destination, and returns
// false if more is to come.
func (c *conn) payload(s *soft.Sink) bool {
	x := &c.rx
	for x.left > 0 {
		n := min(int(x.left), x.w-x.r)
		if n == 0 {
			return false
		}
		if x.to == toNowhere {
			x.r += n
			c.placed(n)
			continue
		}
		out, fault := c.place(x.bufs[:0], uint32(n))
		if fault != soft.OK {
			c.misplaced(s)
			return false
		}
		for _, b := range out {
			m := copy(b, x.buf[x.r:x.w])
			x.r += m
			c.placed(m)
		}
	}
	void := false
	if x.trailer {
		if x.r == x.w {
			return false
		}
		void = x.buf[x.r] != 0
		x.r++
	}
	x.body = false
	c.endFrame(s, void)
	return true
}

// endFrame: the payload of a frame is complete.
func (c *conn) endFrame(s *soft.Sink, void bool) {
	x := &c.rx
	switch {
	case x.to == toNowhere:
	case x.to == toEntry:
		x.void = x.void || void
		if e := x.entry; !void && e.Off == e.Length {
			e.Done = true
			c.tx.reads--
			c.q.retire(s)
		}
	case void:
		x.msg.active = false
		x.drop = dropForever
	case x.msg.off == x.msg.total:
		c.deliver(s)
	}
}

// deliver: a SEND or RDMA_WRITE is executed.
func (c *conn) deliver(s *soft.Sink) {
	x, q := &c.rx, c.q
	m := &x.msg
	m.active = false
	x.expect++
	x.unacked++
	x.unackedBytes += uint64(m.total)
	if m.write && m.flags&flagImm == 0 {
		return
	}
	wc := verbs.WC{WRID: q.Receive.WRID, Opcode: verbs.WCRecv, ByteLen: m.total}
	if m.write {
		wc.Opcode = verbs.WCRecvRDMAWithImm
	}
	if m.flags&flagImm != 0 {
		wc.Flags, wc.Imm = verbs.WCWithImm, m.imm
	}
	q.taken = false
	if !q.CompleteRecv(s, &wc, m.flags&flagSolicited != 0) {
		q.fail(s, verbs.WCSuccess, 0)
	}
}

// frame executes a header, and sets the destination of its payload. False: the header
// cannot be executed now, for lack of a receive, or not at all. An error is a protocol
// violation.
func (c *conn) frame(s *soft.Sink) (bool, error) {
	x, q := &c.rx, c.q
	f := &x.hdr
	if f.ack != c.tx.acked {
		if err := c.acknowledged(s, f.ack); err != nil {
			return false, err
		}
		if c.phase != phaseOpen {
			return false, nil
		}
	}
	switch f.kind {
	case kindSend, kindWrite, kindRead, kindAtomic, kindMore:
		if x.drop != dropNothing {
			x.to = toNowhere
			return true, nil
		}
		if f.msn != x.expect || x.msg.active != (f.kind == kindMore) {
			return false, fmt.Errorf("request number %d, want %d", f.msn, x.expect)
		}
		if !x.met {
			x.met = true
			if q.State() == verbs.QPRTR {
				q.Events.Add(verbs.EventCommEst, q)
			}
		}
		switch f.kind {
		case kindMore:
			if f.size == 0 || f.size > x.msg.total-x.msg.off {
				return false, fmt.Errorf("%d bytes of payload, the message lacks only %d", f.size, x.msg.total-x.msg.off)
			}
			x.to = toMessage
			return true, nil
		case kindRead, kindAtomic:
			return true, c.question(s)
		}
		return c.begin(s)
	case kindResponse:
		return true, c.answered()
	case kindAck:
		return true, nil
	case kindNak:
		return true, c.refused(s)
	case kindStart:
		if x.rnrRetry = f.rnrRetry & 7; f.psn != q.Attr.RQPSN && x.drop == dropNothing {
			c.nak(verbs.WCRetryExcErr)
		}
		return true, nil
	case kindRNR:
		return true, c.rewind()
	case kindReady:
		if !c.tx.paused {
			return false, errUnasked
		}
		c.tx.paused = false
		c.tx.want(kindResume)
		return true, nil
	case kindResume:
		if x.drop == dropForever {
			return true, nil
		}
		if x.drop != dropUntilResume || f.msn != x.expect {
			return false, errUnasked
		}
		x.drop = dropNothing
		return true, nil
	case kindDown:
		c.close()
		q.peerDown(s)
		return true, nil
	case kindBye:
		c.lost(s, errGone)
		return true, nil
	}
	return false, errUnasked
}

var errUnasked = errors.New("unexpected at this point")

// begin executes the first frame of a SEND or RDMA_WRITE.
func (c *conn) begin(s *soft.Sink) (bool, error) {
	x, q := &c.rx, c.q
	f := &x.hdr
	if f.size > f.total || f.size == 0 && f.total != 0 || f.total > maxMessage {
		return false, fmt.Errorf("%d bytes of payload in a message of %d bytes", f.size, f.total)
	}
	write := f.kind == kindWrite
	if write && f.total > 0 {
		if q.Attr.AccessFlags&verbs.AccessRemoteWrite == 0 {
			c.refuse(s, f.msn, verbs.WCRemInvReqErr, verbs.EventQPReqErr)
			return false, nil
		}
		if _, fault := c.a.mrs.Lookup(q.PD, f.rkey, f.addr, uint64(f.total), verbs.AccessRemoteWrite); fault != soft.OK {
			c.refuse(s, f.msn, verbs.WCRemAccessErr, verbs.EventQPAccessErr)
			return false, nil
		}
	}
	if !write || f.flags&flagImm != 0 {
		if !c.takeReceive() {
			x.to = toNowhere
			return x.drop != dropNothing, nil
		}
	}
	if !write {
		room, fault := c.a.mrs.CheckSGEs(q.recvPD, q.Receive.SGEs, verbs.AccessLocalWrite)
		if fault != soft.OK {
			q.failTaken(s, verbs.WCLocProtErr)
			c.refuse(s, f.msn, verbs.WCRemOpErr, verbs.EventQPFatal)
			return false, nil
		}
		if uint64(f.total) > room {
			q.failTaken(s, verbs.WCLocLenErr)
			c.refuse(s, f.msn, verbs.WCRemInvReqErr, verbs.EventQPReqErr)
			return false, nil
		}
	}
	x.msg = message{active: true, write: write, flags: f.flags, total: f.total, imm: f.imm, rkey: f.rkey, addr: f.addr}
	x.to = toMessage
	return true, nil
}

// question executes an RDMA_READ or atomic request.
func (c *conn) question(s *soft.Sink) error {
	x, q := &c.rx, c.q
	f := &x.hdr
	if c.tx.answers.n >= c.tx.answers.limit() {
		c.refuse(s, f.msn, verbs.WCRemInvReqErr, verbs.EventQPReqErr)
		return nil
	}
	a := answer{msn: f.msn, rkey: f.rkey, total: f.total, addr: f.addr}
	need, n := verbs.AccessRemoteRead, uint64(f.total)
	if f.kind == kindAtomic {
		a.kind, need, n = answerAtomic, verbs.AccessRemoteAtomic, 8
	}
	if q.Attr.AccessFlags&need == 0 || f.kind == kindAtomic && f.addr%8 != 0 {
		c.refuse(s, f.msn, verbs.WCRemInvReqErr, verbs.EventQPReqErr)
		return nil
	}
	if n > maxMessage {
		return fmt.Errorf("message of %d bytes exceeds the limit", n)
	}
	if n > 0 {
		m, fault := c.a.mrs.Lookup(q.PD, f.rkey, f.addr, n, need)
		if fault != soft.OK {
			c.refuse(s, f.msn, verbs.WCRemAccessErr, verbs.EventQPAccessErr)
			return nil
		}
		if a.kind == answerAtomic {
			a.old = execute(m.Slice(f.addr, 8), f.flags&flagSwap != 0, f.operand, f.swap)
		}
	}
	c.tx.answers.push(a)
	x.expect++
	return nil
}

// answered finds the operation that a response belongs to.
func (c *conn) answered() error {
	x := &c.rx
	if x.void {
		x.to = toNowhere
		return nil
	}
	e := c.entry(x.hdr.msn)
	if e == nil || e.Opcode < verbs.OpRDMARead || e.Done || int32(x.hdr.msn-c.tx.next) >= 0 {
		return fmt.Errorf("response to %d, which is not an outstanding read or atomic", x.hdr.msn)
	}
	if uint64(x.hdr.size) > e.Length-e.Off || x.hdr.size == 0 && e.Length > 0 {
		return fmt.Errorf("%d bytes of payload, the response lacks only %d", x.hdr.size, e.Length-e.Off)
	}
	x.to, x.entry = toEntry, e
	return nil
}

// entry finds an outstanding request by its number.
func (c *conn) entry(msn uint32) *soft.SendEntry {
	e := c.q.SQ.Oldest()
	if e == nil {
		return nil
	}
	return c.q.SQ.Nth(msn - e.Mark)
}

// acknowledged completes the requests before ack.
func (c *conn) acknowledged(s *soft.Sink, ack uint32) error {
	t := &c.tx
	if ack-t.acked > t.ackable()-t.acked {
		return fmt.Errorf("acknowledges %d, outstanding are %d to %d", ack, t.acked, t.ackable())
	}
	t.acked = ack
	c.q.retire(s)
	return nil
}

// refused: the peer will not execute request msn.
func (c *conn) refused(s *soft.Sink) error {
	f := &c.rx.hdr
	if e := c.entry(f.msn); e == nil || e.Done || int32(f.msn-c.tx.next) >= 0 {
		return fmt.Errorf("refers to request %d, outstanding are %d to %d", f.msn, c.tx.acked, c.tx.next)
	}
	status := verbs.WCStatus(f.status)
	switch status {
	case verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCRemOpErr, verbs.WCRNRRetryExcErr, verbs.WCRetryExcErr:
	default:
		status = verbs.WCBadRespErr
	}
	c.q.fail(s, status, 0)
	return nil
}

// rewind: the peer has dropped request msn, for lack of a receive, and all later ones. They
// start again when it sends READY.
func (c *conn) rewind() error {
	t, q := &c.tx, c.q
	f := &c.rx.hdr
	if t.paused || f.msn-t.acked >= t.next-t.acked || c.entry(f.msn) == nil {
		return errUnasked
	}
	t.paused, t.next, t.cur, t.faulty, t.reads = true, f.msn, nil, nil, 0
	for e := range q.SQ.OutstandingEntries {
		if e.Mark == f.msn {
			break
		}
		if e.Opcode >= verbs.OpRDMARead && !e.Done {
			t.reads++
		}
	}
	return nil
}

// refuse tells the peer why request msn fails, and moves the QP to ERR. The refusal is the
// last frame to the peer, after the responses still due.
func (c *conn) refuse(s *soft.Sink, msn uint32, status verbs.WCStatus, event verbs.EventType) {
	c.tx.answers.push(answer{kind: answerNak, msn: msn, status: status})
	c.q.fail(s, verbs.WCSuccess, 0)
	c.q.Events.Add(event, c.q)
}

// nak refuses the next request without affecting this QP: it keeps its state, but executes
// nothing more from this peer.
func (c *conn) nak(status verbs.WCStatus) {
	c.rx.drop = dropForever
	c.tx.answers.push(answer{kind: answerNak, msn: c.rx.expect, status: status})
}

// takeReceive takes the receive that a message needs. If there is none, the connection
// stalls and reads nothing more: messages stay in order, and the transport slows the peer.
func (c *conn) takeReceive() bool {
	x, q := &c.rx, c.q
	if !q.RQ.Take(&q.Receive) {
		if x.stalled {
			return false
		}
		c.stall()
		// A receive posted before the flag was set went unnoticed.
		if !q.RQ.Take(&q.Receive) {
			if x.rnrRetry == 0 {
				c.unstall()
				c.nak(verbs.WCRNRRetryExcErr)
			} else {
				c.a.engine.at(q, c.rnrDue())
			}
			return false
		}
	}
	if x.stalled {
		c.unstall()
	}
	q.taken = true
	return true
}

func (c *conn) stall() {
	c.rx.stalled = true
	c.rx.since = time.Now()
	c.q.setStalled(true)
}

func (c *conn) unstall() {
	c.rx.stalled = false
	c.q.setStalled(false)
}

// rnrForever is the retry counter that means without limit.
const rnrForever = 7

// rnrLimit is when the message that waits for a receive is refused; zero: never.
func (c *conn) rnrLimit() time.Time {
	if c.rx.rnrRetry == rnrForever {
		return time.Time{}
	}
	return c.rx.since.Add(time.Duration(c.rx.rnrRetry) * verbs.RNRTimer(c.q.Attr.MinRNRTimer))
}

// dropLimit is when the connection stops being stalled and drops requests instead, to have
// them sent again. The peer's responses to our own requests are behind the waiting message,
// so if there are any, the limit is the delay after which an adapter would have the peer
// retry. A transport that is not read for too long would also break by the peer's timeout.
func (c *conn) dropLimit() time.Time {
	wait := min(c.a.cfg.PeerTimeout/4, time.Second)
	if c.q.SQ.Outstanding() {
		wait = min(wait, verbs.RNRTimer(c.q.Attr.MinRNRTimer))
	}
	return c.rx.since.Add(wait)
}

// rnrDue is when to call expireRNR next.
func (c *conn) rnrDue() time.Time {
	limit := c.rnrLimit()
	if c.rx.stalled {
		limit = earlier(limit, c.dropLimit())
	}
	return limit
}

// expireRNR acts on a message that has waited for a receive.
func (c *conn) expireRNR(now time.Time) {
	x := &c.rx
	if limit := c.rnrLimit(); !limit.IsZero() && !now.Before(limit) {
		c.unstall()
		c.nak(verbs.WCRNRRetryExcErr)
	} else if x.stalled && !now.Before(c.dropLimit()) {
		// q.stalled stays set: posting a receive ends this, too.
		x.stalled, x.drop = false, dropUntilRecv
		c.tx.rnrMSN = x.expect
		c.tx.want(kindRNR)
	}
	if x.stalled || x.drop == dropUntilRecv {
		if due := c.rnrDue(); !due.IsZero() {
			c.a.engine.at(c.q, due)
		}
	}
	c.drive(nil)
}
