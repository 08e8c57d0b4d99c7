package tcp

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// qp is a queue pair. Its lock guards everything except the atomic fields.
type qp struct {
	soft.QP
	a        *adapter
	scq, rcq *cq
	srq      *srq
	recvPD   *soft.PD // of the receives' memory

	link          link
	life          uint32 // counts the connections begun; anything of an earlier one is void
	local, remote identity
	unwireFunc    context.CancelFunc // ends the dialing
	undialed      error              // why it has not connected yet; guarded by Lock
	changed       chan struct{}      // closed when parked connections should look again
	conn          *conn
	begun         uint32    // sends that were started without a connection
	connectBy     time.Time // when they fail; zero: there are none, or they wait without limit
	taken         bool      // Receive belongs to a message that is arriving

	stalled atomic.Bool // a message waits for a receive
	due     atomic.Bool // see conn.setDue
}

// link is the state of the connection.
type link uint8

const (
	linkNone   link = iota
	linkWiring      // RTR or beyond, connecting to the peer
	linkUp
	linkDown // was up; stays down until RESET
)

// CreateQP creates a QP in RESET.
func (p *pd) CreateQP(init verbs.ProviderQPInit) (verbs.ProviderQP, error) {
	a := p.a
	q := &qp{a: a, scq: init.SendCQ.(*cq), rcq: init.RecvCQ.(*cq), recvPD: &p.PD}
	q.Device, q.Dev, q.PD, q.Events, q.Self = a.device, &a.attr, &p.PD, a.events, q
	q.changed = make(chan struct{})
	var shared *soft.RecvQueue
	if init.SRQ != nil {
		q.srq = init.SRQ.(*srq)
		q.recvPD = q.srq.pd
		shared = &q.srq.q
	}
	q.InitQP(a.mrs, init, &q.scq.CQ, &q.rcq.CQ, shared)
	if err := a.qps.Add(a.device, maxQP, q, func(n uint32) { q.Num = n }); err != nil {
		return nil, err
	}
	for _, c := range q.cqs() {
		if err := c.add(q); err != nil {
			q.leave()
			return nil, err
		}
	}
	return q, nil
}

// cqs returns the CQs, one if both are the same.
func (q *qp) cqs() []*cq {
	both := [2]*cq{q.scq, q.rcq}
	if q.scq == q.rcq {
		return both[:1]
	}
	return both[:]
}

// leave removes the QP from the lists.
func (q *qp) leave() {
	q.a.qps.Remove(q.Num)
	q.a.engine.forget(q)
	q.Events.Forget(q)
	for _, c := range q.cqs() {
		c.remove(q)
		c.Forget(q.Num)
	}
}

// Modify changes attributes and state.
func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.Lock.Lock()
	defer q.Unlock()
	if mask&verbs.MaskAV != 0 {
		// Check against the model first: its errors are more specific.
		if err := verbs.CheckModify(q.Device, q.Dev, q.State(), attr, mask); err != nil {
			return err
		}
		if err := q.checkAddress(attr); err != nil {
			return err
		}
	}
	from, to, err := q.Apply(attr, mask)
	if err != nil {
		return err
	}
	switch {
	case to == verbs.QPRTR && from == verbs.QPInit:
		q.connect()
	case to == verbs.QPRTS && (from == verbs.QPRTR || from == verbs.QPSQD):
		q.start()
	case to == verbs.QPSQD:
		q.Drained()
	case to == verbs.QPErr && from != verbs.QPErr:
		q.SetState(from)
		q.fail(nil, verbs.WCSuccess, 0)
		q.push()
	case to == verbs.QPReset:
		q.disconnect()
		for _, c := range q.cqs() {
			c.Forget(q.Num)
		}
	}
	return nil
}

func (q *qp) checkAddress(attr *verbs.QPAttr) error {
	ah := &attr.AHAttr
	bad := func(format string, args ...any) error {
		return verbs.Errorf(q.Device, "modify QP", verbs.ErrInvalid, format, args...)
	}
	switch {
	case int(ah.SGIDIndex) >= len(q.a.gids):
		return bad("source GID index %d, table has %d entries", ah.SGIDIndex, len(q.a.gids))
	case !nic.Usable(ah.DGID.Addr()):
		return bad("destination GID %v is not the address of a host", ah.DGID)
	case ah.DLID == 0:
		return bad("destination TCP port (DLID) is 0")
	}
	return nil
}

// connect enters RTR: the peer may connect, or the QP dials in the background.
func (q *qp) connect() {
	a, ah := q.a, &q.Attr.AHAttr
	q.life++
	q.begun, q.undialed = 0, nil
	q.local = identity{a.gids[ah.SGIDIndex], a.port, q.Num}
	q.remote = identity{ah.DGID, ah.DLID, q.Attr.DestQPNum}
	q.link = linkWiring
	a.wiring.Add(1)
	q.wakeParked()
	ctx, cancel := context.WithCancel(a.life)
	q.unwireFunc = cancel
	switch life := q.life; q.local.compare(q.remote) {
	case -1:
		a.wg.Go(func() { q.dial(ctx, life) })
	case 0:
		a.wg.Go(func() { q.connectSelf(life) })
	}
}

// unwire ends the attempts to connect.
func (q *qp) unwire() {
	if q.link == linkWiring {
		q.link = linkDown
		q.a.wiring.Add(-1)
		q.unwireFunc()
	}
	q.connectBy = time.Time{}
}

// wakeParked has the connections parked for this QP look at it again.
func (q *qp) wakeParked() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// attach adopts a connection after its handshake. It returns false if the QP has moved on
// in the meantime.
func (q *qp) attach(life uint32, theirs *frame, adopt func(*conn) (transport, error)) (bool, error) {
	q.Lock.Lock()
	defer q.Unlock()
	if q.life != life || q.link != linkWiring {
		return false, nil
	}
	c := newConn(q, theirs)
	tr, err := adopt(c)
	if err != nil {
		return false, err
	}
	c.tr = tr
	q.unwire()
	q.link, q.conn = linkUp, c
	c.tx.started = q.begun
	for _, cq := range q.cqs() {
		if set := cq.set.Load(); set != nil {
			tr.join(*set)
		}
	}
	if s := q.State(); s == verbs.QPRTS || s == verbs.QPSQD {
		c.tx.want(kindStart)
	}
	c.tighten()
	c.drive(nil)
	return true, nil
}

// adoptNet hands a connection of the net package to the driver.
func (q *qp) adoptNet(nc net.Conn) func(*conn) (transport, error) {
	return func(c *conn) (transport, error) { return q.a.engine.drv.adopt(c, nc) }
}

// connectSelf connects a QP to itself.
func (q *qp) connectSelf(life uint32) {
	q.Lock.Lock()
	theirs := frame{maxAnswers: q.Attr.MaxDestRdAtomic}
	q.Unlock()
	if _, err := q.attach(life, &theirs, q.a.engine.drv.loop); err != nil {
		q.a.log.warn("tcp: cannot connect QP to itself", "qp", q.Num, "err", err)
	}
}

// start enters RTS.
func (q *qp) start() {
	if q.conn != nil {
		q.conn.tx.want(kindStart)
	}
	q.push()
}

// push sends what it can, or sets the deadline for the connection.
func (q *qp) push() {
	switch c := q.conn; {
	case c != nil:
		if !c.tx.blocked {
			c.transmit(nil, false)
		}
		if c.rx.stalled {
			q.a.engine.at(q, c.rnrDue())
		}
		c.settle()
	case q.State() != verbs.QPRTS || q.SQ.Waiting() == nil:
	case q.link == linkDown:
		q.Why = errDown
		q.fail(nil, verbs.WCRetryExcErr, vendorDown)
	default:
		q.await()
	}
}

// await starts sends without a connection, as an adapter would have sent and resent
// them. Once connected, they are sent again.
func (q *qp) await() {
	for e := q.SQ.Waiting(); e != nil; e = q.SQ.Waiting() {
		e.Mark = q.begun
		q.begun++
		q.SQ.Started()
	}
	if q.connectBy.IsZero() && q.Attr.Timeout != 0 {
		q.connectBy = time.Now().Add(4 * verbs.AckTimeout(q.Attr.Timeout) * time.Duration(q.Attr.RetryCnt+1))
		q.a.engine.at(q, q.connectBy)
	}
}

// expire acts on deadlines that have passed; the engine calls it.
func (q *qp) expire(now time.Time) {
	if !q.connectBy.IsZero() {
		if now.Before(q.connectBy) {
			q.a.engine.at(q, q.connectBy)
		} else {
			q.Why = cmp.Or(q.undialed, errors.New("the peer did not connect in time"))
			if deaf := q.a.deaf.Load(); deaf != nil && time.Since(deaf.at) < time.Second { // accept tries again and again
				q.Why = deaf.error
			}
			q.fail(nil, verbs.WCRetryExcErr, vendorNotConnected)
		}
	}
	if c := q.conn; c != nil && q.stalled.Load() {
		c.expireRNR(now)
	}
}

// fail moves the QP to ERR as soft.QP.Fail does, and leaves the connection. The next
// transmit informs the peer.
func (q *qp) fail(s *soft.Sink, status verbs.WCStatus, vendor uint32) {
	q.failTaken(s, verbs.WCWRFlushErr)
	q.unwire()
	q.wakeParked()
	q.Fail(s, status, vendor)
	if q.conn != nil {
		q.conn.finish(kindDown)
	}
}

// failTaken fails the receive of a message that will never be complete.
func (q *qp) failTaken(s *soft.Sink, status verbs.WCStatus) {
	if q.taken {
		q.taken = false
		q.CompleteRecv(s, &verbs.WC{WRID: q.Receive.WRID, Status: status, Opcode: verbs.WCRecv}, false)
	}
}

// retire completes sends that are acknowledged, or whose response is complete.
func (q *qp) retire(s *soft.Sink) {
	if !q.SQ.Retire(q.conn.tx.acked-1, &q.scq.CQ, s, q.Num, q.Attr.DestQPNum) {
		q.fail(s, verbs.WCSuccess, 0)
		return
	}
	q.Drained()
}

// peerDown: the peer's QP is in ERR. As with an adapter that gets no more replies, only
// sends to the peer fail.
func (q *qp) peerDown(s *soft.Sink) {
	q.link = linkDown
	if q.SQ.Outstanding() || q.SQ.Waiting() != nil && q.State() == verbs.QPRTS {
		q.Why = errDown
		q.fail(s, verbs.WCRetryExcErr, vendorDown)
	}
}

// disconnect leaves the connection for good.
func (q *qp) disconnect() {
	q.taken = false
	q.unwire()
	q.wakeParked()
	if c := q.conn; c != nil {
		c.finish(kindBye)
		c.transmit(nil, false)
		c.settle()
		q.conn = nil
	}
	q.link = linkNone
}

// poll does the work of a CQ's Poll for one of its QPs. It never waits for the lock.
func (q *qp) poll(s *soft.Sink) {
	if !q.TryLock() {
		return
	}
	if c := q.conn; c != nil {
		got := c.receive(s)
		c.rx.quiet++
		if got {
			c.rx.quiet = 0
		}
		// An acknowledgement waits to be carried by the user's next send until some
		// polls have found nothing, but not if there may be no next poll.
		c.transmit(s, c.rx.quiet >= ackPolls || !c.loose)
		if got && !c.loose && c.phase == phaseOpen && c.spinning() {
			c.letLoose()
		}
		c.settle()
	}
	q.Unlock()
}

// PostSend posts send work requests, and sends them if the connection has room.
func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.Lock.Lock()
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
		q.SQ.Add(&wrs[n], q.a.mrs, q.PD)
		n++
	}
	if q.State() == verbs.QPErr {
		q.FlushAll(nil)
	} else {
		q.push()
	}
	q.Unlock()
	return n, err
}

// PostRecv posts receives. It takes the lock only if the QP waits for a receive, or is in
// ERR.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if err := q.CanPostRecv(); err != nil {
		return 0, err
	}
	n, err := q.RQ.Post(wrs)
	// Post ends with a release store, which a load may overtake; this read-modify-
	// write may not. Code that sets stalled, or the state ERR, looks at the queue
	// afterwards.
	if q.stalled.CompareAndSwap(true, true) || q.State() == verbs.QPErr {
		q.received()
	}
	return n, err
}

// received resumes the QP after a receive has been posted.
func (q *qp) received() {
	q.Lock.Lock()
	defer q.Unlock()
	if q.State() == verbs.QPErr {
		q.FlushAll(nil)
		return
	}
	c := q.conn
	if c == nil || !q.stalled.Load() {
		return
	}
	if c.rx.drop == dropUntilRecv {
		c.unstall()
		c.rx.drop = dropUntilResume
		c.tx.want(kindReady)
	}
	c.drive(nil)
}

// setStalled notes whether a message waits for a receive.
func (q *qp) setStalled(on bool) {
	q.stalled.Store(on)
	switch {
	case q.srq == nil:
	case on:
		q.srq.stall(q)
	default:
		q.srq.unstall(q)
	}
}

// Close destroys the QP. Data already handed to the transport still arrives.
func (q *qp) Close() error {
	q.Lock.Lock()
	q.disconnect()
	q.SetState(verbs.QPReset)
	q.Unlock()
	q.leave()
	return nil
}
