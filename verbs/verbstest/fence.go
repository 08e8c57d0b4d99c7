package verbstest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// stopCmd moves a queue pair to a state in which its peer no longer has access, and returns the
// contents of a region then.
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

// steady gives up within about a second: by then a peer has connected, even on a busy host, and one
// that has left is known to be gone.
var steady = func() connSpec {
	c := usual
	c.Timeout, c.Retries = 16, 3
	return c
}()

// leavingStopsPeer: once a queue pair is in ERR or RESET, its peer writes nothing more, not even the
// rest of a write in flight.
func leavingStopsPeer(w *world) {
	const size, writes = 1 << 20, 8
	src := []*mem{w.alloc(w.near, size, 0, own).fill(1), w.alloc(w.near, size, 0, own).fill(2)}
	dst := w.alloc(w.far, size, verbs.AccessAll, own)
	for round := range w.suite.Rounds {
		near, far := w.pair(qpSpec{}, steady)
		stop := stopCmd{far.ID, dst.ID, []verbs.QPState{verbs.QPErr, verbs.QPReset}[round%2]}
		if w.suite.Deviations.LateERR {
			stop.To = verbs.QPReset
		}
		// One has arrived: the others are in flight when the far end leaves.
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

// pourCmd sends a message of no bytes, and then posts the same sends over and over,
// until one fails.
type pourCmd struct {
	ID  int
	WRs []verbs.SendWR
}

func (c pourCmd) run(ctx context.Context, n *node) (any, error) {
	o := n.objs[c.ID]
	if err := postAll(o.qp, verbs.SendWR{Opcode: verbs.OpSend}); err != nil {
		return nil, err
	}
	for {
		if err := postAll(o.qp, c.WRs...); err != nil {
			return nil, err
		}
		wcs, err := await(ctx, o.send, len(c.WRs))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(wcs, func(wc verbs.WC) bool { return wc.Status != verbs.WCSuccess }) {
			return nil, nil
		}
	}
}

// peerStopped: a peer that is stopped while it writes, and goes on later, does not touch memory that
// was returned to its owner: neither a region of a queue pair that went to ERR, nor memory reused
// after its region was closed. Memory that cannot be returned is kept.
func peerStopped(t *testing.T, s *suite) {
	short := *s
	short.Config.PeerTimeout = time.Second
	short.in(t, []place{processes}, func(w *world) {
		const size = 1 << 20
		rng := seeded(s.Seed, w.t.Name())
		src := []*mem{w.alloc(w.far, size, 0, own).fill(1), w.alloc(w.far, size, 0, own).fill(2)}
		rounds := need.InShort(1, max(2, s.Rounds/5))
		w.ctx = withinRounds(w.t, 4*rounds) // each may take the peer timeout
		for round := range rounds {
			near, far := w.pair(qpSpec{}, steady)
			dst := w.alloc(w.near, size, verbs.AccessAll, own)
			dst.closed = true // its bytes cannot be predicted
			near.recv(receive(1))
			poured := w.far.begin(w.ctx, pourCmd{far.ID, []verbs.SendWR{
				onto(signalled(1, verbs.OpRDMAWrite, src[0].sge(0, size)), dst, 0),
				onto(signalled(2, verbs.OpRDMAWrite, src[1].sge(0, size)), dst, 0),
			}})
			near.want(recvs, received(1, 0))
			for range rng.IntN(5000) {
				near.query()
			}
			process := w.far.child.cmd.Process
			require.NoError(w.t, pause(process))
			mr := w.near.node.objs[dst.ID].mr
			err := near.qp().Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState)
			if err == nil {
				before := slices.Clone(mr.Bytes())
				require.NoError(w.t, resume(process))
				_, err = poured()
				require.NoError(w.t, err)
				require.True(w.t, slices.Equal(before, mr.Bytes()), "round %d: written to after ERR", round)
				require.NoError(w.t, mr.Close())
			} else {
				require.ErrorIs(w.t, err, verbs.ErrBusy)
				require.ErrorIs(w.t, mr.Close(), verbs.ErrBusy)
				next := w.alloc(w.near, size, verbs.AccessAll, own)
				require.NoError(w.t, resume(process))
				_, err = poured()
				require.NoError(w.t, err)
				next.verify("round %d: memory that was never given back is used again", round)
				next.close()
			}
			do(w, w.near, closeCmd{near.ID})
			do(w, w.far, closeCmd{far.ID})
		}
	})
}
