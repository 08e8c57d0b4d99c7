package verbstest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/verbs"
)

// testDevice is about what can be asked of a device, and what it refuses when
// objects are made.
func testDevice(t *testing.T, s *suite) {
	leak.Check(t)
	w := newWorld(t, s, contexts)
	ctx, pd := w.near.node.ctx, w.near.node.pd
	other := w.far.node
	a := s.attr
	must := func(v any, err error) any {
		t.Helper()
		require.NoError(t, err)
		return v
	}

	t.Run("limits", func(t *testing.T) {
		for name, v := range map[string]int{"MaxQP": a.MaxQP, "MaxQPWR": a.MaxQPWR, "MaxSGE": a.MaxSGE, "MaxSGERd": a.MaxSGERd, "MaxCQ": a.MaxCQ,
			"MaxCQE": a.MaxCQE, "MaxMR": a.MaxMR, "MaxPD": a.MaxPD, "PhysPortCnt": a.PhysPortCnt,
			"MaxQPRdAtomic": a.MaxQPRdAtomic, "MaxQPInitRdAtom": a.MaxQPInitRdAtom} {
			require.Positive(t, v, name)
		}
		require.Positive(t, a.MaxMRSize)
		require.Positive(t, a.MaxMsgSize)
		require.LessOrEqual(t, a.AtomicCap, verbs.AtomicGlob)
		require.Equal(t, a.MaxSRQ > 0, a.MaxSRQWR > 0)
		require.NotEmpty(t, a.FWVer)
	})

	t.Run("ports", func(t *testing.T) {
		for port := 1; port <= a.PhysPortCnt; port++ {
			p, err := ctx.QueryPort(port)
			require.NoError(t, err)
			require.Positive(t, p.ActiveMTU.Bytes())
			require.GreaterOrEqual(t, p.MaxMTU, p.ActiveMTU)
			require.Positive(t, p.GIDTblLen)
			_, err = ctx.QueryGID(port, 0)
			require.NoError(t, err)
			for _, index := range []int{-1, p.GIDTblLen} {
				_, err = ctx.QueryGID(port, index)
				require.ErrorIs(t, err, verbs.ErrInvalid)
			}
		}
		for _, port := range []int{-1, 0, a.PhysPortCnt + 1} {
			_, err := ctx.QueryPort(port)
			require.ErrorIs(t, err, verbs.ErrInvalid)
			_, err = ctx.QueryGID(port, 0)
			require.ErrorIs(t, err, verbs.ErrInvalid)
		}
	})

	cq := must(ctx.CreateCQ(1, nil)).(*verbs.CQ)
	foreign := must(other.ctx.CreateCQ(1, nil)).(*verbs.CQ)
	foreignChannel := must(other.ctx.CreateCompChannel()).(*verbs.CompChannel)

	t.Run("refused", func(t *testing.T) {
		qp := func(change func(*verbs.QPInitAttr)) func() error {
			return func() error {
				in := verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
				change(&in)
				_, err := pd.CreateQP(in)
				return err
			}
		}
		reg := func(buf []byte, access verbs.AccessFlags) func() error {
			return func() error { _, err := pd.RegMR(buf, access); return err }
		}
		for name, c := range map[string]func() error{
			"CQ of 0 entries":        func() error { _, err := ctx.CreateCQ(0, nil); return err },
			"CQ of too many":         func() error { _, err := ctx.CreateCQ(a.MaxCQE+1, nil); return err },
			"CQ with alien channel":  func() error { _, err := ctx.CreateCQ(1, foreignChannel); return err },
			"QP without CQs":         qp(func(in *verbs.QPInitAttr) { in.SendCQ = nil }),
			"QP with alien CQ":       qp(func(in *verbs.QPInitAttr) { in.RecvCQ = foreign }),
			"too many sends":         qp(func(in *verbs.QPInitAttr) { in.Cap.MaxSendWR = a.MaxQPWR + 1 }),
			"too many receives":      qp(func(in *verbs.QPInitAttr) { in.Cap.MaxRecvWR = a.MaxQPWR + 1 }),
			"too many send SGEs":     qp(func(in *verbs.QPInitAttr) { in.Cap.MaxSendSGE = a.MaxSGE + 1 }),
			"too many receive SGEs":  qp(func(in *verbs.QPInitAttr) { in.Cap.MaxRecvSGE = a.MaxSGE + 1 }),
			"too much inline":        qp(func(in *verbs.QPInitAttr) { in.Cap.MaxInlineData = a.MaxInlineData + 1 }),
			"negative":               qp(func(in *verbs.QPInitAttr) { in.Cap.MaxSendWR = -1 }),
			"empty region":           reg(nil, 0),
			"allocation of nothing":  func() error { _, err := pd.AllocMR(0, 0); return err },
			"unknown access flag":    reg(make([]byte, 8), 1<<31),
			"REMOTE_WRITE alone":     reg(make([]byte, 8), verbs.AccessRemoteWrite),
			"REMOTE_ATOMIC alone":    reg(make([]byte, 8), verbs.AccessRemoteAtomic),
			"SRQ of nothing":         func() error { _, err := pd.CreateSRQ(verbs.SRQAttr{}); return err },
			"SRQ of too many":        func() error { _, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: a.MaxSRQWR + 1}); return err },
			"notify without channel": func() error { return cq.ReqNotify(false) },
		} {
			require.ErrorIs(t, c(), verbs.ErrInvalid, name)
		}
	})

	t.Run("regions", func(t *testing.T) {
		buf := make([]byte, 100)
		one := must(pd.RegMR(buf, verbs.AccessLocalWrite)).(*verbs.MR)
		two := must(pd.RegMR(buf, 0)).(*verbs.MR)
		require.NotEqual(t, one.LKey(), two.LKey())
		require.Equal(t, one.Addr(), two.Addr())
		require.Equal(t, 100, one.Len())
		require.Same(t, &buf[0], &one.Bytes()[0])
		require.Equal(t, verbs.AccessLocalWrite, one.Access())
		require.Equal(t, verbs.SGE{Addr: one.Addr() + 3, Length: 4, LKey: one.LKey()}, one.SGE(3, 4))
		for _, mr := range []*verbs.MR{one, two} {
			require.NoError(t, mr.Close())
			require.Nil(t, mr.Bytes())
			require.ErrorIs(t, mr.Close(), verbs.ErrClosed)
		}
		for _, size := range []int{1, 4095, 4096, 4097, 1 << 20} {
			mr := must(pd.AllocMR(size, verbs.AccessAll)).(*verbs.MR)
			require.Len(t, mr.Bytes(), size)
			require.Zero(t, mr.Addr()%4096, "page-aligned")
			for i, b := range mr.Bytes() {
				if b != 0 {
					require.Zero(t, b, "byte %d of %d", i, size)
				}
			}
			pattern(mr.Bytes(), 1) // so that the next one shows whether it is cleared
			require.NoError(t, mr.Close())
		}
	})

	t.Run("unknown", func(t *testing.T) {
		_, err := verbs.Find("no such device")
		require.ErrorIs(t, err, verbs.ErrNoDevice)
	})
}
