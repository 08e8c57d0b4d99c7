package verbstest

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// capabilities: a queue pair has at least the capabilities requested and no more than the device's. It
// reports the same ones in every state, and they hold.
func capabilities(w *world) {
	dev := w.suite.attr
	limits := func(c verbs.QPCap) []int {
		return []int{c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInlineData}
	}
	most := []int{dev.MaxQPWR, dev.MaxQPWR, dev.MaxSGE, dev.MaxSGE, dev.MaxInlineData}
	for _, spec := range []qpSpec{
		{SendWR: 1, RecvWR: 1, SendSGE: 1, RecvSGE: 1},
		{SendWR: 3, RecvWR: 5, SendSGE: min(2, dev.MaxSGE), RecvSGE: min(3, dev.MaxSGE), Inline: min(7, dev.MaxInlineData)},
		{SendWR: 64, RecvWR: 33, SendSGE: dev.MaxSGE, RecvSGE: dev.MaxSGE, Inline: dev.MaxInlineData},
	} {
		spec.CQE = min(1024, dev.MaxCQE) // also for what is granted beyond
		asked := []int{spec.SendWR, spec.RecvWR, spec.SendSGE, spec.RecvSGE, spec.Inline}
		near, far := w.open(w.near, spec), w.open(w.far, qpSpec{})
		granted := near.qp().Cap()
		for i, n := range limits(granted) {
			require.GreaterOrEqual(w.t, n, asked[i], "%+v of %+v", granted, spec)
			require.LessOrEqual(w.t, n, most[i], "%+v of %+v", granted, spec)
		}
		for _, s := range []verbs.QPState{verbs.QPReset, verbs.QPInit, verbs.QPRTR, verbs.QPRTS} {
			if s != verbs.QPReset {
				near.stepTo(s, far)
			}
			require.Equal(w.t, granted, near.query().Cap, "in %v", s)
			require.Equal(w.t, granted, near.qp().Cap(), "in %v", s)
		}

		// No data moves: the peer is not connected.
		m := w.alloc(w.near, 64, verbs.AccessAll, own)
		_, err := near.tryRecv(receive(0, slices.Repeat([]verbs.SGE{m.sge(0, 1)}, granted.MaxRecvSGE+1)...))
		require.ErrorIs(w.t, err, verbs.ErrInvalid, "SGEs of a receive beyond %+v", granted)
		_, err = near.tryPost(signalled(0, verbs.OpSend, slices.Repeat([]verbs.SGE{m.sge(0, 1)}, granted.MaxSendSGE+1)...))
		require.ErrorIs(w.t, err, verbs.ErrInvalid, "SGEs of a send beyond %+v", granted)
		inline := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled}
		inline.Inline = make([]byte, granted.MaxInlineData+1)
		_, err = near.tryPost(inline)
		require.ErrorIs(w.t, err, verbs.ErrInvalid, "inline bytes beyond %+v", granted)
		for range granted.MaxRecvWR {
			near.recv(receive(0, slices.Repeat([]verbs.SGE{m.sge(0, 1)}, granted.MaxRecvSGE)...))
		}
		if granted.MaxInlineData > 0 {
			inline.Inline = inline.Inline[1:]
			near.post(inline)
		} else {
			near.post(signalled(0, verbs.OpSend))
		}
		for range granted.MaxSendWR - 1 {
			near.post(signalled(0, verbs.OpSend, slices.Repeat([]verbs.SGE{m.sge(0, 1)}, granted.MaxSendSGE)...))
		}
	}
	if dev.MaxSRQ > 0 {
		srq := call[int](w, w.near, srqCmd{verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}})
		c := w.open(w.near, qpSpec{SRQ: srq}).qp().Cap()
		require.Zero(w.t, c.MaxRecvWR, "receives of a queue pair with an SRQ")
		require.Zero(w.t, c.MaxRecvSGE, "SGEs of receives of a queue pair with an SRQ")
	}
}
