//go:build cgo

package ibv

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/verbs"
)

// qp is a queue pair.
type qp struct {
	c              *vcontext
	h              C.uintptr_t
	num            uint32
	id             uint32 // number as an owner
	cap            verbs.QPCap
	sendCQ, recvCQ *cq
	srq            *srq
	send           sendQueue
	recv           recvQueue

	ctl   sync.Mutex // held while the state is changed
	state atomic.Uint32
	dest  atomic.Uint32 // number of the peer's queue pair
	psn   uint32        // first PSN to send
	retry uint8         // RetryCnt as requested
	path  path          // default path
	gone  bool          // closed; guarded by ctl
}

func (p *pd) CreateQP(init verbs.ProviderQPInit) (verbs.ProviderQP, error) {
	const op = "create QP"
	c := p.c
	where, err := c.path()
	if err != nil {
		return nil, err
	}
	q := &qp{c: c, sendCQ: init.SendCQ.(*cq), recvCQ: init.RecvCQ.(*cq), psn: rand.Uint32() & 0xffffff, path: where}
	asked := init.Cap
	limits := C.struct_sl_qp_cap{
		max_send_wr: C.uint32_t(asked.MaxSendWR), max_recv_wr: C.uint32_t(asked.MaxRecvWR), max_send_sge: C.uint32_t(asked.MaxSendSGE),
		max_recv_sge: C.uint32_t(asked.MaxRecvSGE), max_inline_data: C.uint32_t(asked.MaxInlineData),
	}
	var srqH C.uintptr_t
	if init.SRQ != nil {
		q.srq = init.SRQ.(*srq)
		srqH = q.srq.h
	}
	var all, errno C.int
	if init.SQSigAll {
		all = 1
	}
	var num C.uint32_t
	q.h = C.sl_create_qp(p.h, q.sendCQ.h, q.recvCQ.h, srqH, &limits, all, &num, &errno)
	if q.h == 0 {
		return nil, failure(c.device, op, errno, "%+v", asked)
	}
	// Grant at least what was requested, and no more than the device reports.
	granted := func(asked int, got C.uint32_t, most int) int { return max(asked, min(int(got), most)) }
	q.num = uint32(num)
	q.cap = verbs.QPCap{
		MaxSendWR:     granted(asked.MaxSendWR, limits.max_send_wr, c.attr.MaxQPWR),
		MaxRecvWR:     granted(asked.MaxRecvWR, limits.max_recv_wr, c.attr.MaxQPWR),
		MaxSendSGE:    granted(asked.MaxSendSGE, limits.max_send_sge, c.attr.MaxSGE),
		MaxRecvSGE:    granted(asked.MaxRecvSGE, limits.max_recv_sge, c.attr.MaxSGE),
		MaxInlineData: granted(asked.MaxInlineData, limits.max_inline_data, c.attr.MaxInlineData),
	}
	if q.srq != nil {
		q.cap.MaxRecvWR, q.cap.MaxRecvSGE = 0, 0
	}
	if q.id, err = c.enlist(owner{qp: q}); err != nil {
		return nil, errors.Join(err, failure(c.device, op, C.sl_destroy_qp(q.h), ""))
	}
	q.send.init(q, init.SQSigAll)
	q.recv.init(c.device, q.id, q.cap.MaxRecvWR, q.cap.MaxRecvSGE)
	for _, cq := range []*cq{q.sendCQ, q.recvCQ} {
		cq.mu.Lock()
		cq.users[q] = struct{}{}
		cq.mu.Unlock()
	}
	c.own(q.h, q)
	return q, nil
}

func (q *qp) QPNum() uint32    { return q.num }
func (q *qp) Cap() verbs.QPCap { return q.cap }

// State asks the device, which goes to ERR by itself.
func (q *qp) State() verbs.QPState {
	switch s := q.known(); s {
	case verbs.QPReset, verbs.QPErr:
		return s
	}
	a, err := q.Query()
	if err != nil {
		return verbs.QPErr // the device is gone
	}
	return a.QPState
}

// known returns the state that was last set or reported.
func (q *qp) known() verbs.QPState { return verbs.QPState(q.state.Load()) }

func (q *qp) Query() (verbs.QPAttr, error) {
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.gone {
		return verbs.QPAttr{}, verbs.Errorf(q.c.device, "query QP", verbs.ErrClosed, "QP")
	}
	return q.query()
}

// query asks the device. The caller holds ctl.
func (q *qp) query() (verbs.QPAttr, error) {
	var a C.struct_sl_qp_attr
	if err := failure(q.c.device, "query QP", C.sl_query_qp(q.h, &a), "QP %#06x", q.num); err != nil {
		return verbs.QPAttr{}, err
	}
	g := &a.ah_attr.grh
	out := verbs.QPAttr{
		QPState: verbs.QPState(a.qp_state), CurState: verbs.QPState(a.cur_qp_state), SQDraining: a.sq_draining != 0,
		AccessFlags: verbs.AccessFlags(a.qp_access_flags), PKeyIndex: uint16(a.pkey_index), PortNum: uint8(a.port_num),
		AHAttr: verbs.AHAttr{
			FlowLabel: uint32(g.flow_label), SGIDIndex: uint8(g.sgid_index), HopLimit: uint8(g.hop_limit), TrafficClass: uint8(g.traffic_class),
			DLID: uint16(a.ah_attr.dlid), SL: uint8(a.ah_attr.sl), SrcPathBits: uint8(a.ah_attr.src_path_bits),
			StaticRate: uint8(a.ah_attr.static_rate), IsGlobal: a.ah_attr.is_global != 0, PortNum: uint8(a.ah_attr.port_num),
		},
		PathMTU: verbs.MTU(a.path_mtu), Timeout: uint8(a.timeout), RetryCnt: uint8(a.retry_cnt), RNRRetry: uint8(a.rnr_retry),
		RQPSN: uint32(a.rq_psn), MaxRdAtomic: uint8(a.max_rd_atomic), MinRNRTimer: uint8(a.min_rnr_timer), SQPSN: uint32(a.sq_psn),
		MaxDestRdAtomic: uint8(a.max_dest_rd_atomic), DestQPNum: uint32(a.dest_qp_num), Cap: q.cap,
	}
	if out.RetryCnt == rxeRetries && q.retry > rxeRetries {
		out.RetryCnt = q.retry
	}
	for i := range out.AHAttr.DGID {
		out.AHAttr.DGID[i] = byte(g.dgid.raw[i])
	}
	switch s := q.known(); {
	case s == verbs.QPReset: // the PSN it will start with
		out = verbs.QPAttr{SQPSN: q.psn, PortNum: uint8(q.path.port), Cap: q.cap}
		out.AHAttr.SGIDIndex = uint8(q.path.gid)
	case s == verbs.QPInit:
		out.SQPSN = q.psn
		out.AHAttr.SGIDIndex = uint8(q.path.gid)
	case s == verbs.QPRTR:
		out.SQPSN = q.psn
	}
	out.CurState = out.QPState
	return out, nil
}

func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.gone {
		return verbs.Errorf(q.c.device, "modify QP", verbs.ErrClosed, "QP")
	}
	cur, err := q.query()
	if err != nil {
		return err
	}
	if err := verbs.CheckModify(q.c.device, &q.c.attr, cur.QPState, attr, mask); err != nil {
		return err
	}
	if mask&verbs.MaskState == 0 {
		return q.modify(attr, mask)
	}
	if attr.QPState != verbs.QPReset {
		if err := q.modify(attr, mask); err != nil {
			return err
		}
		if mask&verbs.MaskDestQPN != 0 {
			q.dest.Store(attr.DestQPNum)
		}
		q.setState(attr.QPState)
		if cur.QPState == verbs.QPSQD && q.c.rxe {
			C.sl_ring(q.h) // otherwise it ignores work posted in the meantime
		}
		return nil
	}
	q.send.hold()
	defer q.send.lock.Unlock()
	q.recv.lock.Lock()
	defer q.recv.lock.Unlock()
	if cur.QPState == verbs.QPSQD && q.c.rxe { // soft-RoCE changes to no other state while it drains
		if err := q.modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState); err != nil {
			return err
		}
	}
	if err := q.modify(attr, mask); err != nil {
		return err
	}
	q.setState(verbs.QPReset)
	q.psn = rand.Uint32() & 0xffffff
	q.purge()
	q.send.reset()
	q.recv.reset()
	return nil
}

func (q *qp) setState(s verbs.QPState) { q.state.Store(uint32(s)) }

// modify calls the device. The caller holds ctl.
func (q *qp) modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	h := &attr.AHAttr
	access := attr.AccessFlags & verbs.AccessAll
	if q.c.attr.AtomicCap == verbs.AtomicNone {
		access &^= verbs.AccessRemoteAtomic // some devices without atomics refuse it
	}
	a := C.struct_sl_qp_attr{
		qp_state: C.int(attr.QPState), cur_qp_state: C.int(attr.CurState), path_mtu: C.int(attr.PathMTU),
		rq_psn: C.uint32_t(attr.RQPSN), sq_psn: C.uint32_t(attr.SQPSN), dest_qp_num: C.uint32_t(attr.DestQPNum),
		qp_access_flags: C.uint(access), pkey_index: C.uint16_t(attr.PKeyIndex),
		max_rd_atomic: C.uint8_t(attr.MaxRdAtomic), max_dest_rd_atomic: C.uint8_t(attr.MaxDestRdAtomic),
		min_rnr_timer: C.uint8_t(attr.MinRNRTimer), port_num: C.uint8_t(attr.PortNum), timeout: C.uint8_t(attr.Timeout),
		retry_cnt: C.uint8_t(attr.RetryCnt), rnr_retry: C.uint8_t(attr.RNRRetry),
	}
	if attr.EnSQDAsyncNotify {
		a.en_sqd_async_notify = 1
	}
	if mask&verbs.MaskRetryCnt != 0 {
		q.retry = attr.RetryCnt
		if q.c.rxe {
			a.retry_cnt = min(a.retry_cnt, rxeRetries)
		}
	}
	ah := &a.ah_attr
	ah.dlid, ah.sl, ah.src_path_bits = C.uint16_t(h.DLID), C.uint8_t(h.SL), C.uint8_t(h.SrcPathBits)
	ah.static_rate, ah.port_num = C.uint8_t(h.StaticRate), C.uint8_t(h.PortNum)
	if h.IsGlobal {
		ah.is_global = 1
		g := &ah.grh
		g.flow_label, g.sgid_index = C.uint32_t(h.FlowLabel), C.uint8_t(h.SGIDIndex)
		g.hop_limit, g.traffic_class = C.uint8_t(h.HopLimit), C.uint8_t(h.TrafficClass)
		for i := range h.DGID {
			g.dgid.raw[i] = C.uint8_t(h.DGID[i])
		}
	}
	return failure(q.c.device, "modify QP", C.sl_modify_qp(q.h, &a, C.int(mask)), "QP %#06x to %v, mask %#x", q.num, attr.QPState, uint32(mask))
}

// rxeRetries is the retry limit for soft-RoCE. It takes 7 to mean without limit, which is right
// only for RNR retries (rxe_comp.c of the kernel).
const rxeRetries = 6

// failed notes that the queue pair is in ERR, or has to go there because its CQ has overrun.
// Work posted since then, or from now on, is flushed; soft-RoCE needs another modify to ERR
// for that.
func (q *qp) failed() {
	q.ctl.Lock()
	defer q.ctl.Unlock()
	switch q.known() {
	case verbs.QPRTR, verbs.QPRTS, verbs.QPSQD:
		q.toErr()
	}
}

func (q *qp) toErr() {
	if q.gone {
		return
	}
	q.setState(verbs.QPErr)
	q.modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState) // it is in ERR already, or the device is gone
}

// flushLate has the device flush work posted in ERR.
func (q *qp) flushLate() {
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.known() == verbs.QPErr {
		q.toErr()
	}
}

// purge drops the QP's completions. The caller holds the locks of the queues.
func (q *qp) purge() {
	q.sendCQ.purge(q)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.purge(q)
	}
}

func (q *qp) Close() error {
	q.ctl.Lock()
	defer q.ctl.Unlock()
	q.c.disown(q.h)
	q.c.unpair(q)
	q.send.hold()
	defer q.send.lock.Unlock()
	q.recv.lock.Lock()
	defer q.recv.lock.Unlock()
	q.gone = true
	err := failure(q.c.device, "close QP", C.sl_destroy_qp(q.h), "QP %#06x", q.num)
	q.setState(verbs.QPReset)
	q.purge()
	for _, cq := range []*cq{q.sendCQ, q.recvCQ} {
		cq.mu.Lock()
		delete(cq.users, q)
		cq.mu.Unlock()
	}
	q.c.delist(q.id)
	q.send.free()
	q.recv.free()
	return err
}
