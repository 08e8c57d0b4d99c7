package verbstest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testSRQ is about receives that several queue pairs take from. The queue is at
// the near end, the senders at the far one.
func testSRQ(t *testing.T, s *suite) {
	need.Capability(t, "shared receive queues", s.attr.MaxSRQ > 0)
	s.in(t, everywhere, func(w *world) {
		w.run("three queue pairs", srqShared)
		w.run("full", srqFull)
		w.run("limit", srqLimit)
		w.run("queue pair in error", srqLastWQE)
		w.run("receive waited for", srqRNR)
	})
}

// srqEnds makes an SRQ with room for size receives, and count connected pairs.
func srqEnds(w *world, size, count int) (srq int, near, far []*end) {
	srq = call[int](w, w.near, srqCmd{verbs.SRQAttr{MaxWR: size, MaxSGE: min(2, w.suite.attr.MaxSGE)}})
	spec := qpSpec{SRQ: srq, CQE: count * size}
	for range count {
		n, f := w.open(w.near, spec), w.open(w.far, qpSpec{})
		n.connect(f, usual)
		f.connect(n, usual)
		near, far = append(near, n), append(far, f)
		spec.CQOf = near[0].ID
	}
	return srq, near, far
}

// fillSRQ posts receives.
func fillSRQ(w *world, srq int, wrs ...verbs.RecvWR) {
	w.t.Helper()
	require.Equal(w.t, len(wrs), call[int](w, w.near, srqRecvCmd{srq, wrs}))
}

// srqShared: arriving messages take receives in the order of posting, and the completion names the
// queue pair.
func srqShared(w *world) {
	const rounds, pairs = 5, 3
	srq, near, far := srqEnds(w, rounds*pairs, pairs)
	dst := w.alloc(w.near, rounds*pairs*100, verbs.AccessAll, own)
	src := w.alloc(w.far, 100, 0, own)
	for i := range rounds * pairs {
		fillSRQ(w, srq, receive(uint64(i), dst.sge(100*i, 100)))
	}
	_, err := near[0].tryRecv(receive(99))
	require.ErrorIs(w.t, err, verbs.ErrInvalid, "a queue pair with an SRQ has no receive queue of its own")
	for i := range rounds * pairs {
		id, k := uint64(i), (i*i+i/pairs)%pairs
		src.fill(id)
		want := received(id, 100)
		if i%2 == 0 {
			far[k].post(signalled(id, verbs.OpSend, src.sge(0, 100)))
			far[k].want(sends, sent(id, verbs.OpSend))
			dst.expect(100*i, src.image)
		} else {
			far[k].post(verbs.SendWR{WRID: id, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: 9})
			far[k].want(sends, sent(id, verbs.OpRDMAWriteWithImm))
			want = verbs.WC{WRID: id, Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: 9}
		}
		near[k].want(recvs, want)
	}
	dst.verify("messages of three queue pairs")
}

func srqFull(w *world) {
	srq, near, far := srqEnds(w, 4, 1)
	attr, err := w.near.node.objs[srq].srq.Query()
	require.NoError(w.t, err)
	require.GreaterOrEqual(w.t, attr.MaxWR, 4)
	wrs := make([]verbs.RecvWR, attr.MaxWR+3)
	for i := range wrs {
		wrs[i] = receive(uint64(i))
	}
	require.Equal(w.t, attr.MaxWR, call[int](w, w.near, srqRecvCmd{srq, wrs}), "taken by a queue for %d", attr.MaxWR)
	far[0].post(signalled(1, verbs.OpSend))
	near[0].want(recvs, received(0, 0))
	far[0].want(sends, sent(1, verbs.OpSend))
	require.Equal(w.t, 1, call[int](w, w.near, srqRecvCmd{srq, wrs}))
	n, err := try[int](w, w.near, srqRecvCmd{srq, []verbs.RecvWR{receive(1, make([]verbs.SGE, attr.MaxSGE+1)...)}})
	require.ErrorIs(w.t, err, verbs.ErrInvalid)
	require.Zero(w.t, n)
}

// srqLimit: when fewer receives than the limit are left there is one event, and
// the limit is 0 again.
func srqLimit(w *world) {
	srq, near, far := srqEnds(w, 8, 1)
	q := w.near.node.objs[srq].srq
	limit := func() int {
		a, err := q.Query()
		require.NoError(w.t, err)
		return a.Limit
	}
	message := func(id uint64) {
		far[0].post(signalled(id, verbs.OpSend))
		far[0].want(sends, sent(id, verbs.OpSend))
		near[0].want(recvs, received(id, 0))
	}
	for round := range uint64(2) {
		for i := range uint64(4) {
			fillSRQ(w, srq, receive(10*round+i))
		}
		require.NoError(w.t, q.ModifyLimit(3))
		require.Equal(w.t, 3, limit())
		message(10 * round) // 3 are left
		require.Equal(w.t, 3, limit(), "not below the limit yet")
		message(10*round + 1)
		do(w, w.near, eventCmd{srq, verbs.EventSRQLimitReached})
		require.Zero(w.t, limit())
		message(10*round + 2)
		message(10*round + 3)
		require.Zero(w.t, limit())
	}
	for _, n := range []int{-1, 1 << 30, 1 << 32, 1<<32 + 1} {
		require.ErrorIs(w.t, q.ModifyLimit(n), verbs.ErrInvalid, "%d", n)
	}
}

// srqLastWQE: a queue pair that goes to ERR leaves the receives to the others,
// and an event says that it takes no more of them.
func srqLastWQE(w *world) {
	srq, near, far := srqEnds(w, 4, 2)
	fillSRQ(w, srq, receive(1), receive(2))
	near[0].setState(verbs.QPErr)
	lastWQE := func(e *end) {
		if !w.suite.Deviations.NoLastWQE {
			e.event(verbs.EventQPLastWQEReached)
		}
	}
	lastWQE(near[0])
	near[0].quiet(recvs)
	for id := range uint64(2) {
		far[1].post(signalled(id+1, verbs.OpSend))
		far[1].want(sends, sent(id+1, verbs.OpSend))
		near[1].want(recvs, received(id+1, 0))
	}
	// The other one goes to ERR by a mistake of its peer.
	far[1].post(verbs.SendWR{WRID: 3, Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{w.alloc(w.far, 8, verbs.AccessAll, own).sge(0, 8)}, RKey: 1})
	far[1].want(sends, failed(3, verbs.OpRDMARead, verbs.WCRemAccessErr))
	lastWQE(near[1])
	near[1].wantState(verbs.QPErr)
}

// srqRNR: senders wait for receives of an empty SRQ, each gets one.
func srqRNR(w *world) {
	srq, near, far := srqEnds(w, 4, 3)
	for _, f := range far {
		f.post(signalled(1, verbs.OpSend))
	}
	near[0].quiet(recvs)
	fillSRQ(w, srq, receive(1), receive(2), receive(3))
	for _, f := range far {
		f.want(sends, sent(1, verbs.OpSend))
	}
	var ids, from []uint64
	for _, wc := range near[0].take(recvs, 3) {
		require.NoError(w.t, wc.Err())
		ids, from = append(ids, wc.WRID), append(from, uint64(wc.QPNum))
	}
	require.ElementsMatch(w.t, []uint64{1, 2, 3}, ids)
	require.ElementsMatch(w.t, []uint64{uint64(near[0].QPNum), uint64(near[1].QPNum), uint64(near[2].QPNum)}, from)
}
