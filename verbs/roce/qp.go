package roce

import (
	"net/netip"
	"slices"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// qp is a queue pair. Its lock guards everything except the atomic fields.
type qp struct {
	soft.QP
	a        *adapter
	scq, rcq *cq
	recvPD   *soft.PD // of the receives' memory

	flow   flow
	peer   peer // the QP that it is connected to
	mtu    int  // bytes
	ours   bool // the peer is of this library, and knows its protocol extensions
	met    bool // packets of the peer have arrived since the QP was connected
	taken  bool // Receive belongs to a message that is arriving
	framed int  // packets since transmit started
	// left says that a connection was left, on which leftAt was the PSN expected next. That
	// distinguishes its late packets from those of the next connection.
	left    bool
	leftAt  uint32
	goneDue bool // a Gone for the request gonePSN has to be sent: this QP has left
	gonePSN uint32
	req     requester
	rsp     responder

	due due // when the adapter is to call expire
}

// Values of WC.VendorErr with WCRetryExcErr.
const (
	vendorSilent = 1 // the peer did not answer within timeout and retries
	vendorGone   = 2 // the peer reports that its QP has left, or its host that the port is closed
)

// CreateQP creates a QP in RESET.
func (p *pd) CreateQP(init verbs.ProviderQPInit) (verbs.ProviderQP, error) {
	a := p.a
	q := &qp{a: a, scq: init.SendCQ.(*cq), rcq: init.RecvCQ.(*cq), recvPD: &p.PD}
	q.Device, q.Dev, q.PD, q.Events, q.Self = a.device, &a.attr, &p.PD, a.events, q
	var shared *soft.RecvQueue
	if init.SRQ != nil {
		s := init.SRQ.(*srq)
		q.recvPD = s.pd
		shared = &s.q
	}
	q.InitQP(a.mrs, init, &q.scq.CQ, &q.rcq.CQ, shared)
	if err := a.qps.Add(a.device, maxQP, q, func(n uint32) { q.Num = n }); err != nil {
		return nil, err
	}
	a.enlist(q)
	return q, nil
}

// Modify changes attributes and state.
func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.Lock.Lock()
	defer q.Unlock()
	if mask&(verbs.MaskAV|verbs.MaskPathMTU) != 0 {
		// Check against the model first: its errors are more specific.
		if err := verbs.CheckModify(q.Device, q.Dev, q.State(), attr, mask); err != nil {
			return err
		}
		if mask&verbs.MaskAV != 0 {
			if err := q.checkAddress(attr); err != nil {
				return err
			}
		}
		if most := q.a.wire.maxMTU(); mask&verbs.MaskPathMTU != 0 && attr.PathMTU.Bytes() > most {
			return verbs.Errorf(q.Device, "modify QP", verbs.ErrInvalid, "path MTU of %d bytes, the link's MTU allows %d", attr.PathMTU.Bytes(), most)
		}
	}
	from, to, err := q.Apply(attr, mask)
	if err != nil {
		return err
	}
	now := q.a.clock()
	switch {
	case to == verbs.QPRTR && from == verbs.QPInit:
		q.ready()
	case to == verbs.QPRTS && from == verbs.QPRTR:
		q.req.reset(q.Attr.SQPSN, q.SQ.Next(), newPace(q.a.wire.window()/q.mtu))
	case to == verbs.QPRTS && from == verbs.QPSQD:
		q.transmit(nil, now, true)
	case to == verbs.QPSQD:
		q.Drained()
	case to == verbs.QPErr && from != verbs.QPErr:
		q.SetState(from)
		q.fail(nil, verbs.WCSuccess, 0)
	case to == verbs.QPErr:
		q.silence() // also what a refused request has left
	case to == verbs.QPReset:
		q.forget()
	}
	return nil
}

// silence drops the responses and acknowledgements still owed to the peer.
func (q *qp) silence() {
	q.rsp.answers.n, q.rsp.refusal, q.rsp.nakDue, q.rsp.ackDue = 0, false, false, false
}

// forget leaves the connection.
func (q *qp) forget() {
	q.left, q.leftAt = q.mtu > 0, q.rsp.expect
	q.taken = false
	q.rsp.drop()
	q.silence()
	q.req = requester{}
	q.a.deadlines.remove(q)
	if q.peer != (peer{}) {
		q.a.peers.remove(q.peer, q)
		q.peer = peer{}
	}
}

func (q *qp) checkAddress(attr *verbs.QPAttr) error {
	local, remote := q.a.wire.local().Addr(), attr.AHAttr.DGID.Addr()
	switch {
	case attr.AHAttr.SGIDIndex != 0:
		return verbs.Errorf(q.Device, "modify QP", verbs.ErrInvalid, "source GID index %d, table has 1 entry", attr.AHAttr.SGIDIndex)
	case !nic.Usable(remote):
		return verbs.Errorf(q.Device, "modify QP", verbs.ErrInvalid, "destination GID %v is not the address of a host", attr.AHAttr.DGID)
	case remote.Is4() != local.Is4():
		return verbs.Errorf(q.Device, "modify QP", verbs.ErrInvalid, "destination %v is not of the same address family as local address %v", remote, local)
	}
	return nil
}

// ready enters RTR: the QP accepts requests.
func (q *qp) ready() {
	ah := &q.Attr.AHAttr
	port := uint16(packet.Port)
	if q.ours = ah.DLID != 0; q.ours {
		port = ah.DLID
	}
	q.mtu = q.Attr.PathMTU.Bytes()
	q.flow.class, q.flow.hops = ah.TrafficClass, ah.HopLimit
	q.flow.set(q.a.wire.local(), netip.AddrPortFrom(ah.DGID.Addr(), port))
	q.peer = peer{q.flow.remote, q.Attr.DestQPNum}
	q.a.peers.add(q.peer, q)
	q.rsp.reset(q.Attr.RQPSN, int(q.Attr.MaxDestRdAtomic))
	q.left, q.goneDue, q.met = false, false, false
}

// fail moves the QP to ERR as soft.QP.Fail does.
func (q *qp) fail(s *soft.Sink, status verbs.WCStatus, vendor uint32) {
	q.failTaken(s, verbs.WCWRFlushErr)
	q.rsp.drop()
	q.rsp.msg.active = false
	if !q.rsp.refusal {
		q.silence()
	}
	q.req.faulty = nil
	q.req.resendAt, q.req.rnrUntil, q.req.probeAt = 0, 0, 0
	q.Fail(s, status, vendor)
}

// failTaken fails the receive of a message that will never be complete.
func (q *qp) failTaken(s *soft.Sink, status verbs.WCStatus) {
	if q.taken {
		q.taken = false
		q.CompleteRecv(s, &verbs.WC{WRID: q.Receive.WRID, Status: status, Opcode: verbs.WCRecv}, false)
	}
}

// transmit sends whatever is due. With flush, acknowledgements do not wait.
func (q *qp) transmit(s *soft.Sink, now int64, flush bool) {
	st := q.State()
	if st < verbs.QPRTR && !q.goneDue {
		return
	}
	q.a.tx.Lock()
	q.framed = 0
	if q.goneDue {
		q.goneDue = false
		q.frame(&packet.Header{Opcode: packet.Gone, Migrated: true, PKey: packet.DefaultPKey, DestQP: q.Attr.DestQPNum, PSN: q.gonePSN, Imm: q.Num}, 0)
	}
	asks := st == verbs.QPRTS || st == verbs.QPSQD
	waiting := q.SQ.Waiting() != nil
	if asks && waiting && q.a.ackEach {
		q.request(s, now) // first: the peer waits for the reply, not for the acknowledgement
		q.respond(s, true)
	} else {
		if st >= verbs.QPRTR {
			q.respond(s, flush || !q.ours && waiting)
		}
		if asks {
			q.request(s, now)
		}
	}
	if q.framed > 0 {
		q.a.wire.flush()
	}
	q.a.tx.Unlock()
}

// take handles a packet for this QP.
func (q *qp) take(s *soft.Sink, h *packet.Header, payload []byte, ar *arrival, now int64) {
	// Adapters send from any port.
	if ar.src.Addr() != q.flow.remote.Addr() || q.ours && ar.src != q.flow.remote {
		return
	}
	if st := q.State(); st < verbs.QPRTR {
		if q.left && !h.Opcode.Response() && extend(h.PSN, q.leftAt)-q.leftAt+windowPackets < 2*windowPackets {
			q.tellGone(h)
		}
		return
	}
	if q.ours && (ar.id >= mostID || !q.near(h)) {
		return
	}
	q.met = true
	if q.ours && ar.ce && h.Opcode >= packet.ReadFirst && h.Opcode <= packet.ReadOnly {
		q.req.pace.congested(now) // the reader decides how much is in flight
	} else {
		q.rsp.marked = q.rsp.marked || ar.ce
	}
	if h.Carries && q.ours {
		ack := packet.Header{Opcode: packet.Acknowledge, PSN: h.Carried, Syndrome: packet.SyndromeACK}
		q.answered(s, &ack, nil, now)
	}
	switch {
	case h.Opcode == packet.CNP:
		q.req.pace.congested(now)
	case h.Opcode.Response():
		q.answered(s, h, payload, now)
	default:
		q.requested(s, h, payload)
	}
}

// mostID is the limit below which identifications in IPv4 headers of this library's packets are:
// they count the packets of a train. A socket does not show them, and for some identification any
// CRC is right.
const mostID = 64

// near says whether a packet can belong to the current traffic: it is known how far a peer of this
// library can be ahead or behind. Other packets would cause resends, or slow sending down.
func (q *qp) near(h *packet.Header) bool {
	const reach = windowPackets + readPart
	at := q.rsp.expect
	if h.Opcode.Response() || h.Opcode == packet.CNP {
		at = q.req.una
	}
	return extend(h.PSN, at)-at+reach < 2*reach
}

// tellGone schedules a Gone: the peer's request comes too late.
func (q *qp) tellGone(h *packet.Header) {
	if q.ours {
		q.goneDue, q.gonePSN = true, h.PSN
	}
}

// expire acts on timers that have expired.
func (q *qp) expire(now int64) {
	if st := q.State(); st != verbs.QPRTS && st != verbs.QPSQD {
		return
	}
	q.expireRequester(nil, now)
	q.transmit(nil, now, false)
	for _, t := range [...]int64{q.req.resendAt, q.req.rnrUntil, q.req.probeAt} {
		if t != 0 {
			q.a.at(q, max(t, now+1))
		}
	}
}

// PostSend posts send work requests, and sends what the window allows.
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
	} else if n > 0 {
		q.transmit(nil, q.a.clock(), false)
	}
	held := q.held()
	q.Unlock()
	if held {
		q.a.look()
	}
	return n, err
}

// held says whether posted work waits for acknowledgements of packets sent before.
func (q *qp) held() bool {
	r := &q.req
	return q.State() == verbs.QPRTS && r.una != r.max && (r.nxt != r.max || q.SQ.Waiting() != nil)
}

// PostRecv posts receives. A peer that got an RNR NAK retries by itself.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if err := q.CanPostRecv(); err != nil {
		return 0, err
	}
	n, err := q.RQ.Post(wrs)
	if q.State() == verbs.QPErr {
		q.Lock.Lock()
		if q.State() == verbs.QPErr {
			q.FlushAll(nil)
		}
		q.Unlock()
	}
	return n, err
}

// Close destroys the QP, after sending the acknowledgements still owed.
func (q *qp) Close() error {
	q.Lock.Lock()
	q.transmit(nil, q.a.clock(), true)
	q.forget()
	q.SetState(verbs.QPReset)
	q.Unlock()
	q.a.qps.Remove(q.Num)
	q.a.delist(q)
	q.Events.Forget(q)
	for _, c := range []*cq{q.scq, q.rcq} {
		c.Forget(q.Num)
	}
	return nil
}

// srq is a shared receive queue.
type srq struct {
	q      soft.RecvQueue
	pd     *soft.PD
	events *soft.Events
}

// CreateSRQ creates a shared receive queue.
func (p *pd) CreateSRQ(attr verbs.SRQAttr) (verbs.ProviderSRQ, error) {
	s := &srq{pd: &p.PD, events: p.a.events}
	s.q.Init(p.a.device, attr.MaxWR, attr.MaxSGE, s, p.a.events)
	return s, s.q.SetLimit(attr.Limit)
}

// PostRecv posts receives.
func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) { return s.q.Post(wrs) }

// Modify arms the limit event.
func (s *srq) Modify(limit int) error { return s.q.SetLimit(limit) }

// Query returns the attributes.
func (s *srq) Query() (verbs.SRQAttr, error) { return s.q.Attr(), nil }

// Close ends the queue, which no QP uses any more.
func (s *srq) Close() error {
	s.events.Forget(s)
	return nil
}

// enlist and delist keep the list of QPs.
func (a *adapter) enlist(q *qp) {
	a.listMu.Lock()
	defer a.listMu.Unlock()
	l := append(slices.Clone(*a.list.Load()), q)
	a.list.Store(&l)
}

func (a *adapter) delist(q *qp) {
	a.listMu.Lock()
	l := slices.DeleteFunc(slices.Clone(*a.list.Load()), func(o *qp) bool { return o == q })
	a.list.Store(&l)
	a.listMu.Unlock()
	a.rx.Lock()
	a.owing = slices.DeleteFunc(a.owing, func(o *qp) bool { return o == q })
	a.behind = slices.DeleteFunc(a.behind, func(o *qp) bool { return o == q })
	a.late.Store(len(a.behind) > 0)
	a.rx.Unlock()
}
