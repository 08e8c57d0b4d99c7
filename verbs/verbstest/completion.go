package verbstest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testCompletion is about which completions come, how many, and about full queues.
func testCompletion(t *testing.T, s *suite) {
	s.in(t, everywhere, func(w *world) {
		for _, every := range []int{2, 5, 16} {
			w.run(fmt.Sprintf("signal every %d", every), func(w *world) { signalEvery(w, every) })
		}
		w.run("all signalled by the queue", signalAll)
		w.run("send queue full", sendQueueFull)
		w.run("receive queue full", recvQueueFull)
		w.run("full queues do not overrun their CQs", fullQueues)
		w.run("batches", batches)
		w.run("invalid in the middle of a batch", invalidInBatch)
		w.run("shared CQ", sharedCQ)
		w.run("one CQ for both sides", oneCQ)
		w.run("many queue pairs", manyPairs)
		w.run("overrun", overrun)
	})
}

// signalEvery: a completion stands for the unsignalled operations before it, and
// frees their places in the queue.
func signalEvery(w *world, every int) {
	near, _ := w.pair(qpSpec{SendWR: every}, usual)
	src, dst := w.alloc(w.near, 8, 0, own).fill(1), w.alloc(w.far, 8, verbs.AccessAll, own)
	for round := range 5 {
		for i := range every {
			wr := onto(signalled(uint64(100*round+i), verbs.OpRDMAWrite, src.sge(0, 8)), dst, 0)
			if i < every-1 {
				wr.Flags = 0
			}
			near.post(wr)
		}
		near.want(sends, sent(uint64(100*round+every-1), verbs.OpRDMAWrite))
	}
	near.quiet(sends)
	dst.expect(0, src.image)
	dst.verify("written")
}

func signalAll(w *world) {
	near, far := w.pair(qpSpec{SigAll: true}, usual)
	far.recv(receive(1), receive(2))
	near.post(verbs.SendWR{WRID: 1, Opcode: verbs.OpSend}, signalled(2, verbs.OpSend), verbs.SendWR{WRID: 3, Opcode: verbs.OpRDMAWrite})
	near.want(sends, sent(1, verbs.OpSend), sent(2, verbs.OpSend), sent(3, verbs.OpRDMAWrite))
}

// sendQueueFull: posting more than there is room for returns how many were accepted, and works again
// once completions have been polled. The peer posts no receive, so nothing completes meanwhile.
func sendQueueFull(w *world) {
	near, far := w.pair(qpSpec{SendWR: 8}, usual)
	granted := near.Cap.MaxSendWR
	require.GreaterOrEqual(w.t, granted, 8)
	var wrs []verbs.SendWR
	for i := range granted + 5 {
		wrs = append(wrs, signalled(uint64(i), verbs.OpSend))
	}
	posted, err := near.tryPost(wrs...)
	require.NoError(w.t, err)
	require.GreaterOrEqual(w.t, posted, 8)
	require.LessOrEqual(w.t, posted, granted)
	n, err := near.tryPost(wrs[posted:]...)
	require.NoError(w.t, err)
	require.Zero(w.t, n, "the queue is full")
	for done := 0; done < len(wrs); done++ {
		far.recv(receive(uint64(done)))
		far.want(recvs, received(uint64(done), 0))
		near.want(sends, sent(uint64(done), verbs.OpSend))
		n, err := near.tryPost(wrs[posted:]...)
		require.NoError(w.t, err)
		if posted < len(wrs) {
			require.Equal(w.t, 1, n, "one completion polled is one place free")
		}
		posted += n
	}
	near.quiet(sends)
}

func recvQueueFull(w *world) {
	near, far := w.pair(qpSpec{RecvWR: 8}, usual)
	granted := far.Cap.MaxRecvWR
	var wrs []verbs.RecvWR
	for i := range granted + 5 {
		wrs = append(wrs, receive(uint64(i)))
	}
	posted, err := far.tryRecv(wrs...)
	require.NoError(w.t, err)
	require.GreaterOrEqual(w.t, posted, 8)
	require.LessOrEqual(w.t, posted, granted)
	n, err := far.tryRecv(wrs[posted:]...)
	require.NoError(w.t, err)
	require.Zero(w.t, n, "the queue is full")
	for done := 0; done < len(wrs); done++ {
		near.post(signalled(uint64(done), verbs.OpSend))
		near.want(sends, sent(uint64(done), verbs.OpSend))
		far.want(recvs, received(uint64(done), 0))
		n, err := far.tryRecv(wrs[posted:]...)
		require.NoError(w.t, err)
		if posted < len(wrs) {
			require.Equal(w.t, 1, n, "one completion polled is one place free")
		}
		posted += n
	}
}

// fullQueues: a place in a queue is free when its completion has been polled, not
// before. So a CQ with as many entries as the queues have does not overrun,
// however much is posted.
func fullQueues(w *world) {
	near, far := w.pair(qpSpec{CQE: 8 * queueDepth}, usual) // room for what a device rounds up
	taken, posted := 0, 0
	for range 20 { // several times what fits
		for range near.Cap.MaxSendWR {
			n, err := far.tryRecv(receive(0))
			require.NoError(w.t, err)
			taken += n
			n, err = near.tryPost(signalled(0, verbs.OpSend))
			require.NoError(w.t, err)
			posted += n
		}
		require.LessOrEqual(w.t, taken, far.Cap.MaxRecvWR, "receives taken, none polled")
		require.LessOrEqual(w.t, posted, near.Cap.MaxSendWR, "sends taken, none polled")
	}
	near.take(sends, posted)
	far.take(recvs, min(taken, posted))
	near.wantState(verbs.QPRTS)
	far.wantState(verbs.QPRTS)
}

// batches posts many work requests with one call, and polls into slices of all
// lengths.
func batches(w *world) {
	const count = 64
	near, far := w.pair(qpSpec{SendWR: count, RecvWR: count}, usual)
	src, dst := w.alloc(w.near, count, 0, own).fill(1), w.alloc(w.far, count, verbs.AccessAll, own)
	var send []verbs.SendWR
	var recv []verbs.RecvWR
	var wantSent, wantReceived []verbs.WC
	for i := range count {
		id := uint64(i)
		send, wantSent = append(send, signalled(id, verbs.OpSend, src.sge(i, 1))), append(wantSent, sent(id, verbs.OpSend))
		recv, wantReceived = append(recv, receive(id, dst.sge(i, 1))), append(wantReceived, received(id, 1))
	}
	far.recv(recv...)
	near.post(send...)
	far.want(recvs, wantReceived...)
	for i, got, size := 0, 0, 0; got < count; i++ {
		wcs := make([]verbs.WC, size%7)
		n, err := near.cq(sends).Poll(wcs)
		require.NoError(w.t, err)
		require.LessOrEqual(w.t, n, len(wcs))
		for j := range n {
			near.same(sends, wantSent[got+j], wcs[j], fmt.Sprintf("send completion %d", got+j))
		}
		got += n
		size++
		require.NoError(w.t, w.ctx.Err(), "%d of %d completions came", got, count)
	}
	dst.expect(0, src.image)
	dst.verify("%d messages of one byte", count)
	near.quiet(sends)
}

// invalidInBatch: the work requests before an invalid one are posted, those after it are not.
func invalidInBatch(w *world) {
	near, far := w.pair(qpSpec{}, usual)
	n, err := near.tryPost(signalled(1, verbs.OpRDMAWrite), signalled(2, verbs.OpRDMAWrite), signalled(3, verbs.Opcode(7)), signalled(4, verbs.OpRDMAWrite))
	require.ErrorIs(w.t, err, verbs.ErrInvalid)
	require.Equal(w.t, 2, n)
	near.want(sends, sent(1, verbs.OpRDMAWrite), sent(2, verbs.OpRDMAWrite))
	near.quiet(sends)
	n, err = near.tryPost()
	require.NoError(w.t, err)
	require.Zero(w.t, n)
	n, err = far.tryRecv()
	require.NoError(w.t, err)
	require.Zero(w.t, n)
	near.wantState(verbs.QPRTS)
}

// sharedCQ: the completions of three queue pairs go to one CQ, each in its own
// order.
func sharedCQ(w *world) {
	const each = 10
	first := w.open(w.near, qpSpec{CQE: 3 * each})
	ends := []*end{first, w.open(w.near, qpSpec{CQOf: first.ID}), w.open(w.near, qpSpec{CQOf: first.ID})}
	for _, e := range ends {
		to := w.open(w.far, qpSpec{})
		to.connect(e, usual)
		e.connect(to, usual)
	}
	for i := range each {
		for _, e := range ends {
			e.post(signalled(uint64(i), verbs.OpRDMAWrite))
		}
	}
	next := map[uint32]uint64{}
	for _, wc := range first.take(sends, 3*each) {
		require.NoError(w.t, wc.Err())
		require.Equal(w.t, next[wc.QPNum], wc.WRID, "order of QP %#x", wc.QPNum)
		next[wc.QPNum]++
	}
	for _, e := range ends {
		require.EqualValues(w.t, each, next[e.QPNum])
	}
}

// oneCQ: sends and receives of a queue pair complete in one CQ.
func oneCQ(w *world) {
	near, far := w.pair(qpSpec{OneCQ: true, CQE: 2 * queueDepth}, usual)
	for i := range uint64(10) {
		for _, e := range []*end{near, far} {
			e.recv(receive(2 * i))
		}
		for _, e := range []*end{near, far} {
			e.post(signalled(2*i+1, verbs.OpSend))
		}
		for _, e := range []*end{near, far} {
			wcs := e.take(sends, 2)
			if wcs[0].Opcode == verbs.WCRecv { // which of the two is first is open
				wcs[0], wcs[1] = wcs[1], wcs[0]
			}
			e.same(sends, sent(2*i+1, verbs.OpSend), wcs[0], "send")
			e.same(recvs, received(2*i, 0), wcs[1], "receive")
		}
	}
}

// manyPairs: queue pairs by the dozen between the same two nodes, which are
// connected, used and closed in different orders.
func manyPairs(w *world) {
	rng := seeded(w.suite.Seed, w.t.Name())
	count := need.InLong(24, 64)
	count = min(count, w.suite.attr.MaxQP/4)
	near, far := make([]*end, count), make([]*end, count)
	for i := range count {
		near[i], far[i] = w.open(w.near, qpSpec{}), w.open(w.far, qpSpec{})
	}
	for _, i := range rng.Perm(count) {
		near[i].connect(far[i], patient)
	}
	for _, i := range rng.Perm(count) {
		near[i].recv(receive(uint64(i)))
		near[i].post(signalled(uint64(i), verbs.OpSend))
	}
	for _, i := range rng.Perm(count) {
		far[i].connect(near[i], patient)
		far[i].recv(receive(uint64(i)))
		far[i].post(signalled(uint64(i), verbs.OpSend))
	}
	for _, i := range rng.Perm(count) {
		for _, e := range []*end{near[i], far[i]} {
			e.want(sends, sent(uint64(i), verbs.OpSend))
			e.want(recvs, received(uint64(i), 0))
		}
	}
	for _, i := range rng.Perm(count) {
		do(w, w.near, closeCmd{near[i].ID})
	}
}

// overrun: a CQ that is not polled breaks when it is full. An event and Poll report that, its QPs stop,
// and the context goes on.
func overrun(w *world) {
	count := min(w.suite.attr.MaxQPWR, 1024)
	near, _ := w.pair(qpSpec{CQE: 1, SendWR: count}, usual)
	for i := range count {
		n, err := near.tryPost(signalled(uint64(i), verbs.OpRDMAWrite))
		require.NoError(w.t, err)
		require.Equal(w.t, 1, n, "send %d of %d", i, count)
	}
	cq := near.cq(sends)
	_, err := w.near.node.event(w.ctx, func(e verbs.AsyncEvent) bool { return e.Type == verbs.EventCQErr && e.CQ == cq })
	require.NoError(w.t, err, "waiting for EventCQErr")
	wcs := make([]verbs.WC, count)
	got := 0
	for {
		n, err := cq.Poll(wcs)
		got += n
		if err != nil {
			require.ErrorIs(w.t, err, verbs.ErrCQOverrun)
			break
		}
		require.NotZero(w.t, n, "a broken CQ is not just empty")
	}
	require.Less(w.t, got, count, "completions before the overrun")
	near.wantState(verbs.QPErr)

	// Another CQ of the same context works.
	a, _ := w.pair(qpSpec{}, usual)
	a.post(signalled(1, verbs.OpRDMAWrite))
	a.want(sends, sent(1, verbs.OpRDMAWrite))
}
