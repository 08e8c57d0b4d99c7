package soft

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/verbs"
)

// QP is the part of a queue pair that does not depend on the wire protocol.
type QP struct {
	Lock
	Device  string
	Dev     *verbs.DeviceAttr
	Num     uint32
	PD      *PD
	Events  *Events
	Self    any // the provider's QP, for events
	SendCQ  *CQ
	RecvCQ  *CQ
	SQ      SendQueue
	RQ      *RecvQueue // the QP's own, or the SRQ's
	SRQ     bool
	Receive RecvEntry // the receive that a message has taken

	Attr  verbs.QPAttr // guarded by Lock
	Why   error        // the provider moved it to ERR, or would; guarded by Lock
	state atomic.Uint32
}

// InitQP sets up a QP in RESET.
func (q *QP) InitQP(mrs *MRTable, init verbs.ProviderQPInit, send, recv *CQ, srq *RecvQueue) {
	q.SendCQ, q.RecvCQ = send, recv
	q.SQ.Init(q.Device, init.Cap, init.SQSigAll, uint64(q.Dev.MaxMsgSize))
	q.Receive.SGEs = make([]verbs.SGE, 0, q.Dev.MaxSGE)
	q.RQ, q.SRQ = srq, srq != nil
	if srq == nil {
		q.RQ = new(RecvQueue)
		q.RQ.Init(q.Device, init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE, nil, q.Events)
	}
	q.Attr.Cap = init.Cap
	q.Attr.SQPSN = rand.Uint32() >> 8
}

// QPNum returns the QP's number.
func (q *QP) QPNum() uint32 { return q.Num }

// Cap returns the capabilities granted, here exactly those requested.
func (q *QP) Cap() verbs.QPCap { return q.Attr.Cap }

// State returns the current state.
func (q *QP) State() verbs.QPState { return verbs.QPState(q.state.Load()) }

// Cause implements [verbs.Explainer].
func (q *QP) Cause() error {
	q.Lock.Lock()
	defer q.Lock.Unlock()
	if q.State() != verbs.QPErr {
		return nil
	}
	return q.Why
}

// SetState changes the state; the caller holds the lock.
func (q *QP) SetState(s verbs.QPState) {
	q.state.Store(uint32(s))
	q.Attr.QPState, q.Attr.CurState = s, s
}

// Query returns the attributes.
func (q *QP) Query() (verbs.QPAttr, error) {
	q.Lock.Lock()
	defer q.Unlock()
	a := q.Attr
	a.SQDraining = q.SQ.Draining()
	return a, nil
}

// Apply checks a Modify against the model's table and sets the attributes, including the
// state. It returns the states before and after. The caller holds the lock.
func (q *QP) Apply(attr *verbs.QPAttr, mask verbs.QPAttrMask) (from, to verbs.QPState, err error) {
	from = q.State()
	if err := verbs.CheckModify(q.Device, q.Dev, from, attr, mask); err != nil {
		return from, from, err
	}
	to = from
	if mask&verbs.MaskState != 0 {
		to = attr.QPState
	}
	a := &q.Attr
	for _, f := range []struct {
		bit verbs.QPAttrMask
		set func()
	}{
		{verbs.MaskEnSQDAsyncNotify, func() { a.EnSQDAsyncNotify = attr.EnSQDAsyncNotify }},
		{verbs.MaskAccessFlags, func() { a.AccessFlags = attr.AccessFlags }},
		{verbs.MaskPKeyIndex, func() { a.PKeyIndex = attr.PKeyIndex }},
		{verbs.MaskPort, func() { a.PortNum = attr.PortNum }},
		{verbs.MaskAV, func() { a.AHAttr = attr.AHAttr }},
		{verbs.MaskPathMTU, func() { a.PathMTU = attr.PathMTU }},
		{verbs.MaskTimeout, func() { a.Timeout = attr.Timeout }},
		{verbs.MaskRetryCnt, func() { a.RetryCnt = attr.RetryCnt }},
		{verbs.MaskRNRRetry, func() { a.RNRRetry = attr.RNRRetry }},
		{verbs.MaskRQPSN, func() { a.RQPSN = attr.RQPSN }},
		{verbs.MaskMaxQPRdAtomic, func() { a.MaxRdAtomic = attr.MaxRdAtomic }},
		{verbs.MaskMinRNRTimer, func() { a.MinRNRTimer = attr.MinRNRTimer }},
		{verbs.MaskSQPSN, func() { a.SQPSN = attr.SQPSN }},
		{verbs.MaskMaxDestRdAtomic, func() { a.MaxDestRdAtomic = attr.MaxDestRdAtomic }},
		{verbs.MaskDestQPN, func() { a.DestQPNum = attr.DestQPNum }},
	} {
		if mask&f.bit != 0 {
			f.set()
		}
	}
	if to == verbs.QPReset {
		q.SendCQ.Forget(q.Num)
		q.RecvCQ.Forget(q.Num)
		q.SQ.Reset()
		if !q.SRQ {
			q.RQ.Reset()
		}
		*a = verbs.QPAttr{Cap: a.Cap, SQPSN: rand.Uint32() >> 8}
		q.Why = nil
	}
	switch {
	case to == verbs.QPSQD && from == verbs.QPRTS:
		q.SQ.Hold()
	case to == verbs.QPRTS:
		q.SQ.Unhold()
	}
	q.SetState(to)
	return from, to, nil
}

// CanPostSend returns an error if the state does not allow posting a send.
func (q *QP) CanPostSend() error {
	switch s := q.State(); s {
	case verbs.QPRTS, verbs.QPSQD, verbs.QPErr:
		return nil
	default:
		return verbs.Errorf(q.Device, "post send", verbs.ErrState, "QP %#06x is in %v", q.Num, s)
	}
}

// CanPostRecv returns an error if the QP has no receive queue of its own or its state does not
// allow posting to it.
func (q *QP) CanPostRecv() error {
	if q.SRQ {
		return verbs.Errorf(q.Device, "post receive", verbs.ErrInvalid, "QP %#06x receives through an SRQ", q.Num)
	}
	if q.State() == verbs.QPReset {
		return verbs.Errorf(q.Device, "post receive", verbs.ErrState, "QP %#06x is in RESET", q.Num)
	}
	return nil
}

// Fail moves the QP to ERR: the oldest send that is not done fails with status, the others
// and all receives are flushed. With WCSuccess all are flushed. The caller holds the lock.
func (q *QP) Fail(s *Sink, status verbs.WCStatus, vendor uint32) {
	if q.State() == verbs.QPErr {
		q.FlushAll(s)
		return
	}
	q.SetState(verbs.QPErr)
	q.SQ.Flush(status, vendor)
	q.FlushAll(s)
	if q.SRQ {
		q.Events.Add(verbs.EventQPLastWQEReached, q.Self)
	}
}

// FlushAll completes, in state ERR, all posted work. The caller holds the lock.
func (q *QP) FlushAll(s *Sink) {
	q.SQ.Flush(verbs.WCSuccess, 0)
	q.SQ.Retire(0, q.SendCQ, s, q.Num, q.Attr.DestQPNum)
	if q.SRQ {
		return
	}
	for q.RQ.Take(&q.Receive) {
		q.CompleteRecv(s, &verbs.WC{WRID: q.Receive.WRID, Status: verbs.WCWRFlushErr, Opcode: verbs.WCRecv}, false)
	}
}

// CompleteRecv fills in the QP's numbers and pushes the completion of a receive. The caller
// holds the lock.
func (q *QP) CompleteRecv(s *Sink, wc *verbs.WC, solicited bool) bool {
	wc.QPNum, wc.SrcQP = q.Num, q.Attr.DestQPNum
	return q.RecvCQ.Push(s, wc, solicited, &q.RQ.polled)
}

// Drained sends EventSQDrained if the QP is in SQD, the event was requested, and nothing is
// outstanding any more. The caller holds the lock.
func (q *QP) Drained() {
	if q.State() == verbs.QPSQD && q.Attr.EnSQDAsyncNotify && !q.SQ.Draining() {
		q.Attr.EnSQDAsyncNotify = false
		q.Events.Add(verbs.EventSQDrained, q.Self)
	}
}

// QPTable numbers the QPs of a context. Numbers have 24 bits, start at random, and are reused
// only after all others have been used.
type QPTable[T any] struct {
	mu   sync.Mutex
	next uint32
	qps  map[uint32]T
	top  uint32 // the upper bits of all numbers
	free uint32 // mask of the other bits
}

// Under fixes the upper bits of all numbers to top. Call it before the first Add.
func (t *QPTable[T]) Under(top uint32, bits int) {
	t.free = 1<<(24-bits) - 1
	t.top = top << (24 - bits)
}

// Add gives q a number, and passes it to set before Get can find q.
func (t *QPTable[T]) Add(device string, limit int, q T, set func(num uint32)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.qps == nil {
		t.qps = map[uint32]T{}
		t.next = rand.Uint32()
		if t.free == 0 {
			t.free = 1<<24 - 1
		}
	}
	if len(t.qps) >= limit {
		return verbs.Errorf(device, "create QP", verbs.ErrNoMemory, "all %d queue pairs are in use", limit)
	}
	for {
		t.next = t.top | (t.next+1)&t.free
		if _, taken := t.qps[t.next]; !taken && t.next > 1 { // 0 and 1 are special in InfiniBand
			break
		}
	}
	set(t.next)
	t.qps[t.next] = q
	return nil
}

// Get returns the QP with a number.
func (t *QPTable[T]) Get(num uint32) (T, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q, ok := t.qps[num]
	return q, ok
}

// Remove removes a QP.
func (t *QPTable[T]) Remove(num uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.qps, num)
}

// All returns the current QPs.
func (t *QPTable[T]) All() []T {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := make([]T, 0, len(t.qps))
	for _, q := range t.qps {
		l = append(l, q)
	}
	return l
}
