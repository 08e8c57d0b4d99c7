package verbstest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// testStates is about the state machine of a queue pair.
func testStates(t *testing.T, s *suite) {
	s.in(t, everywhere, func(w *world) {
		w.run("posting", postingByState)
		w.run("modify refused", modifyRefused)
		w.run("query", queryTells)
		w.run("capabilities", capabilities)
		w.run("receives in RTR", receivesInRTR)
		w.run("SQD", drained)
		if !s.Deviations.NoRetryInSQD {
			w.run("SQD while a send waits", drainingWaits)
		}
		w.run("ERR flushes", errFlushes)
		w.run("RESET forgets", resetForgets)
		w.run("leaving stops the peer", leavingStopsPeer)
		w.run("reuse", reuse)
		w.run("connect before the peer", connectFirst)
		w.run("peer never there", neverThere)
		w.run("peer gone", peerGone)
		w.run("no peer at that address", noPeerThere)
		w.run("connected to itself", itself)
		w.run("endpoint of another provider", alienEndpoint)
	})
	if canPause {
		t.Run("peer stopped while it writes", func(t *testing.T) { peerStopped(t, s) })
	}
}

// stepTo makes the one step of Modify that leads to state, with the peer's
// endpoint where it is needed, and returns what it set.
func (e *end) stepTo(state verbs.QPState, to *end) verbs.QPAttr {
	e.w.t.Helper()
	a, mask := verbs.QPAttr{QPState: state}, verbs.MaskState
	switch state {
	case verbs.QPInit:
		a.PortNum, a.AccessFlags = 1, verbs.AccessAll
		mask |= verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccessFlags
	case verbs.QPRTR:
		remote, err := verbs.ParseEndpoint(to.Endpoint)
		require.NoError(e.w.t, err)
		e.to = to
		a.PathMTU, a.DestQPNum, a.RQPSN = remote.ActiveMTU, remote.QPNum, remote.PSN
		a.MaxDestRdAtomic, a.MinRNRTimer = uint8(min(e.w.suite.attr.MaxQPRdAtomic, 255)), 1
		a.AHAttr = verbs.AHAttr{DLID: remote.LID, PortNum: 1, IsGlobal: true, DGID: remote.GID, HopLimit: 64, SGIDIndex: e.query().AHAttr.SGIDIndex}
		mask |= verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN | verbs.MaskMaxDestRdAtomic | verbs.MaskMinRNRTimer
	case verbs.QPRTS:
		own, err := verbs.ParseEndpoint(e.Endpoint)
		require.NoError(e.w.t, err)
		a.SQPSN, a.Timeout, a.RetryCnt, a.RNRRetry, a.MaxRdAtomic = own.PSN, 18, 7, 7, uint8(min(e.w.suite.attr.MaxQPInitRdAtom, 255))
		mask |= verbs.MaskSQPSN | verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskMaxQPRdAtomic
	}
	e.modify(a, mask)
	e.wantState(state)
	return a
}

// refresh updates the endpoint, after RESET.
func (e *end) refresh() { e.qpInfo = call[qpInfo](e.w, e.p, infoCmd{e.ID}) }

func postingByState(w *world) {
	near, far := w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
	far.connect(near, usual)
	refused := func(err error, what string) {
		w.t.Helper()
		require.ErrorIs(w.t, err, verbs.ErrState, "%s in %v", what, near.query().QPState)
	}
	post := func() error { _, err := near.tryPost(signalled(1, verbs.OpRDMAWrite)); return err }
	recv := func() error { _, err := near.tryRecv(receive(1)); return err }

	near.wantState(verbs.QPReset)
	refused(post(), "post send")
	refused(recv(), "post receive")
	near.stepTo(verbs.QPInit, nil)
	refused(post(), "post send")
	require.NoError(w.t, recv())
	near.stepTo(verbs.QPRTR, far)
	refused(post(), "post send")
	require.NoError(w.t, recv())
	near.stepTo(verbs.QPRTS, nil)
	require.NoError(w.t, post())
	near.want(sends, sent(1, verbs.OpRDMAWrite))
	near.setState(verbs.QPErr)
	require.NoError(w.t, recv())
	require.NoError(w.t, post())
	near.want(sends, failed(1, verbs.OpRDMAWrite, verbs.WCWRFlushErr))
	flushed := failedRecv(1, verbs.WCWRFlushErr)
	near.want(recvs, flushed, flushed, flushed)
	near.setState(verbs.QPReset)
	refused(post(), "post send")
	refused(recv(), "post receive")
}

// modifyRefused: a transition that the table does not allow is an error and changes nothing.
func modifyRefused(w *world) {
	near, far := w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
	try := func(want error, a verbs.QPAttr, mask verbs.QPAttrMask) {
		w.t.Helper()
		before := near.query()
		require.ErrorIs(w.t, near.qp().Modify(&a, mask), want)
		require.Equal(w.t, before, near.query())
		require.Equal(w.t, before.QPState, near.qp().State())
	}
	try(verbs.ErrState, verbs.QPAttr{QPState: verbs.QPRTR}, verbs.MaskState)
	try(verbs.ErrState, verbs.QPAttr{QPState: verbs.QPSQE}, verbs.MaskState)
	try(verbs.ErrState, verbs.QPAttr{QPState: verbs.QPState(77)}, verbs.MaskState)
	try(verbs.ErrInvalid, verbs.QPAttr{QPState: verbs.QPInit, PortNum: 1}, verbs.MaskState|verbs.MaskPort)
	init := verbs.MaskState | verbs.MaskPort | verbs.MaskPKeyIndex | verbs.MaskAccessFlags
	try(verbs.ErrInvalid, verbs.QPAttr{QPState: verbs.QPInit, PortNum: uint8(w.suite.attr.PhysPortCnt + 1)}, init)
	try(verbs.ErrInvalid, verbs.QPAttr{QPState: verbs.QPInit, PortNum: 1, Timeout: 1}, init|verbs.MaskTimeout)
	near.connect(far, usual)
	try(verbs.ErrState, verbs.QPAttr{QPState: verbs.QPInit, PortNum: 1}, init)
	try(verbs.ErrState, verbs.QPAttr{QPState: verbs.QPRTS, CurState: verbs.QPSQD}, verbs.MaskState|verbs.MaskCurState)
	try(verbs.ErrInvalid, verbs.QPAttr{QPState: verbs.QPErr, AccessFlags: verbs.AccessAll}, verbs.MaskState|verbs.MaskAccessFlags)
	remote, err := verbs.ParseEndpoint(far.Endpoint)
	require.NoError(w.t, err)
	require.ErrorIs(w.t, near.qp().Connect(remote, verbs.ConnectAttr{}), verbs.ErrState, "connect a second time")
	near.wantState(verbs.QPRTS)
}

// queryTells: Query returns what was set.
func queryTells(w *world) {
	near, far := w.open(w.near, qpSpec{SendWR: 3, RecvWR: 4, SendSGE: 1, RecvSGE: 1}), w.open(w.far, qpSpec{})
	init := near.stepTo(verbs.QPInit, nil)
	rtr := near.stepTo(verbs.QPRTR, far)
	rts := near.stepTo(verbs.QPRTS, nil)
	got := near.query()
	require.GreaterOrEqual(w.t, got.Cap.MaxSendWR, 3)
	require.GreaterOrEqual(w.t, got.Cap.MaxRecvWR, 4)
	require.Equal(w.t, rtr.AHAttr.DGID, got.AHAttr.DGID)
	require.Equal(w.t, rtr.AHAttr.DLID, got.AHAttr.DLID)
	require.Equal(w.t, rtr.AHAttr.PortNum, got.AHAttr.PortNum)
	require.Equal(w.t, verbs.QPAttr{
		QPState: verbs.QPRTS, CurState: verbs.QPRTS, Cap: got.Cap,
		AccessFlags: init.AccessFlags, PortNum: init.PortNum,
		AHAttr: got.AHAttr, PathMTU: rtr.PathMTU, DestQPNum: rtr.DestQPNum, RQPSN: rtr.RQPSN,
		MaxDestRdAtomic: rtr.MaxDestRdAtomic, MinRNRTimer: rtr.MinRNRTimer,
		SQPSN: rts.SQPSN, Timeout: rts.Timeout, RetryCnt: rts.RetryCnt, RNRRetry: rts.RNRRetry, MaxRdAtomic: rts.MaxRdAtomic,
	}, got)
	near.modify(verbs.QPAttr{AccessFlags: verbs.AccessLocalWrite, MinRNRTimer: 5}, verbs.MaskAccessFlags|verbs.MaskMinRNRTimer)
	got = near.query()
	require.Equal(w.t, verbs.AccessLocalWrite, got.AccessFlags)
	require.EqualValues(w.t, 5, got.MinRNRTimer)
	near.setState(verbs.QPSQD)
	near.modify(verbs.QPAttr{Timeout: 9, RetryCnt: 1, RNRRetry: 2}, verbs.MaskTimeout|verbs.MaskRetryCnt|verbs.MaskRNRRetry)
	got = near.query()
	require.Equal(w.t, [3]uint8{9, 1, 2}, [3]uint8{got.Timeout, got.RetryCnt, got.RNRRetry})
	near.setState(verbs.QPReset)
	got = near.query()
	require.Equal(w.t, verbs.QPReset, got.QPState)
}

// receivesInRTR: a queue pair that may not send yet already responds to its peer.
func receivesInRTR(w *world) {
	near, far := w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
	near.connect(far, usual)
	far.stepTo(verbs.QPInit, nil)
	m := w.alloc(w.far, 64, verbs.AccessAll, own).fill(1)
	back := w.alloc(w.near, 64, verbs.AccessAll, own)
	far.recv(receive(1, m.sge(0, 64)))
	far.stepTo(verbs.QPRTR, near)
	near.post(signalled(1, verbs.OpSend, back.sge(0, 8)), onto(signalled(2, verbs.OpRDMARead, back.sge(0, 64)), m, 0))
	read := sent(2, verbs.OpRDMARead)
	read.ByteLen = 64
	near.want(sends, sent(1, verbs.OpSend), read)
	far.want(recvs, received(1, 8))
	far.wantState(verbs.QPRTR)
	far.stepTo(verbs.QPRTS, nil)
	near.recv(receive(3))
	far.post(signalled(3, verbs.OpSend))
	near.want(recvs, received(3, 0))
	far.want(sends, sent(3, verbs.OpSend))
}

// drained: in SQD new sends wait for RTS, receiving goes on.
func drained(w *world) {
	near, far := w.pair(qpSpec{}, usual)
	near.post(signalled(1, verbs.OpRDMAWrite))
	near.want(sends, sent(1, verbs.OpRDMAWrite))
	near.modify(verbs.QPAttr{QPState: verbs.QPSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
	near.event(verbs.EventSQDrained)
	got := near.query()
	require.Equal(w.t, verbs.QPSQD, got.QPState)
	require.False(w.t, got.SQDraining)

	far.recv(receive(2))
	near.post(signalled(2, verbs.OpSend), signalled(3, verbs.OpRDMAWrite))
	near.quiet(sends)
	far.quiet(recvs)
	near.recv(receive(4))
	far.post(signalled(4, verbs.OpSend), signalled(5, verbs.OpRDMAWrite))
	near.want(recvs, received(4, 0))
	far.want(sends, sent(4, verbs.OpSend), sent(5, verbs.OpRDMAWrite))

	near.setState(verbs.QPRTS)
	near.want(sends, sent(2, verbs.OpSend), sent(3, verbs.OpRDMAWrite))
	far.want(recvs, received(2, 0))

	// Work that waits in SQD is flushed like any other.
	near.setState(verbs.QPSQD)
	near.post(signalled(6, verbs.OpRDMAWrite))
	near.setState(verbs.QPErr)
	near.want(sends, failed(6, verbs.OpRDMAWrite, verbs.WCWRFlushErr))
}

// drainingWaits: the queue is drained once outstanding operations are complete.
func drainingWaits(w *world) {
	near, far := w.pair(qpSpec{}, usual)
	near.post(signalled(1, verbs.OpSend)) // waits for the peer's receive
	near.quiet(sends)
	near.modify(verbs.QPAttr{QPState: verbs.QPSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
	require.True(w.t, near.query().SQDraining)
	near.post(signalled(2, verbs.OpSend))
	far.recv(receive(1), receive(2))
	near.event(verbs.EventSQDrained)
	require.False(w.t, near.query().SQDraining)
	near.want(sends, sent(1, verbs.OpSend))
	near.quiet(sends)
	near.setState(verbs.QPRTS)
	near.want(sends, sent(2, verbs.OpSend))
	far.want(recvs, received(1, 0), received(2, 0))
}

// errFlushes: going to ERR completes everything posted, in order, signalled or not.
func errFlushes(w *world) {
	near, far := w.pair(qpSpec{}, usual)
	near.recv(receive(1), receive(2))
	near.post(signalled(1, verbs.OpSend), verbs.SendWR{WRID: 2, Opcode: verbs.OpRDMAWrite}, signalled(3, verbs.OpSend))
	near.quiet(sends)
	near.setState(verbs.QPErr)
	near.want(sends, failed(1, verbs.OpSend, verbs.WCWRFlushErr), failed(2, verbs.OpRDMAWrite, verbs.WCWRFlushErr), failed(3, verbs.OpSend, verbs.WCWRFlushErr))
	near.want(recvs, failedRecv(1, verbs.WCWRFlushErr), failedRecv(2, verbs.WCWRFlushErr))
	near.post(verbs.SendWR{WRID: 4, Opcode: verbs.OpSend})
	near.recv(receive(3))
	near.want(sends, failed(4, verbs.OpSend, verbs.WCWRFlushErr))
	near.want(recvs, failedRecv(3, verbs.WCWRFlushErr))
	near.setState(verbs.QPErr) // from ERR to ERR is a transition as well
	near.quiet(sends)
	far.quiet(recvs)
	near.wantState(verbs.QPErr)
}

// resetForgets: going to RESET drops everything posted without a completion.
func resetForgets(w *world) {
	near, far := w.pair(qpSpec{}, usual)
	near.recv(receive(1), receive(2))
	near.post(signalled(1, verbs.OpSend), signalled(2, verbs.OpSend))
	near.setState(verbs.QPReset)
	far.setState(verbs.QPReset)
	near.quiet(sends)
	near.quiet(recvs)
	near.refresh()
	far.refresh()
	near.connect(far, usual)
	far.connect(near, usual)
	far.post(signalled(3, verbs.OpSend))
	far.quiet(sends) // the old receives are gone
	near.recv(receive(4))
	near.want(recvs, received(4, 0))
	far.want(sends, sent(3, verbs.OpSend))
	far.recv(receive(5))
	near.post(signalled(5, verbs.OpSend))
	near.want(sends, sent(5, verbs.OpSend))
	far.want(recvs, received(5, 0))
	near.quiet(sends)
	far.quiet(recvs)
}

// reuse connects one queue pair with one peer after the other, each connection
// ending in ERR.
func reuse(w *world) {
	near := w.open(w.near, qpSpec{})
	m := w.alloc(w.near, 1000, verbs.AccessAll, own)
	for i := range uint64(5) {
		far := w.open(w.far, qpSpec{})
		dst := w.alloc(w.far, 1000, verbs.AccessAll, own)
		near.connect(far, usual)
		far.connect(near, usual)
		m.fill(i)
		far.recv(receive(i, dst.sge(0, 1000)))
		near.post(signalled(i, verbs.OpSend, m.sge(0, 1000)))
		near.want(sends, sent(i, verbs.OpSend))
		far.want(recvs, received(i, 1000))
		dst.expect(0, m.image)
		dst.verify("connection %d", i)
		near.post(onto(signalled(9, verbs.OpRDMAWrite, m.sge(0, 1)), dst, 1000))
		near.want(sends, failed(9, verbs.OpRDMAWrite, verbs.WCRemAccessErr))
		near.wantState(verbs.QPErr)
		near.setState(verbs.QPReset)
		near.refresh()
	}
}

// patient waits long for a peer that is not there yet.
var patient = func() connSpec {
	c := usual
	c.Timeout = 19 // 2 s
	return c
}()

// connectFirst: operations posted before the peer is connected wait for it.
func connectFirst(w *world) {
	near, far := w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
	src, dst := w.alloc(w.near, 1000, 0, own).fill(1), w.alloc(w.far, 1000, verbs.AccessAll, own)
	near.connect(far, patient)
	near.post(onto(signalled(1, verbs.OpRDMAWrite, src.sge(0, 1000)), dst, 0), signalled(2, verbs.OpSend))
	near.quiet(sends)
	dst.verify("nothing happens before the peer is connected")
	far.stepTo(verbs.QPInit, nil)
	far.recv(receive(2))
	near.quiet(sends)
	far.connect(near, patient)
	near.want(sends, sent(1, verbs.OpRDMAWrite), sent(2, verbs.OpSend))
	far.want(recvs, received(2, 0))
	dst.expect(0, src.image)
	dst.verify("written when it was connected")
}

// neverThere: a queue pair waits for a peer that does not come as long as timeout and retries say.
// (InfiniBand architecture, 9.7.6.1.3: a timer may run up to four times as long as its code says.)
func neverThere(w *world) {
	for _, c := range []struct {
		timeout uint8
		retries int
	}{{8, 0}, {8, 1}, {13, 1}} {
		conn := usual
		conn.Timeout, conn.Retries = c.timeout, c.retries
		near, far := w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
		near.connect(far, conn)
		near.recv(receive(7))
		start := time.Now()
		near.post(verbs.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite}, signalled(2, verbs.OpSend))
		near.want(sends, failed(1, verbs.OpRDMAWrite, verbs.WCRetryExcErr), failed(2, verbs.OpSend, verbs.WCWRFlushErr))
		took := time.Since(start)
		ack := verbs.AckTimeout(c.timeout)
		require.Greater(w.t, took, ack, "gave up early")
		require.Less(w.t, took, 4*ack*time.Duration(c.retries+1)+bound/2, "gave up late")
		near.want(recvs, failedRecv(7, verbs.WCWRFlushErr))
		near.wantState(verbs.QPErr)
	}
}

// impatient gives up soon.
var impatient = func() connSpec {
	c := usual
	c.Timeout, c.Retries = 10, 1
	return c
}()

// peerGone: the queue pair at the other end has been closed, before or after
// the two were connected.
func peerGone(w *world) {
	for _, connected := range []bool{false, true} {
		near, far := w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
		if connected {
			for { // the far process may have no CPU for longer than near waits
				far.connect(near, impatient)
				near.connect(far, impatient)
				near.post(signalled(1, verbs.OpRDMAWrite))
				wc := near.take(sends, 1)[0]
				if wc.Status != verbs.WCRetryExcErr || w.ctx.Err() != nil {
					near.same(sends, sent(1, verbs.OpRDMAWrite), wc, "while the peer is there")
					break
				}
				near, far = w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
			}
			do(w, w.far, closeCmd{far.ID})
		} else {
			do(w, w.far, closeCmd{far.ID})
			near.connect(far, impatient)
		}
		// Posting in ERR, should near have been told already, gives a flush.
		near.post(signalled(2, verbs.OpSend), signalled(3, verbs.OpSend))
		wcs := near.take(sends, 2)
		require.Contains(w.t, []verbs.WCStatus{verbs.WCRetryExcErr, verbs.WCWRFlushErr}, wcs[0].Status, "connected before: %v", connected)
		near.same(sends, failed(3, verbs.OpSend, verbs.WCWRFlushErr), wcs[1], "the one behind it")
		near.wantState(verbs.QPErr)
	}
}

// noPeerThere: an endpoint without a peer is refused when connecting, or sends to it get no
// response.
func noPeerThere(w *world) {
	for name, change := range map[string]func(*verbs.Endpoint){
		"QP number":  func(e *verbs.Endpoint) { e.QPNum ^= 0x7fffff },
		"LID":        func(e *verbs.Endpoint) { e.LID ^= 0xffff },
		"GID":        func(e *verbs.Endpoint) { e.GID = verbs.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1} }, // 192.0.2.1, RFC 5737
		"everything": func(e *verbs.Endpoint) { e.QPNum, e.LID, e.GID, e.PSN = 0, 0, verbs.GID{}, 0 },
	} {
		near, far := w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
		remote, err := verbs.ParseEndpoint(far.Endpoint)
		require.NoError(w.t, err)
		change(&remote)
		b, err := remote.MarshalBinary()
		require.NoError(w.t, err)
		if _, err := try[any](w, w.near, connectCmd{near.ID, b, impatient}); err != nil {
			continue
		}
		near.post(signalled(1, verbs.OpSend))
		wcs := near.take(sends, 1)
		require.Equal(w.t, verbs.WCRetryExcErr, wcs[0].Status, name)
		near.wantState(verbs.QPErr)
	}
}

// itself: a queue pair may be its own peer.
func itself(w *world) {
	near := w.open(w.near, qpSpec{})
	near.connect(near, usual)
	src, dst := w.alloc(w.near, 5000, verbs.AccessAll, own), w.alloc(w.near, 5000, verbs.AccessAll, own)
	for i, op := range moves {
		src.fill(uint64(i))
		move(near, near, op, uint64(i), []piece{{src, 1, 4500}}, []piece{{dst, 2, 4500}})
	}
}

func alienEndpoint(w *world) {
	near, far := w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
	remote, err := verbs.ParseEndpoint(far.Endpoint)
	require.NoError(w.t, err)
	remote.Provider = fmt.Sprintf("not-%.12s", remote.Provider)
	require.ErrorIs(w.t, near.qp().Connect(remote, verbs.ConnectAttr{}), verbs.ErrEndpoint)
	near.wantState(verbs.QPReset)
}
