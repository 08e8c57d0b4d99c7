package verbstest

import (
	"context"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// stopCmd moves a queue pair to a state in which its peer has no access any more,
// and returns what a region holds then.
type stopCmd struct {
	QP, MR int
	To     verbs.QPState
}

func (c stopCmd) run(_ context.Context, n *node) (any, error) {
	if err := n.objs[c.QP].qp.Modify(&verbs.QPAttr{QPState: c.To}, verbs.MaskState); err != nil {
		return nil, err
	}
	return slices.Clone(n.objs[c.MR].mr.Bytes()), nil
}

// leavingStopsPeer: once a queue pair is in ERR, or in RESET, its peer writes
// nothing more, also not the rest of what it was writing.
func leavingStopsPeer(w *world) {
	const size, writes = 1 << 20, 8
	src := []*mem{w.alloc(w.near, size, 0, own).fill(1), w.alloc(w.near, size, 0, own).fill(2)}
	dst := w.alloc(w.far, size, verbs.AccessAll, own)
	for round := range w.suite.Rounds {
		near, far := w.pair(qpSpec{}, impatient)
		stop := stopCmd{far.ID, dst.ID, []verbs.QPState{verbs.QPErr, verbs.QPReset}[round%2]}
		// One has arrived: the others are under way when the far end leaves.
		near.post(onto(signalled(0, verbs.OpRDMAWrite, src[1].sge(0, size)), dst, 0))
		near.want(sends, sent(0, verbs.OpRDMAWrite))
		stopped := w.far.begin(w.ctx, stop)
		for id := range uint64(writes) {
			near.post(onto(signalled(id, verbs.OpRDMAWrite, src[id%2].sge(0, size)), dst, 0))
		}
		ended := near.take(sends, writes)
		before, err := stopped()
		require.NoError(w.t, err)
		if ended[writes-1].Status == verbs.WCSuccess {
			// It was late; a last one finds it gone.
			near.post(onto(signalled(writes, verbs.OpRDMAWrite, src[0].sge(0, size)), dst, 0))
			require.NotEqual(w.t, verbs.WCSuccess, near.take(sends, 1)[0].Status)
		}
		after := call[[]byte](w, w.far, dumpCmd{dst.ID})
		require.True(w.t, slices.Equal(before.([]byte), after), "round %d: written to after %v", round, stop.To)
		do(w, w.near, closeCmd{near.ID})
		do(w, w.far, closeCmd{far.ID})
	}
}
