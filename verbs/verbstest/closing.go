package verbstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testClosing is about the end of objects, in whatever order.
func testClosing(t *testing.T, s *suite) {
	t.Run("every order", func(t *testing.T) { everyOrder(t, s) })
	s.in(t, []place{contexts, processes}, func(w *world) {
		w.run("both sides with their contexts", bothSides)
		w.run("region closed under traffic", regionUnderTraffic)
		w.run("queue pair closed under traffic", queuePairUnderTraffic)
	})
	t.Run("use after close", func(t *testing.T) { useAfterClose(t, s) })
	t.Run("waiters end with their object", func(t *testing.T) { waitersEnd(t, s) })
}

// part is an object of a yard.
type part int

const (
	partQP part = iota
	partSRQ
	partMR
	partCQ
	partChannel
	partPD
	partContext
	parts
)

func (p part) String() string {
	return [...]string{"QP", "SRQ", "MR", "CQ", "channel", "PD", "context"}[p]
}

// users of a part: it is busy while one of them is open.
var users = [parts][]part{
	partSRQ: {partQP}, partCQ: {partQP}, partChannel: {partCQ}, partPD: {partQP, partMR, partSRQ},
}

// yard is one of everything.
type yard struct {
	ctx *verbs.Context
	pd  *verbs.PD
	ch  *verbs.CompChannel
	cq  *verbs.CQ
	srq *verbs.SRQ // nil where the device has none
	qp  *verbs.QP
	mr  *verbs.MR
	// open: what has not been closed.
	open [parts]bool
}

// yardSize is the length of a yard's region.
const yardSize = 1 << 20

func newYard(ctx *verbs.Context) (_ *yard, err error) {
	attr, err := ctx.QueryDevice()
	if err != nil {
		return nil, err
	}
	y := &yard{ctx: ctx, open: [parts]bool{true, attr.MaxSRQ > 0, true, true, true, true, true}}
	if y.pd, err = ctx.AllocPD(); err != nil {
		return nil, err
	}
	if y.ch, err = ctx.CreateCompChannel(); err != nil {
		return nil, err
	}
	if y.cq, err = ctx.CreateCQ(64, y.ch); err != nil {
		return nil, err
	}
	if attr.MaxSRQ > 0 {
		if y.srq, err = y.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}); err != nil {
			return nil, err
		}
	}
	if y.mr, err = y.pd.AllocMR(yardSize, verbs.AccessAll); err != nil {
		return nil, err
	}
	y.qp, err = y.pd.CreateQP(verbs.QPInitAttr{SendCQ: y.cq, RecvCQ: y.cq, SRQ: y.srq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}})
	return y, err
}

// start connects the yard's queue pair and leaves work outstanding: long
// operations, and a send that waits for a receive.
func (y *yard) start(remote verbs.Endpoint, rkey uint32, addr uint64) error {
	if err := y.qp.Connect(remote, impatient.attr()); err != nil {
		return err
	}
	if err := y.cq.ReqNotify(false); err != nil {
		return err
	}
	// Four quarters: written from, written to, read from, read to.
	const quarter = yardSize / 4
	write, read := signalled(1, verbs.OpRDMAWrite, y.mr.SGE(0, quarter)), signalled(2, verbs.OpRDMARead, y.mr.SGE(3*quarter, quarter))
	write.RKey, write.RemoteAddr = rkey, addr+quarter
	read.RKey, read.RemoteAddr = rkey, addr+2*quarter
	return postAll(y.qp, write, read, signalled(3, verbs.OpSend, y.mr.SGE(0, quarter)), write)
}

// close closes one part and checks the answer: busy while a user of it is open,
// closed if it was, or its context.
func (y *yard) close(p part) error {
	if p == partSRQ && y.srq == nil {
		return nil
	}
	var want error
	switch {
	case !y.open[p] || !y.open[partContext]:
		want = verbs.ErrClosed
	case slices.ContainsFunc(users[p], func(u part) bool { return y.open[u] }):
		want = verbs.ErrBusy
	}
	got := [parts]io.Closer{y.qp, y.srq, y.mr, y.cq, y.ch, y.pd, y.ctx}[p].Close()
	if want == nil {
		y.open[p] = false
	}
	if !errors.Is(got, want) {
		return fmt.Errorf("closing the %v: %v, want %v; open before: %v", p, got, want, y.open)
	}
	return nil
}

// everyOrder closes the objects of one context in every order, and those that were busy again in
// the same order, with work outstanding on a queue pair that is its own peer. Long tests try all
// orders, others a random choice.
func everyOrder(t *testing.T, s *suite) {
	leak.Check(t)
	rng, oneIn := seeded(s.Seed, t.Name()), need.ByForm(24, 6, 1)
	withinRounds(t, 72/oneIn) // ten orders each
	n, err := openNode(s.Device, s.Config, s.Near)
	require.NoError(t, err)
	var order [partContext]part
	for i := range order {
		order[i] = part(i)
	}
	permute(order[:], 0, func(order []part) {
		if rng.IntN(oneIn) > 0 {
			return
		}
		y, err := newYard(n.ctx)
		require.NoError(t, err)
		self, err := y.qp.Endpoint()
		require.NoError(t, err)
		require.NoError(t, y.start(self, y.mr.RKey(), y.mr.Addr()))
		for range partContext { // as often as there are levels of dependence, at least
			for _, p := range order {
				require.NoError(t, y.close(p), "order %v", order)
			}
		}
		for p, open := range y.open {
			require.Equal(t, part(p) == partContext, open, "%v is open after all orders of closing", part(p))
		}
	})
	require.NoError(t, n.close())
}

// permute calls f with every permutation of l[from:].
func permute[T any](l []T, from int, f func([]T)) {
	if from == len(l) {
		f(l)
		return
	}
	for i := from; i < len(l); i++ {
		l[from], l[i] = l[i], l[from]
		permute(l, from+1, f)
		l[from], l[i] = l[i], l[from]
	}
}

// yardCmd opens one more context, with one of everything. (It is no struct, as gob takes no empty
// one.)
type yardCmd uint8

// yardInfo is what the other side needs to know.
type yardInfo struct {
	ID       int
	Endpoint []byte
	Addr     uint64
	RKey     uint32
}

func (yardCmd) run(_ context.Context, n *node) (any, error) {
	var ctx *verbs.Context
	err := openIn(n.where, func() (err error) {
		ctx, err = n.ctx.Device().Open(n.cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	y, err := newYard(ctx)
	if err != nil {
		return nil, err
	}
	ep, err := y.qp.Endpoint()
	if err != nil {
		return nil, err
	}
	b, err := ep.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return yardInfo{ID: n.add(object{yard: y}), Endpoint: b, Addr: y.mr.Addr(), RKey: y.mr.RKey()}, nil
}

// startCmd connects a yard to another one and leaves work outstanding.
type startCmd struct {
	ID int
	To yardInfo
}

func (c startCmd) run(_ context.Context, n *node) (any, error) {
	ep, err := verbs.ParseEndpoint(c.To.Endpoint)
	if err != nil {
		return nil, err
	}
	return nil, n.objs[c.ID].yard.start(ep, c.To.RKey, c.To.Addr)
}

// tearCmd closes the parts of a yard in an order drawn from Seed, twice, and at
// last its context.
type tearCmd struct {
	ID   int
	Seed uint64
}

func (c tearCmd) run(_ context.Context, n *node) (any, error) {
	y := n.objs[c.ID].yard
	delete(n.objs, c.ID)
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	var order []int
	for range 2 {
		order = append(order, rng.Perm(int(parts))...)
	}
	for _, p := range order {
		if err := y.close(part(p)); err != nil {
			return nil, fmt.Errorf("order %v: %w", order, err)
		}
		dither(rng)
	}
	for p := range parts { // the context is closed: so is everything
		if err := y.close(p); err != nil {
			return nil, fmt.Errorf("order %v: %w", order, err)
		}
	}
	return nil, nil
}

// bothSides closes two contexts and everything in them, each in its own order, while operations
// between them are outstanding.
func bothSides(w *world) {
	rng := seeded(w.suite.Seed, w.t.Name())
	for range 3 * w.suite.Rounds {
		near, far := call[yardInfo](w, w.near, yardCmd(0)), call[yardInfo](w, w.far, yardCmd(0))
		do(w, w.near, startCmd{near.ID, far})
		do(w, w.far, startCmd{far.ID, near})
		wait := w.far.begin(w.ctx, tearCmd{far.ID, rng.Uint64()})
		do(w, w.near, tearCmd{near.ID, rng.Uint64()})
		_, err := wait()
		require.NoError(w.t, err, "far end")
	}
}

// regionUnderTraffic: a region that is closed under the writes of a peer refuses
// those that come after.
func regionUnderTraffic(w *world) {
	for _, k := range []kind{own, heap} {
		near, _ := w.pair(qpSpec{}, usual)
		src, dst := w.alloc(w.near, 1<<20, 0, own).fill(1), w.alloc(w.far, 1<<20, verbs.AccessAll, k)
		neighbour := w.alloc(w.far, 1<<20, verbs.AccessAll, k).fill(2)
		write := onto(signalled(0, verbs.OpRDMAWrite, src.sge(0, 1<<20)), dst, 0)
		wait := w.far.begin(w.ctx, closeCmd{dst.ID})
		dst.closed = true
		var last verbs.WC
		for last.Status == verbs.WCSuccess {
			near.post(write, write)
			last = near.take(sends, 2)[1]
		}
		require.Contains(w.t, []verbs.WCStatus{verbs.WCRemAccessErr, verbs.WCWRFlushErr}, last.Status)
		_, err := wait()
		require.NoError(w.t, err)
		neighbour.verify("%v memory beside the closed region", k)
	}
}

// queuePairUnderTraffic: work on a queue pair that the peer closes ends with errors.
func queuePairUnderTraffic(w *world) {
	for range w.suite.Rounds {
		near, far := w.pair(qpSpec{}, impatient)
		src, dst := w.alloc(w.near, 1<<18, verbs.AccessAll, own).fill(1), w.alloc(w.far, 1<<18, verbs.AccessAll, own)
		for id := range uint64(16) {
			near.post(onto(signalled(id, []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend}[id%3], src.sge(0, 1<<18)), dst, 0))
		}
		do(w, w.far, closeCmd{far.ID})
		failedBefore := false
		for i, wc := range near.take(sends, 16) {
			require.EqualValues(w.t, i, wc.WRID)
			switch {
			case wc.Status == verbs.WCSuccess:
				require.False(w.t, failedBefore, "success after a failure")
			case failedBefore:
				require.Equal(w.t, verbs.WCWRFlushErr, wc.Status)
			default:
				failedBefore = true
				require.Contains(w.t, []verbs.WCStatus{verbs.WCRetryExcErr, verbs.WCWRFlushErr}, wc.Status)
			}
		}
		require.True(w.t, failedBefore)
		near.wantState(verbs.QPErr)
	}
}

// useAfterClose calls every method of every object that is closed, by itself or
// with its context.
func useAfterClose(t *testing.T, s *suite) {
	leak.Check(t)
	ctx := within(t)
	for _, all := range []bool{false, true} {
		n, err := openNode(s.Device, s.Config, s.Near)
		require.NoError(t, err)
		y, err := newYard(n.ctx)
		require.NoError(t, err)
		remote, err := y.qp.Endpoint()
		require.NoError(t, err)
		send, recv, wcs := []verbs.SendWR{signalled(1, verbs.OpSend)}, []verbs.RecvWR{receive(1)}, make([]verbs.WC, 1)
		if all {
			require.NoError(t, y.ctx.Close())
		} else {
			for p := range partContext {
				require.NoError(t, y.close(p))
			}
		}
		second := func(_ any, err error) error { return err }
		calls := map[string]func() error{
			"QP.Query":                func() error { return second(y.qp.Query()) },
			"QP.Modify":               func() error { return y.qp.Modify(&verbs.QPAttr{}, verbs.MaskState) },
			"QP.PostSend":             func() error { return second(y.qp.PostSend(send)) },
			"QP.PostRecv":             func() error { return second(y.qp.PostRecv(recv)) },
			"QP.Map":                  func() error { return second(y.qp.Map(1, 2, 3)) },
			"QP.Endpoint":             func() error { return second(y.qp.Endpoint()) },
			"QP.Connect":              func() error { return y.qp.Connect(remote, verbs.ConnectAttr{}) },
			"QP.Close":                y.qp.Close,
			"MR.Close":                y.mr.Close,
			"CQ.Poll":                 func() error { return second(y.cq.Poll(wcs)) },
			"CQ.ReqNotify":            func() error { return y.cq.ReqNotify(false) },
			"CQ.Close":                y.cq.Close,
			"CompChannel.FD":          func() error { return second(y.ch.FD()) },
			"CompChannel.Get":         func() error { return second(y.ch.Get(ctx)) },
			"CompChannel.Close":       y.ch.Close,
			"PD.RegMR":                func() error { return second(y.pd.RegMR(make([]byte, 1), 0)) },
			"PD.AllocMR":              func() error { return second(y.pd.AllocMR(1, 0)) },
			"PD.CreateQP":             func() error { return second(y.pd.CreateQP(verbs.QPInitAttr{SendCQ: y.cq, RecvCQ: y.cq})) },
			"PD.Close":                y.pd.Close,
			"CreateQP closed CQ":      func() error { return second(n.pd.CreateQP(verbs.QPInitAttr{SendCQ: y.cq, RecvCQ: y.cq})) },
			"CreateCQ closed channel": func() error { return second(n.ctx.CreateCQ(1, y.ch)) },
		}
		if y.srq != nil {
			calls["SRQ.PostRecv"] = func() error { return second(y.srq.PostRecv(recv)) }
			calls["SRQ.ModifyLimit"] = func() error { return y.srq.ModifyLimit(1) }
			calls["SRQ.Query"] = func() error { return second(y.srq.Query()) }
			calls["SRQ.Close"] = y.srq.Close
			calls["PD.CreateSRQ"] = func() error { return second(y.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 1})) }
		}
		if all {
			calls["Context.QueryDevice"] = func() error { return second(y.ctx.QueryDevice()) }
			calls["Context.QueryPort"] = func() error { return second(y.ctx.QueryPort(1)) }
			calls["Context.QueryGID"] = func() error { return second(y.ctx.QueryGID(1, 0)) }
			calls["Context.AllocPD"] = func() error { return second(y.ctx.AllocPD()) }
			calls["Context.CreateCompChannel"] = func() error { return second(y.ctx.CreateCompChannel()) }
			calls["Context.CreateCQ"] = func() error { return second(y.ctx.CreateCQ(1, nil)) }
			calls["Context.AsyncEvent"] = func() error { return second(y.ctx.AsyncEvent(ctx)) }
			calls["Context.Close"] = y.ctx.Close
		}
		for name, f := range calls {
			require.ErrorIs(t, f(), verbs.ErrClosed, "%s, context closed: %v", name, all)
		}
		require.Equal(t, verbs.QPReset, y.qp.State())
		require.Nil(t, y.mr.Bytes())
		if !all {
			require.NoError(t, n.close())
		}
	}
}

// waitersEnd: calls blocked in an object return when it, or its context, is closed.
func waitersEnd(t *testing.T, s *suite) {
	leak.Check(t)
	const rounds = 12
	ctx := withinRounds(t, rounds)
	for i := range rounds {
		n, err := openNode(s.Device, s.Config, s.Near)
		require.NoError(t, err)
		ch, err := n.ctx.CreateCompChannel()
		require.NoError(t, err)
		cq, err := n.ctx.CreateCQ(1, nil)
		require.NoError(t, err)
		c := newCrew(ctx)
		wantClosed := func(what string, f func() error) {
			c.run(func() error {
				if err := f(); !errors.Is(err, verbs.ErrClosed) {
					return fmt.Errorf("%s: %v, want %v", what, err, verbs.ErrClosed)
				}
				return nil
			})
		}
		for range 2 {
			wantClosed("Get", func() error { _, err := ch.Get(c.ctx); return err })
			wantClosed("Wait", func() error { _, err := cq.Wait(c.ctx, make([]verbs.WC, 1)); return err })
			wantClosed("AsyncEvent", func() error { _, err := n.ctx.AsyncEvent(c.ctx); return err })
		}
		if i%2 > 0 { // else Close comes at any moment
			Asleep(t, "verbs.(*CompChannel).Get", 2)
			Asleep(t, "verbs.(*CQ).Wait", 2)
			Asleep(t, "verbs.(*Context).AsyncEvent", 2)
		}
		if i%4 < 2 {
			require.NoError(t, ch.Close())
			require.NoError(t, cq.Close())
		}
		require.NoError(t, n.close())
		require.NoError(t, c.wait())
	}
}
