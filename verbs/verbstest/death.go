package verbstest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testDeath is about a peer that is gone: killed at any moment, or ended. The
// survivor's work on it completes with errors, all of it, once, within
// Config.PeerTimeout; its other connections go on.
func testDeath(t *testing.T, s *suite) {
	s.in(t, []place{processes}, func(w *world) {
		for _, scene := range []struct {
			name string
			need func(testing.TB)
			test func(v *victim, rng func(int) int)
		}{
			{"connected and idle", need.Full, func(*victim, func(int) int) {}},
			{"while a send waits for its receive", need.Full, func(v *victim, _ func(int) int) { v.stall() }},
			{"while it writes, reads and sends", need.Long, func(v *victim, rng func(int) int) {
				v.flood()
				v.take(rng(100))
			}},
			{"while it is written and read", need.Long, func(v *victim, rng func(int) int) { v.use(rng(100)) }},
			// Something of all others.
			{"under traffic both ways", func(testing.TB) {}, func(v *victim, rng func(int) int) {
				v.flood()
				v.use(rng(100))
			}},
		} {
			w.run("killed "+scene.name, func(w *world) {
				scene.need(w.t)
				rng := seeded(w.suite.Seed, w.t.Name())
				for range max(1, w.suite.Rounds/5) {
					v := w.victim(usual)
					v.greet()
					scene.test(v, rng.IntN)
					v.p.child.kill()
					v.mourn(w)
				}
			})
		}
		if canPause {
			w.run("stopped, then killed", func(w *world) {
				need.Full(w.t)
				v := w.victim(usual)
				v.flood()
				v.use(20)
				require.NoError(w.t, pause(v.p.child.cmd.Process))
				v.fill()
				v.p.child.kill()
				v.mourn(w)
			})
		}
		w.run("killed while it connects", func(w *world) {
			need.Full(w.t)
			v := w.victim(impatient) // not to wait long for a peer that is not there yet
			v.p.child.kill()
			v.mourn(w)
		})
		w.run("ends", func(w *world) {
			v := w.victim(usual)
			v.use(20)
			v.stall()
			require.NoError(w.t, v.p.child.close(w.ctx))
			v.mourn(w)
		})
		w.run("killed before it connects", deadBeforeConnect)
		w.run("survivors go on with each other", bothSurvive)
	})
}

// victim is a peer that is going to die, and two connections to it: the survivor is the requester
// on one, the victim on the other.
type victim struct {
	w                *world
	p                *peer
	out              *end
	in, inFar        *end
	local, remote    *mem // for out
	target, source   *mem // for in: what the victim writes, and what it has
	id               uint64
	posted, finished uint64 // on out
}

// half is the length of the source of writes, and of the destination of reads: each is half of a
// region.
const half = 1 << 17

// victim starts one. Its connections are not necessarily established yet.
func (w *world) victim(conn connSpec) *victim {
	v := &victim{w: w, p: w.another("victim")}
	pair := func() (near, far *end) {
		near, far = w.open(w.near, qpSpec{}), w.open(v.p, qpSpec{})
		near.connect(far, conn)
		far.connect(near, conn)
		return near, far
	}
	v.out, _ = pair()
	v.in, v.inFar = pair()
	v.local, v.remote = w.alloc(w.near, 2*half, verbs.AccessAll, own), w.alloc(v.p, half, verbs.AccessAll, heap)
	v.target, v.source = w.alloc(w.near, half, verbs.AccessAll, heap), w.alloc(v.p, 2*half, verbs.AccessAll, own)
	for id := range uint64(8) {
		v.in.recv(receive(id, v.target.sge(0, 1000)))
	}
	return v
}

// greet makes sure that the connections are established.
func (v *victim) greet() {
	v.w.t.Helper()
	for _, e := range []*end{v.out, v.inFar} {
		e.post(signalled(0, verbs.OpRDMAWrite))
		e.want(sends, sent(0, verbs.OpRDMAWrite))
	}
}

// post posts one operation on out, and says whether there was room.
func (v *victim) post(op verbs.Opcode, n int) bool {
	v.w.t.Helper()
	from := 0
	if op == verbs.OpRDMARead {
		from = half
	}
	k, err := v.out.tryPost(onto(signalled(v.id, op, v.local.sge(from, n)), v.remote, 0))
	require.NoError(v.w.t, err)
	if k == 1 {
		v.id++
		v.posted++
	}
	return k == 1
}

// use writes and reads until count operations are complete, and leaves more
// outstanding.
func (v *victim) use(count int) {
	v.w.t.Helper()
	for range count {
		for v.post([]verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead}[v.id%2], []int{8, half, 0, 5000}[v.id/2%4]) {
		}
		require.NoError(v.w.t, v.out.take(sends, 1)[0].Err())
		v.finished++
	}
	v.fill()
}

// fill posts on out until there is no room.
func (v *victim) fill() {
	v.w.t.Helper()
	for v.post(verbs.OpRDMAWrite, half) {
	}
}

// stall posts a send that the victim has no receive for, and more behind it.
func (v *victim) stall() {
	v.w.t.Helper()
	v.post(verbs.OpSend, 100)
	v.post(verbs.OpRDMAWrite, 100)
	v.post(verbs.OpRDMARead, 100)
}

// flood makes the victim write, read and send until it dies.
func (v *victim) flood() {
	v.p.begin(v.w.ctx, floodCmd{ID: v.inFar.ID, Local: v.source.sge(0, half), Remote: v.target.Addr, RKey: v.target.RKey})
}

// take waits until count of the flood's sends have come, of the 8 that there are
// receives for; then it posts receives again.
func (v *victim) take(count int) {
	v.w.t.Helper()
	for range count {
		wc := v.in.take(recvs, 1)[0]
		require.NoError(v.w.t, wc.Err())
		v.in.recv(receive(wc.WRID, v.target.sge(0, 1000)))
	}
}

// floodCmd writes and sends from Local, and reads to what lies behind it, until
// that fails or time is up.
type floodCmd struct {
	ID     int
	Local  verbs.SGE
	Remote uint64
	RKey   uint32
}

func (c floodCmd) run(ctx context.Context, n *node) (any, error) {
	o := n.objs[c.ID]
	for i := 0; ; i++ {
		sge, op := c.Local, []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpSend, verbs.OpRDMARead}[i%3]
		sge.Length = []uint32{1000, 8, half, 0}[i/3%4]
		switch op {
		case verbs.OpRDMARead:
			sge.Addr += half
		case verbs.OpSend:
			sge.Length = min(sge.Length, 1000)
		}
		wr := signalled(uint64(i), op, sge)
		wr.RemoteAddr, wr.RKey = c.Remote, c.RKey
		if err := postAll(o.qp, wr); err != nil {
			return nil, err
		}
		if i >= 4 { // so many are outstanding
			if _, err := awaitSuccess(ctx, o.send, 1); err != nil {
				return nil, err
			}
		}
	}
}

// mourn checks the survivor's state.
func (v *victim) mourn(w *world) {
	t := w.t
	t.Helper()
	start := time.Now()
	limit := w.suite.peerTimeout() + bound/2
	ctx, cancel := context.WithTimeout(w.ctx, limit)
	defer cancel()

	outstanding := int(v.posted - v.finished)
	wcs, err := await(ctx, v.out.cq(sends), outstanding)
	require.NoError(t, err, "work on the dead peer, %v after its death", time.Since(start))
	if outstanding == 0 || wcs[outstanding-1].Status == verbs.WCSuccess {
		// An idle connection notices at the latest when it is used.
		require.True(t, v.post(verbs.OpRDMAWrite, 8))
		wc, err := await(ctx, v.out.cq(sends), 1)
		require.NoError(t, err, "write to the dead peer")
		wcs = append(wcs, wc...)
	}
	wantDeath(t, wcs, func(i int) uint64 { return v.finished + uint64(i) })

	// The other connection may notice only now that it is used.
	ctx, cancel = context.WithTimeout(w.ctx, limit)
	defer cancel()
	n, err := v.in.tryPost(signalled(1000, verbs.OpSend))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	wcs, err = await(ctx, v.in.cq(sends), 1)
	require.NoError(t, err, "the send to the dead peer")
	wantDeath(t, wcs, func(int) uint64 { return 1000 })
	// The 8 receives are there again, each once: messages that came, then flushes.
	wcs, err = await(ctx, v.in.cq(recvs), 8)
	require.NoError(t, err, "receives from the dead peer")
	seen, flushed := map[uint64]bool{}, false
	for _, wc := range wcs {
		require.False(t, seen[wc.WRID], "receive %d completes twice", wc.WRID)
		seen[wc.WRID] = true
		if wc.Status != verbs.WCSuccess {
			flushed = true
		}
		require.Equal(t, flushed, wc.Status == verbs.WCWRFlushErr, "receive %d: %v", wc.WRID, wc.Status)
	}
	for _, e := range []*end{v.out, v.in} {
		e.wantState(verbs.QPErr)
		e.quiet(sends)
		e.quiet(recvs)
	}

	// Other connections still work: those of the far end, and our own.
	src, dst := w.alloc(w.near, 10_000, verbs.AccessAll, own).fill(v.id), w.alloc(w.far, 10_000, verbs.AccessAll, heap)
	near, far := w.pair(qpSpec{}, usual)
	for i, op := range moves {
		if op != verbs.OpRDMARead {
			move(near, far, op, uint64(i), []piece{{src, 0, 10_000}}, []piece{{dst, 0, 10_000}})
		}
	}
	for _, m := range []*mem{v.local, v.target} {
		m.close()
	}
	for _, e := range []*end{v.out, v.in} {
		do(w, e.p, closeCmd{e.ID})
	}
}

// wantDeath requires that completions come in order: successes, then one that says that the peer
// does not answer, then flushes.
func wantDeath(t *testing.T, wcs []verbs.WC, id func(i int) uint64) {
	t.Helper()
	dead := false
	for i, wc := range wcs {
		require.Equal(t, id(i), wc.WRID, "completions in order, each once")
		switch {
		case dead:
			require.Equal(t, verbs.WCWRFlushErr, wc.Status, "work request %d", wc.WRID)
		case wc.Status != verbs.WCSuccess:
			dead = true
			require.Contains(t, []verbs.WCStatus{verbs.WCRetryExcErr, verbs.WCWRFlushErr}, wc.Status, "work request %d", wc.WRID)
		}
	}
	require.True(t, dead, "the last operation cannot have succeeded: %v", wcs)
}

// deadBeforeConnect: only the endpoint of the peer is left.
func deadBeforeConnect(w *world) {
	need.Full(w.t)
	p := w.another("victim")
	far := w.open(p, qpSpec{})
	p.child.kill()
	near := w.open(w.near, qpSpec{})
	near.connect(far, impatient)
	near.recv(receive(1))
	near.post(signalled(1, verbs.OpSend), signalled(2, verbs.OpSend))
	wcs := near.take(sends, 2)
	wantDeath(w.t, wcs, func(i int) uint64 { return uint64(i + 1) })
	near.want(recvs, failedRecv(1, verbs.WCWRFlushErr))
	near.wantState(verbs.QPErr)
}

// bothSurvive: of three processes that work on each other one dies; the other two go on, including
// their outstanding operations.
func bothSurvive(w *world) {
	v := w.victim(usual)
	v.greet() // or each of its connections would be tried for long
	const n = 1 << 18
	near, far := w.pair(qpSpec{}, usual)
	src, dst := w.alloc(w.near, n, 0, own).fill(1), w.alloc(w.far, n, verbs.AccessAll, heap)
	farToVictim, victimToFar := w.open(w.far, qpSpec{}), w.open(v.p, qpSpec{})
	farToVictim.connect(victimToFar, impatient)
	victimToFar.connect(farToVictim, impatient)
	far.recv(receive(1))
	for id := range uint64(8) {
		near.post(onto(signalled(id, verbs.OpRDMAWrite, src.sge(0, n)), dst, 0))
	}
	near.post(signalled(8, verbs.OpSend))
	v.p.child.kill()
	farToVictim.post(signalled(1, verbs.OpSend))
	wcs := farToVictim.take(sends, 1)
	wantDeath(w.t, wcs, func(int) uint64 { return 1 })
	for i, wc := range near.take(sends, 9) {
		require.NoError(w.t, wc.Err(), fmt.Sprintf("work request %d between survivors", i))
	}
	far.want(recvs, received(1, 0))
	dst.expect(0, src.image)
	dst.verify("written while the other peer died")
	v.mourn(w)
}
