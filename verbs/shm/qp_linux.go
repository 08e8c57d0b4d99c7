package shm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/parts"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// QP is a queue pair. Its lock guards everything except the atomic fields.
type QP struct {
	soft.QP
	ctx      *Context
	scq, rcq *CQ
	mod      sync.Mutex // one Modify or Close at a time
	closed   bool       // guarded by mod

	// The connection: from RTR on there is an inbox and a link; with the peer's
	// ctlOpen there is an outbox.
	in        atomic.Pointer[inbox]
	inBlock   block
	link      *link
	inc       uint32 // this incarnation's number
	peer      uint32 // the peer's QP number: Attr no longer has it when the QP is reset
	out       outbox
	peerInc   uint32 // the peer's incarnation
	expectPSN uint32 // the first PSN that the peer expects of us
	joined    bool   // the peer has our RNR retry counter: sending may begin

	// Receiving (rx_linux.go).
	ackAfter  uint32 // consumed slots after which to acknowledge, if no message has carried that before
	seen      uint32 // atomic: slots consumed
	published uint32 // atomic: slots consumed, as last acknowledged to the peer
	lastAck   uint64 // atomic: inbox.ack as last acted upon
	trail     parts.Trail
	packed    uint32 // bytes of the last payload that was not in its slot
	msg       message
	answers   []answer // RDMA_READs and atomics of the peer to respond to, oldest first
	deaf      bool     // a request was refused: the peer must reset and reconnect
	stalled   atomic.Bool
	rnrUntil  int64 // when to refuse the message that waits for a receive; 0: none waits

	// Sending (tx_linux.go).
	todo     atomic.Uint32
	deadline atomic.Int64 // for the engine: when to call expire; 0: never
	watched  atomic.Bool  // the engine serves the QP, because its CQs are not polled
	giveUp   int64        // when sends that wait for the connection fail; 0: none wait
	packing  bool         // the waiting send is a packed message, partly sent: Off says how far
	cut      bool         // a one-sided transfer was interrupted only for its length
	requests int          // RDMA_READs and atomics that the peer has to respond to

	places uint64 // places on the boards of its CQs, encoded as in [inbox].notify

	local [maxIovecs]unix.Iovec
}

// Values of todo: why polling must visit the QP even if nothing has arrived.
const (
	todoNothing = iota
	todoWait    // something waits for the peer: checking again is cheap
	todoNow     // work was interrupted for its length: go on
)

// ackRides is the number of consumed slots up to which an acknowledgement waits for a message
// to carry it.
const ackRides = slotCount / 4

// CreateQP creates a QP.
func (pd *PD) CreateQP(init verbs.ProviderQPInit) (verbs.ProviderQP, error) {
	c := pd.ctx
	q := &QP{ctx: c, scq: init.SendCQ.(*CQ), rcq: init.RecvCQ.(*CQ), ackAfter: ackRides}
	q.Device, q.Dev, q.PD, q.Events, q.Self = deviceName, &c.attr, &pd.PD, c.events, q
	var srq *soft.RecvQueue
	if init.SRQ != nil {
		srq = &init.SRQ.(*SRQ).q
	}
	q.InitQP(c.mrs, init, &q.scq.CQ, &q.rcq.CQ, srq)
	q.msg.pieces = make([]piece, 0, maxSGE)
	q.answers = make([]answer, 0, maxAnswers)
	if err := c.qps.Add(deviceName, maxQP, q, func(n uint32) { q.Num = n }); err != nil {
		return nil, err
	}
	listAdd(&c.mu, &c.allQPs, q)
	q.scq.add(q)
	if q.rcq != q.scq {
		q.rcq.add(q)
	}
	return q, nil
}

// Modify changes attributes and state. On the way to ERR or RESET it waits until the peer has
// stopped accessing memory here.
func (q *QP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := q.modify(attr, mask); err != nil {
		return err
	}
	if mask&verbs.MaskState == 0 || attr.QPState != verbs.QPErr && attr.QPState != verbs.QPReset {
		return nil
	}
	if !q.ctx.await(q.peerInside) {
		return verbs.Errorf(deviceName, "modify QP", verbs.ErrBusy, "QP %#06x is in %v, but the peer has been accessing memory here for %v", q.Num, attr.QPState, q.ctx.cfg.PeerTimeout)
	}
	return nil
}

// peerInside says whether the peer is accessing memory through an inbox that the QP has
// dropped. An access that starts later sees that it may not; see enter.
func (q *QP) peerInside() bool {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	for in, of := range q.ctx.zombies {
		if of == q && atomic.LoadUint64(&in.hazard) != 0 {
			return true
		}
	}
	return false
}

func (q *QP) modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.mod.Lock()
	defer q.mod.Unlock()
	if q.closed {
		return verbs.Errorf(deviceName, "modify QP", verbs.ErrClosed, "QP %#06x", q.Num)
	}
	// Allocate what INIT→RTR needs before the state changes, so that a failure leaves
	// everything as it was.
	var l *link
	var b block
	if toRTR := mask&verbs.MaskState != 0 && attr.QPState == verbs.QPRTR; toRTR {
		if err := verbs.CheckModify(q.Device, q.Dev, q.State(), attr, mask); err != nil {
			return err
		}
		var err error
		if b, err = q.ctx.arenas.alloc(inboxSize, q.ctx.announce); err != nil {
			return verbs.Errorf(deviceName, "modify QP", err, "inbox of %d bytes", inboxSize)
		}
		if l, err = q.ctx.link(attr.AHAttr.DGID, q); err != nil {
			q.ctx.release(b)
			return err
		}
	}
	q.Lock.Lock()
	from, to, err := q.Apply(attr, mask)
	if err != nil {
		q.Unlock()
		if l != nil {
			l.drop(q.Num)
			q.ctx.release(b)
		}
		return err
	}
	switch {
	case to == verbs.QPRTR && from == verbs.QPInit:
		q.connect(l, b)
	case to == verbs.QPRTS && from == verbs.QPRTR:
		q.join()
	case to == verbs.QPRTS && from == verbs.QPSQD:
		q.pump(nil)
		q.settle()
		if q.todo.Load() == todoNow {
			q.ctx.kick()
		}
	case to == verbs.QPSQD:
		q.Drained()
	case to == verbs.QPErr && from != verbs.QPErr:
		q.SetState(from)
		q.fail(nil, verbs.WCSuccess)
	case to == verbs.QPReset:
		q.disconnect()
		q.leaveLink()
	}
	if in := q.in.Load(); in != nil {
		atomic.StoreUint32(&in.access, uint32(q.Attr.AccessFlags))
	}
	q.Unlock()
	return nil
}

// connect enters RTR: from now on the peer may write to the inbox.
func (q *QP) connect(l *link, b block) {
	c := q.ctx
	in := (*inbox)(unsafe.Pointer(unsafe.SliceData(b.mem)))
	in.pd, in.notify = q.PD.ID, q.places
	q.inc = c.nextInc.Add(1)
	q.inBlock, q.link, q.peer = b, l, q.Attr.DestQPNum
	wait.StoreRelease32(&q.seen, 0)
	wait.StoreRelease32(&q.published, 0)
	wait.StoreRelease64(&q.lastAck, 0)
	q.in.Store(in)
	c.wiring.Add(1)

	l.mu.Lock()
	open := ctl{kind: ctlOpen, src: q.Num, dst: q.Attr.DestQPNum, inc: q.inc, psn: q.Attr.RQPSN, arena: b.arena.id, offset: uint64(b.off)}
	l.sendLocked(open, nil)
	key := [2]uint32{q.Num, q.Attr.DestQPNum}
	m, there := l.opens[key]
	delete(l.opens, key)
	why := l.why
	l.mu.Unlock()
	switch {
	case why != nil:
		q.Why = why
		q.fail(nil, verbs.WCRetryExcErr)
	case there:
		q.attach(m)
	}
	c.kick()
}

// placed sets the QP's place on the board of one of its CQs, 0 for none; the caller holds
// the lock of the CQ. A QP of two CQs acknowledges at once: a deferred acknowledgement of
// one CQ is not noted for the other.
func (q *QP) placed(cq *CQ, place uint32) {
	q.Lock.Lock()
	defer q.Unlock()
	q.ackAfter = ackRides
	if q.rcq == q.scq {
		q.places = uint64(place)
	} else {
		shift := 0
		if cq == q.rcq {
			shift = 32
		}
		if q.places = q.places&^(uint64(1<<32-1)<<shift) | uint64(place)<<shift; q.places != 0 {
			q.ackAfter = 1
		}
	}
	if in := q.in.Load(); in != nil {
		atomic.AndUint64(&in.notify, notifyWake)
		atomic.OrUint64(&in.notify, q.places)
	}
}

// opened handles the peer's ctlOpen: the QP that it names accepts it now, or when it reaches
// RTR.
func (l *link) opened(m ctl) error {
	if _, err := l.inboxAt(m); err != nil {
		return err
	}
	q, ok := l.ctx.qps.Get(m.dst)
	if ok {
		q.Lock.Lock()
		defer q.Unlock()
	}
	l.mu.Lock()
	if ok && l.qps[m.dst] == q && q.in.Load() != nil && q.Attr.DestQPNum == m.src && !q.joined && q.out.inbox != noInbox && q.seen == 0 {
		l.mu.Unlock()
		q.detach() // an earlier incarnation of the peer's QP, whose ctlClose is on its way
		q.attach(m)
		l.ctx.kick() // what the peer has sent already waits in the inbox
		return nil
	}
	defer l.mu.Unlock()
	if len(l.opens) >= maxOpens {
		return fmt.Errorf("%w: more than %d QPs of the peer wait for a QP here", errWire, maxOpens)
	}
	l.opens[[2]uint32{m.dst, m.src}] = m
	return nil
}

// attach starts to use the peer's inbox.
func (q *QP) attach(m ctl) {
	in, err := q.link.inboxAt(m)
	if err != nil {
		return // the link has ended, which fails the QP: checked on arrival, and an arena is given back after the close of its inboxes
	}
	q.out = outbox{inbox: in}
	q.peerInc, q.expectPSN = m.inc, m.psn
	atomic.StoreUint32(&in.writer, q.inc)
	q.ctx.wiring.Add(-1)
	q.join()
}

// join begins to send once both ends are ready: this one in RTS, the peer in RTR, and both
// with the same first PSN, which rules out a stale incarnation.
func (q *QP) join() {
	if s := q.State(); q.out.inbox != nil && (s == verbs.QPRTS || s == verbs.QPSQD) && q.Attr.SQPSN == q.expectPSN {
		atomic.StoreUint32(&q.out.rnrRetry, uint32(q.Attr.RNRRetry))
		q.joined = true
		q.giveUp = 0
		q.pump(nil)
		q.settle()
	}
}

// fail moves the QP to ERR as soft.QP.Fail does, and leaves the connection: the peer must not
// go on sending to a QP that will never respond.
func (q *QP) fail(s *soft.Sink, status verbs.WCStatus) {
	if in := q.in.Load(); in != nil {
		in.leave() // before any work is flushed
	}
	if q.msg.active && q.msg.op != verbs.OpRDMAWrite {
		// The receive that the message had taken.
		q.msg.active = false
		q.CompleteRecv(s, &verbs.WC{WRID: q.Receive.WRID, Status: verbs.WCWRFlushErr, Opcode: verbs.WCRecv}, false)
	}
	q.Fail(s, status, 0)
	q.disconnect()
	// A receive may have been posted by a goroutine that has not seen the new state: see
	// begin. It is flushed.
	wait.Barrier()
	q.FlushAll(s)
}

// disconnect leaves the connection: it tells the peer, and the inbox is freed once the peer
// has left it.
func (q *QP) disconnect() {
	in := q.in.Load()
	if in == nil {
		return
	}
	c, l, b := q.ctx, q.link, q.inBlock
	in.leave()
	c.mu.Lock()
	c.zombies[in] = q // before the QP drops it: MR.Close looks at both
	c.mu.Unlock()
	q.in.Store(nil)
	if q.out.inbox == nil {
		c.wiring.Add(-1)
	}
	q.forgetPeer()
	q.inBlock = block{}
	l.mu.Lock()
	free := l.gone
	switch {
	case !l.up && !l.dead:
		// The peer does not know of this incarnation, and need not.
		l.queue = slices.DeleteFunc(l.queue, func(o outgoing) bool { return o.msg.kind == ctlOpen && o.msg.src == q.Num })
		free = true
	case !l.dead:
		l.retired[[2]uint32{q.Num, q.inc}] = b
		l.sendLocked(ctl{kind: ctlClose, src: q.Num, dst: q.peer, inc: q.inc}, nil)
	}
	l.mu.Unlock()
	if free {
		c.freeInbox(b)
	}
}

// leaveLink ends the use of the peer's memory: slices from [QP.Map] become invalid.
func (q *QP) leaveLink() {
	if q.link != nil {
		q.link.drop(q.Num)
		q.link = nil
	}
}

// freeInbox frees an inbox that the peer has left.
func (c *Context) freeInbox(b block) {
	c.mu.Lock()
	delete(c.zombies, (*inbox)(unsafe.Pointer(unsafe.SliceData(b.mem))))
	c.mu.Unlock()
	c.release(b)
}

// forgetPeer drops everything of the connection except the inbox.
func (q *QP) forgetPeer() {
	q.leave()
	if q.msg.active && q.msg.op != verbs.OpRDMAWrite && q.SRQ {
		q.RQ.Forgo() // the receive that the message had taken
	}
	q.out = outbox{}
	q.joined, q.deaf, q.packing, q.cut = false, false, false, false
	q.msg = message{pieces: q.msg.pieces[:0]}
	q.answers = q.answers[:0]
	q.requests = 0
	q.giveUp, q.rnrUntil = 0, 0
	if q.stalled.Swap(false) {
		q.ctx.stalled.Add(-1)
	}
	q.deadline.Store(0)
	q.todo.Store(todoNothing)
}

// peerClosed handles the peer's ctlClose: its QP is in ERR, reset, or closed. Messages that it
// sent before are received first. As on hardware, a QP that does not send is not affected;
// one that sends, now or later, gets no response.
func (q *QP) peerClosed(l *link, m ctl) {
	q.Lock.Lock()
	defer q.Unlock()
	if q.link != l || q.Attr.DestQPNum != m.src || q.out.inbox == nil || q.peerInc != m.inc {
		return
	}
	q.progress(nil)
	if q.State() == verbs.QPErr {
		return
	}
	if !q.joined && q.seen == 0 {
		// It may be an earlier incarnation than the one to connect to.
		q.detach()
		l.mu.Lock()
		key := [2]uint32{q.Num, m.src}
		o, there := l.opens[key]
		delete(l.opens, key)
		l.mu.Unlock()
		if there {
			q.attach(o)
		}
		return
	}
	if q.msg.active && q.msg.op != verbs.OpRDMAWrite {
		// The rest of a message that has taken a receive will not come.
		q.fail(nil, verbs.WCRetryExcErr)
		q.Events.Add(verbs.EventQPFatal, q)
		return
	}
	q.forgetPeer()
	q.out.inbox = noInbox
	q.unanswered(nil)
}

// detach drops a peer that was not joined, so that another can be attached.
func (q *QP) detach() {
	if q.out.inbox != nil {
		giveUp := q.giveUp
		q.forgetPeer()
		q.giveUp = giveUp
		q.setDeadline()
		q.settle()
		q.ctx.wiring.Add(1)
	}
}

// noInbox stands for the inbox of a peer whose QP is gone while this one is not in ERR. It is
// never written.
var noInbox = new(inbox)

// unanswered fails any sends to a peer that is gone.
func (q *QP) unanswered(s *soft.Sink) {
	if q.SQ.Waiting() != nil || q.SQ.Outstanding() {
		q.Why = errors.New("the peer's queue pair is in ERR, or closed")
		q.fail(s, verbs.WCRetryExcErr)
		q.Events.Add(verbs.EventQPFatal, q)
	}
}

// endLink receives what the peer has sent, and fails the rest: the link is of no more use.
func (q *QP) endLink(l *link, why error, status verbs.WCStatus) {
	q.Lock.Lock()
	defer q.Unlock()
	if q.link != l {
		return
	}
	if errors.Is(why, verbs.ErrPeerDied) && !errors.Is(q.Why, verbs.ErrPeerDied) { // whatever has happened before
		if q.Why = why; q.State() == verbs.QPErr {
			q.Events.Add(verbs.EventQPFatal, q)
		}
	}
	if q.in.Load() == nil {
		return
	}
	q.progress(nil)
	if q.State() != verbs.QPErr {
		q.Why = why
		q.fail(nil, status)
		q.Events.Add(verbs.EventQPFatal, q)
	}
}

// PostSend posts send work requests and starts what can start.
func (q *QP) PostSend(wrs []verbs.SendWR) (int, error) {
	q.Lock.Lock()
	if len(wrs) == 1 && q.quick(&wrs[0]) {
		q.Unlock()
		return 1, nil
	}
	if err := q.CanPostSend(); err != nil {
		q.Unlock()
		return 0, err
	}
	n := 0
	var err error
	for n < len(wrs) && !q.SQ.Full() {
		if err = q.SQ.Check(&wrs[n]); err != nil {
			break
		}
		q.SQ.Add(&wrs[n], q.ctx.mrs, q.PD)
		n++
	}
	if q.State() == verbs.QPErr {
		q.FlushAll(nil)
	} else {
		q.pump(nil)
		q.settle()
		if q.todo.Load() == todoNow && q.watched.Load() {
			q.ctx.kick()
		}
	}
	q.Unlock()
	return n, err
}

// PostRecv posts receives. It takes the QP's lock only in ERR.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if err := q.CanPostRecv(); err != nil {
		return 0, err
	}
	n, err := q.RQ.Post(wrs)
	q.ctx.fence()
	if q.State() == verbs.QPErr {
		q.Lock.Lock()
		if q.State() == verbs.QPErr {
			q.FlushAll(nil)
		}
		q.Unlock()
	} else if q.stalled.Load() {
		q.ctx.kick()
	}
	return n, err
}

// Close destroys the QP.
func (q *QP) Close() error {
	q.mod.Lock()
	defer q.mod.Unlock()
	c := q.ctx
	q.closed = true
	q.scq.remove(q)
	if q.rcq != q.scq {
		q.rcq.remove(q)
	}
	q.Lock.Lock()
	q.msg.active = false
	q.disconnect()
	q.leaveLink()
	q.SetState(verbs.QPReset)
	q.Unlock()
	// Not before: MR.Close goes through this list to find peers that access the region.
	listRemove(&c.mu, &c.allQPs, q)
	c.qps.Remove(q.Num) // only now: until then the peer's ctlClose must find it
	q.scq.Forget(q.Num)
	q.rcq.Forget(q.Num)
	return nil
}

// Map returns the peer's memory.
func (q *QP) Map(rkey uint32, addr uint64, length int) ([]byte, error) {
	if length < 0 {
		return nil, verbs.Errorf(deviceName, "map remote memory", verbs.ErrInvalid, "length %d", length)
	}
	q.awaitJoin()
	q.Lock.Lock()
	defer q.Unlock()
	if !q.joined {
		return nil, verbs.Errorf(deviceName, "map remote memory", verbs.ErrState, "QP %#06x in %v is not connected", q.Num, q.State())
	}
	// Loads and stores need both access flags, of the region and of the peer's QP.
	const need = verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	mem, how := q.enter(rkey, addr, uint64(length), need, q.out.pd, true)
	q.leave()
	switch how {
	case reachMapped:
		return mem[:length:length], nil
	case reachRead:
		return nil, verbs.Errorf(deviceName, "map remote memory", verbs.ErrNotSupported, "the peer's region is not from AllocMR")
	case reachLater:
		return nil, verbs.Errorf(deviceName, "map remote memory", verbs.ErrState, "the peer's arena is not mapped here yet; try again")
	}
	return nil, verbs.Errorf(deviceName, "map remote memory", verbs.ErrAccess, "the peer's region of rkey %#x does not allow access to %d bytes at %#x", rkey, length, addr)
}

// awaitJoin waits until a QP in RTS is connected, at most for the peer timeout.
func (q *QP) awaitJoin() {
	if q.settled() {
		return
	}
	patience, cancel := wait.Patience(context.Background(), q.ctx.cfg.PeerTimeout)
	defer cancel()
	wait.Until(patience, q.settled)
}

// settled says whether a QP is not about to be connected.
func (q *QP) settled() bool {
	q.Lock.Lock()
	defer q.Unlock()
	return q.State() != verbs.QPRTS || q.joined || q.out.inbox == noInbox
}

// expire acts on deadlines that have passed; the engine calls it.
func (q *QP) expire(now int64) {
	q.Lock.Lock()
	defer q.Unlock()
	if q.giveUp != 0 && q.giveUp <= now {
		q.giveUp = 0
		q.Why = errors.New("the peer did not connect in time")
		q.fail(nil, verbs.WCRetryExcErr)
		q.Events.Add(verbs.EventQPFatal, q)
	}
	if q.rnrUntil != 0 && q.rnrUntil <= now {
		q.progress(nil) // a receive may have been posted at the last moment
		if q.rnrUntil != 0 && q.rnrUntil <= now {
			q.refuse(verbs.WCRNRRetryExcErr)
		}
	}
	q.setDeadline()
}

// setDeadline tells the engine when to call expire.
func (q *QP) setDeadline() {
	d := q.giveUp
	if q.rnrUntil != 0 && (d == 0 || q.rnrUntil < d) {
		d = q.rnrUntil
	}
	q.deadline.Store(d)
}
