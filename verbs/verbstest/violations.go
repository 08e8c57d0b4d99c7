package verbstest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testViolations is about access that must be refused: it ends in exactly one status, the queue
// pair goes to ERR, work posted after it is flushed in order, and no other byte is touched.
func testViolations(t *testing.T, s *suite) {
	// The first violation of a kind is tried with all operations, the others with one of those that
	// an implementation checks alike: with or without immediate data, atomics. Long tests try all.
	// In one context, and with -short, the others have only their first operation.
	some := func(w *world, first bool, ops []verbs.Opcode) []verbs.Opcode {
		switch {
		case need.WantLong() || first && !testing.Short():
			return ops
		case testing.Short() || w.place != processes && !s.Local:
			return ops[:1]
		}
		return slices.DeleteFunc(slices.Clone(ops), func(op verbs.Opcode) bool {
			return hasImm(op) || op == verbs.OpAtomicCmpAndSwp
		})
	}
	s.in(t, everywhere, func(w *world) {
		for i, v := range remoteViolations {
			for _, op := range some(w, i == 0, v.ops) {
				if op >= verbs.OpAtomicCmpAndSwp && s.attr.AtomicCap == verbs.AtomicNone {
					continue
				}
				w.run(fmt.Sprintf("remote/%s/%v", v.name, op), func(w *world) { v.test(w, op) })
			}
		}
		for i, v := range localViolations {
			for _, op := range some(w, i == 0, v.ops) {
				if op >= verbs.OpAtomicCmpAndSwp && s.attr.AtomicCap == verbs.AtomicNone {
					continue
				}
				w.run(fmt.Sprintf("local/%s/%v", v.name, op), func(w *world) { v.test(w, op) })
			}
		}
		for _, v := range receiveViolations {
			for _, n := range []int{8, 100_000} {
				w.run(fmt.Sprintf("receive/%s/%d bytes", v.name, n), func(w *world) { v.test(w, n) })
			}
		}
		w.run("just inside", justInside)
		w.run("region closed while a send waits", closedWhileWaiting)
		w.run("message to a queue pair in error", sendToErr)
	})
}

var (
	writes   = []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm}
	reads    = []verbs.Opcode{verbs.OpRDMARead}
	atomics  = []verbs.Opcode{verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd}
	oneSided = join(writes, reads, atomics)
	bulk     = join(writes, reads)
	gathers  = join([]verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm}, writes)
)

func join(ls ...[]verbs.Opcode) []verbs.Opcode {
	var all []verbs.Opcode
	for _, l := range ls {
		all = append(all, l...)
	}
	return all
}

// target of a violation: n bytes to access, and where.
type target struct {
	n    int
	addr uint64
	rkey uint32
}

// remoteViolation is a mistake that the responder finds.
type remoteViolation struct {
	name   string
	ops    []verbs.Opcode
	region verbs.AccessFlags // rights of the region; zero: all
	qp     verbs.AccessFlags // rights of the responder's queue pair; zero: all
	other  bool              // the region is in another protection domain
	n      int               // bytes, 8 for atomics; zero: 8
	aim    func(w *world, m *mem, t *target)
	status verbs.WCStatus  // zero: the access is refused, and
	event  verbs.EventType // the responder is told so
	early  bool            // a device may find it when it is posted
}

// regionSize is the length of the region that is aimed at.
const regionSize = 100_032

var remoteViolations = []remoteViolation{
	{name: "wrong rkey", ops: oneSided, aim: func(_ *world, _ *mem, t *target) { t.rkey ^= 1 }},
	{name: "rkey of nothing", ops: oneSided, aim: func(_ *world, _ *mem, t *target) { t.rkey = ^t.rkey }},
	{name: "rkey 0", ops: oneSided, aim: func(_ *world, _ *mem, t *target) { t.rkey = 0 }},
	{name: "closed region", ops: oneSided, aim: func(_ *world, m *mem, _ *target) { m.close() }},
	{name: "region of another PD", ops: oneSided, other: true},
	{name: "one byte behind the end", ops: bulk, aim: func(_ *world, m *mem, t *target) { t.addr = m.at(regionSize - t.n + 1) }},
	{name: "one byte before the start", ops: bulk, aim: func(_ *world, m *mem, t *target) { t.addr = m.Addr - 1 }},
	{name: "one byte behind the end, long", ops: bulk, n: 100_000, aim: func(_ *world, m *mem, t *target) { t.addr = m.at(regionSize - t.n + 1) }},
	{name: "one byte before the start, long", ops: bulk, n: 100_000, aim: func(_ *world, m *mem, t *target) { t.addr = m.Addr - 1 }},
	{name: "behind the end", ops: oneSided, aim: func(_ *world, m *mem, t *target) { t.addr = m.at(regionSize) }},
	{name: "before the start", ops: oneSided, aim: func(_ *world, m *mem, t *target) { t.addr = m.Addr - 8 }},
	{name: "round the end of the address space", ops: bulk, n: 100_000, aim: func(_ *world, _ *mem, t *target) { t.addr = ^uint64(0) - 3 }},
	{name: "at the end of the address space", ops: oneSided, aim: func(_ *world, _ *mem, t *target) { t.addr = ^uint64(0) - 7 }},
	{name: "region without REMOTE_WRITE", ops: writes, region: verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic},
	{name: "region without REMOTE_READ", ops: reads, region: verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic},
	{name: "region without REMOTE_ATOMIC", ops: atomics, region: verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead},
	// An operation that the queue pair does not allow is an invalid request, whatever the region
	// allows (InfiniBand architecture, 9.7.4.1.5, 9.9.3).
	{name: "queue pair without REMOTE_WRITE", ops: writes, qp: verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic,
		status: verbs.WCRemInvReqErr, event: verbs.EventQPReqErr},
	{name: "queue pair without REMOTE_READ", ops: reads, qp: verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic,
		status: verbs.WCRemInvReqErr, event: verbs.EventQPReqErr},
	{name: "queue pair without REMOTE_ATOMIC", ops: atomics, qp: verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead,
		status: verbs.WCRemInvReqErr, event: verbs.EventQPReqErr},
	{name: "address not aligned", ops: atomics, early: true, status: verbs.WCRemInvReqErr, event: verbs.EventQPReqErr,
		aim: func(_ *world, m *mem, t *target) { t.addr = m.Addr + 4 }},
}

func (v remoteViolation) test(w *world, op verbs.Opcode) {
	if v.status == verbs.WCSuccess {
		v.status, v.event = verbs.WCRemAccessErr, verbs.EventQPAccessErr
	}
	conn := usual
	near, far := w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
	near.connect(far, conn)
	if v.qp != 0 {
		conn.Access = v.qp
	}
	far.connect(near, conn)
	access := v.region
	if access == 0 {
		access = verbs.AccessAll
	}
	m := w.allocate(w.far, allocCmd{Size: regionSize, Access: access, Other: v.other}).fill(1)
	before := w.alloc(w.far, 8, verbs.AccessAll, own)
	local := w.alloc(w.near, regionSize, verbs.AccessAll, own).fill(2)
	t := target{n: max(v.n, 8), addr: m.Addr, rkey: m.RKey}
	if v.aim != nil {
		v.aim(w, m, &t)
	}
	near.recv(receive(1), receive(2))
	far.recv(receive(1), receive(2))
	bad := verbs.SendWR{WRID: 2, Opcode: op, SGList: []verbs.SGE{local.sge(0, t.n)}, RKey: t.rkey, RemoteAddr: t.addr, CompareAdd: 1}
	var ahead []verbs.WC
	if v.qp == 0 {
		near.post(onto(signalled(1, verbs.OpRDMAWrite, local.sge(0, 8)), before, 0))
		ahead = []verbs.WC{sent(1, verbs.OpRDMAWrite)}
		before.expect(0, local.image[:8])
	}
	if n, err := near.tryPost(bad); err != nil && v.early {
		require.ErrorIs(w.t, err, verbs.ErrInvalid)
		near.want(sends, ahead...)
		return
	} else {
		require.NoError(w.t, err)
		require.Equal(w.t, 1, n)
	}
	near.post(
		onto(verbs.SendWR{WRID: 3, Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{local.sge(8, 8)}}, before, 0),
		signalled(4, verbs.OpSend))

	near.want(sends, append(ahead, failed(2, op, v.status), failed(3, verbs.OpRDMAWrite, verbs.WCWRFlushErr), failed(4, verbs.OpSend, verbs.WCWRFlushErr))...)
	near.wantBroken()
	if !w.suite.Deviations.NoResponderEvents {
		far.event(v.event)
	}
	if op == verbs.OpRDMAWriteWithImm {
		// The device may or may not have taken the receive already.
		wcs := far.take(recvs, 2)
		require.Contains(w.t, []verbs.WCStatus{verbs.WCWRFlushErr, verbs.WCLocAccessErr}, wcs[0].Status)
		far.same(recvs, failedRecv(2, verbs.WCWRFlushErr), wcs[1], "second receive")
		far.recv(receive(1), receive(2))
	}
	far.wantBroken()
	if op == verbs.OpRDMARead && w.suite.Deviations.PartialReads {
		local.adopt(0, t.n)
	}
	w.verify("nothing is touched by the violation, nor by what was behind it")
}

// wantBroken requires that the queue pair, which had receives 1 and 2 posted, is in ERR, has flushed
// them, and flushes work posted now.
func (e *end) wantBroken() {
	e.w.t.Helper()
	e.want(recvs, failedRecv(1, verbs.WCWRFlushErr), failedRecv(2, verbs.WCWRFlushErr))
	e.wantState(verbs.QPErr)
	e.post(verbs.SendWR{WRID: 5, Opcode: verbs.OpSend}, signalled(6, verbs.OpRDMAWrite))
	e.want(sends, failed(5, verbs.OpSend, verbs.WCWRFlushErr), failed(6, verbs.OpRDMAWrite, verbs.WCWRFlushErr))
}

// localViolation is a mistake in the elements of a send work request.
type localViolation struct {
	name string
	ops  []verbs.Opcode
	// bad returns an element of 8 bytes that must not be accessed.
	bad func(w *world) verbs.SGE
}

var every = join(gathers, reads, atomics)

var localViolations = []localViolation{
	{"wrong lkey", every, spoiled(func(e *verbs.SGE) { e.LKey ^= 1 })},
	{"lkey 0", every, spoiled(func(e *verbs.SGE) { e.LKey = 0 })},
	{"closed region", every, func(w *world) verbs.SGE {
		m := w.alloc(w.near, 64, verbs.AccessAll, heap)
		m.close()
		return m.sge(0, 8)
	}},
	{"region of another PD", every, func(w *world) verbs.SGE {
		return w.allocate(w.near, allocCmd{Size: 64, Access: verbs.AccessAll, Other: true}).sge(0, 8)
	}},
	{"one byte behind the end", every, spoiled(func(e *verbs.SGE) { e.Addr += 57 })},
	{"one byte before the start", every, spoiled(func(e *verbs.SGE) { e.Addr-- })},
	{"round the end of the address space", every, spoiled(func(e *verbs.SGE) { e.Addr = ^uint64(0) - 3 })},
	{"longer than the region", bulk, spoiled(func(e *verbs.SGE) { e.Length = regionSize })},
	{"region without LOCAL_WRITE", join(reads, atomics), func(w *world) verbs.SGE {
		return w.alloc(w.near, 64, verbs.AccessRemoteRead, own).sge(0, 8)
	}},
}

// spoiled is an element of 8 bytes at the start of a region of 64, but for what spoil changes.
func spoiled(spoil func(*verbs.SGE)) func(w *world) verbs.SGE {
	return func(w *world) verbs.SGE {
		e := w.alloc(w.near, 64, verbs.AccessAll, own).sge(0, 8)
		spoil(&e)
		return e
	}
}

// test: the requester fails, with the element alone and at the end of a list; outside long tests only
// alone, with one operation. The responder is not involved.
func (v localViolation) test(w *world, op verbs.Opcode) {
	shapes := []int{1, 2}
	switch {
	case w.suite.attr.MaxSGE == 1 || op >= verbs.OpAtomicCmpAndSwp:
		shapes = shapes[:1]
	case op != v.ops[0] && !need.WantLong():
		shapes = shapes[1:]
	}
	for _, shape := range shapes {
		near, far := w.pair(qpSpec{SendSGE: shape}, usual)
		m := w.alloc(w.far, regionSize+100, verbs.AccessAll, own).fill(1)
		local := w.alloc(w.near, 100, verbs.AccessAll, own).fill(2)
		before := w.alloc(w.far, 8, verbs.AccessAll, own)
		list := []verbs.SGE{local.sge(8, 80), v.bad(w)}[2-shape:]
		near.recv(receive(1), receive(2))
		far.recv(receive(1, m.sge(0, regionSize)))
		near.post(onto(signalled(1, verbs.OpRDMAWrite, local.sge(0, 8)), before, 0),
			onto(verbs.SendWR{WRID: 2, Opcode: op, SGList: list}, m, 0),
			onto(verbs.SendWR{WRID: 3, Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{local.sge(0, 8)}}, before, 0),
			signalled(4, verbs.OpSend))
		near.want(sends, sent(1, verbs.OpRDMAWrite), failed(2, op, verbs.WCLocProtErr),
			failed(3, verbs.OpRDMAWrite, verbs.WCWRFlushErr), failed(4, verbs.OpSend, verbs.WCWRFlushErr))
		near.wantBroken()
		far.unharmed(1)
		before.expect(0, local.image[:8])
		if shape == 2 && op != verbs.OpRDMARead {
			m.adopt(0, 80) // the good part may be on its way before the bad one is found
		}
		if shape == 2 && op == verbs.OpRDMARead {
			local.adopt(8, 80)
		}
		w.verify("nothing is touched by the violation, nor by what was behind it")
	}
}

// receiveViolation is a mistake in the elements of a receive.
type receiveViolation struct {
	name string
	// list returns elements for a message of n bytes; m is a region of 2n bytes.
	list             func(w *world, m *mem, n int) []verbs.SGE
	sender, receiver verbs.WCStatus
}

var receiveViolations = []receiveViolation{
	{"one byte too short", func(_ *world, m *mem, n int) []verbs.SGE { return []verbs.SGE{m.sge(0, n-1)} },
		verbs.WCRemInvReqErr, verbs.WCLocLenErr},
	{"no elements", func(*world, *mem, int) []verbs.SGE { return nil },
		verbs.WCRemInvReqErr, verbs.WCLocLenErr},
	{"wrong lkey", func(_ *world, m *mem, n int) []verbs.SGE {
		e := m.sge(0, n)
		e.LKey ^= 1
		return []verbs.SGE{e}
	}, verbs.WCRemOpErr, verbs.WCLocProtErr},
	{"closed region", func(w *world, _ *mem, n int) []verbs.SGE {
		m := w.alloc(w.far, n, verbs.AccessAll, heap)
		m.close()
		return []verbs.SGE{m.sge(0, n)}
	}, verbs.WCRemOpErr, verbs.WCLocProtErr},
	{"region of another PD", func(w *world, _ *mem, n int) []verbs.SGE {
		return []verbs.SGE{w.allocate(w.far, allocCmd{Size: n, Access: verbs.AccessAll, Other: true}).sge(0, n)}
	}, verbs.WCRemOpErr, verbs.WCLocProtErr},
	{"region without LOCAL_WRITE", func(w *world, _ *mem, n int) []verbs.SGE {
		return []verbs.SGE{w.alloc(w.far, n, verbs.AccessRemoteRead, own).sge(0, n)}
	}, verbs.WCRemOpErr, verbs.WCLocProtErr},
	{"one byte behind the end", func(_ *world, m *mem, n int) []verbs.SGE { return []verbs.SGE{m.sge(n+1, n)} },
		verbs.WCRemOpErr, verbs.WCLocProtErr},
	{"one byte before the start", func(_ *world, m *mem, n int) []verbs.SGE { return []verbs.SGE{m.sge(-1, n)} },
		verbs.WCRemOpErr, verbs.WCLocProtErr},
	{"second element wrong", func(w *world, m *mem, n int) []verbs.SGE {
		w.needElements(2)
		return []verbs.SGE{m.sge(0, n/2), {Addr: m.Addr, Length: uint32(n), LKey: ^m.LKey}}
	}, verbs.WCRemOpErr, verbs.WCLocProtErr},
}

// test: the receiver's completion says what was wrong with the receive, the
// sender's that the peer could not take the message. Both are in ERR.
func (v receiveViolation) test(w *world, n int) {
	if v.receiver == verbs.WCLocLenErr && w.suite.Deviations.NoLengthStatus {
		v.sender, v.receiver = verbs.WCRemOpErr, verbs.WCLocProtErr
	}
	near, far := w.pair(qpSpec{RecvSGE: min(2, w.suite.attr.MaxSGE)}, usual)
	m := w.alloc(w.far, 2*n, verbs.AccessAll, own).fill(1)
	src := w.alloc(w.near, n, 0, own).fill(2)
	near.recv(receive(1), receive(2))
	list := v.list(w, m, n)
	far.recv(receive(9, list...), receive(1), receive(2))
	near.post(verbs.SendWR{WRID: 2, Opcode: verbs.OpSend, SGList: []verbs.SGE{src.sge(0, n)}}, signalled(3, verbs.OpSend))
	near.want(sends, failed(2, verbs.OpSend, v.sender), failed(3, verbs.OpSend, verbs.WCWRFlushErr))
	near.wantBroken()
	far.want(recvs, failedRecv(9, v.receiver))
	far.wantBroken()
	for _, e := range list { // of what the receive did name, any part may have been written
		if e.LKey == m.LKey && e.Addr >= m.Addr {
			off := int(e.Addr - m.Addr)
			m.adopt(off, min(int(e.Length), 2*n-off))
		}
	}
	w.verify("nothing is touched by the violation, nor by what was behind it")
}

// justInside: the first and the last bytes of a region belong to it.
func justInside(w *world) {
	near, far := w.pair(qpSpec{}, usual)
	const n = 4096 + 8
	a, b := w.alloc(w.near, n, verbs.AccessAll, heap), w.alloc(w.far, n, verbs.AccessAll, heap)
	for i, op := range moves {
		a.fill(uint64(i))
		b.fill(uint64(100 + i))
		src, dst := a, b
		if op == verbs.OpRDMARead {
			src, dst = b, a
		}
		move(near, far, op, 1, []piece{{src, 0, n}}, []piece{{dst, 0, n}})
		move(near, far, op, 2, []piece{{src, n - 1, 1}}, []piece{{dst, 0, 1}})
		move(near, far, op, 3, []piece{{src, 0, 1}}, []piece{{dst, n - 1, 1}})
	}
}

// closedWhileWaiting: a region that is closed under a send which waits for the
// peer's receive has been read by then, or the send fails.
func closedWhileWaiting(w *world) {
	for _, k := range []kind{own, heap} {
		near, far := w.pair(qpSpec{}, usual)
		const n = 100_000
		src, dst := w.alloc(w.near, n, 0, k).fill(1), w.alloc(w.far, n+guard, verbs.AccessAll, own)
		near.post(signalled(1, verbs.OpSend, src.sge(0, n)))
		near.quiet(sends)
		src.close()
		far.recv(receive(1, dst.sge(0, n)))
		wcs := near.take(sends, 1)
		switch wcs[0].Status {
		case verbs.WCSuccess:
			far.want(recvs, received(1, n))
			dst.expect(0, src.image)
		default:
			near.same(sends, failed(1, verbs.OpSend, verbs.WCLocProtErr), wcs[0], k.String())
			near.wantState(verbs.QPErr)
			far.setState(verbs.QPErr) // what had come of the message is being written until then
			far.take(recvs, 1)
			dst.adopt(0, n)
		}
		dst.verify("%v memory", k)
	}
}

// sendToErr: a queue pair in ERR does not answer.
func sendToErr(w *world) {
	near, far := w.pair(qpSpec{}, impatient)
	near.recv(receive(1))
	near.setState(verbs.QPErr)
	near.want(recvs, failedRecv(1, verbs.WCWRFlushErr))
	far.post(signalled(1, verbs.OpSend), signalled(2, verbs.OpRDMAWrite))
	wcs := far.take(sends, 2)
	require.Contains(w.t, []verbs.WCStatus{verbs.WCRetryExcErr, verbs.WCWRFlushErr}, wcs[0].Status)
	far.same(sends, failed(2, verbs.OpRDMAWrite, verbs.WCWRFlushErr), wcs[1], "the one behind it")
	far.wantState(verbs.QPErr)
}
