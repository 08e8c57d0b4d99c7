package verbstest

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testAllocs: posting and polling do not allocate, on either side.
func testAllocs(t *testing.T, s *suite) {
	need.NoRace(t, "it allocates")
	need.NoASan(t, "it allocates")
	places := need.InLong([]place{loopback}, everywhere) // where the engine of either side counts
	s.in(t, places, func(w *world) { w.run("posting and polling", allocations) })
}

func allocations(w *world) {
	runs := need.InLong(20, 200)
	t, s := w.t, w.suite
	near, far := w.pair(qpSpec{Inline: min(8, s.attr.MaxInlineData)}, usual)
	local, remote := w.alloc(w.near, 1<<16, verbs.AccessAll, own), w.alloc(w.far, 1<<16, verbs.AccessAll, own)
	qp, cq := near.qp(), near.cq(sends)
	wcs := make([]verbs.WC, 4)

	// once posts wrs and polls n completions. It calls require only when
	// something is wrong: that allocates.
	once := func(qp *verbs.QP, cq *verbs.CQ, wrs []verbs.SendWR, n int) {
		if taken, err := qp.PostSend(wrs); taken != len(wrs) || err != nil {
			require.FailNow(t, "not posted", "%d of %d: %v", taken, len(wrs), err)
		}
		for n > 0 {
			got, err := cq.Poll(wcs)
			if err == nil {
				err = w.ctx.Err()
			}
			for i := range got {
				if e := wcs[i].Err(); e != nil {
					err = e
				}
			}
			if err != nil {
				require.NoError(t, err)
			}
			if n -= got; got == 0 {
				time.Sleep(10 * time.Microsecond) // to where the scheduler looks at sockets
			}
		}
	}
	var send []verbs.SendWR
	for _, n := range []int{8, 1 << 16} {
		send = append(send, onto(signalled(0, verbs.OpRDMAWrite, local.sge(0, n)), remote, 0),
			onto(signalled(0, verbs.OpRDMARead, local.sge(0, n)), remote, 0))
	}
	if s.attr.AtomicCap != verbs.AtomicNone {
		send = append(send, onto(signalled(0, verbs.OpAtomicFetchAndAdd, local.sge(0, 8)), remote, 0))
	}
	if s.attr.MaxInlineData >= 8 {
		wr := onto(signalled(0, verbs.OpRDMAWrite), remote, 0)
		wr.Flags |= verbs.SendInline
		wr.Inline = make([]byte, 8)
		send = append(send, wr)
	}
	for _, wr := range send {
		batch := []verbs.SendWR{wr, wr}
		got := allocsPerRun(runs, func() { once(qp, cq, batch, 2) })
		require.Zero(t, got, "allocations of %v of %d bytes", wr.Opcode, wr.SGList)
	}
	got := allocsPerRun(runs, func() {
		if n, err := cq.Poll(wcs); n != 0 || err != nil {
			require.FailNow(t, "not empty", "%d completions: %v", n, err)
		}
	})
	require.Zero(t, got, "allocations of an empty poll")

	// Sending, and receiving, when the far end is here too.
	if w.far.node == nil {
		return
	}
	recv := []verbs.RecvWR{receive(1, remote.sge(0, 64))}
	batch := []verbs.SendWR{signalled(1, verbs.OpSend, local.sge(0, 64))}
	farQP, farCQ := far.qp(), far.cq(recvs)
	got = allocsPerRun(runs, func() {
		if n, err := farQP.PostRecv(recv); n != 1 || err != nil {
			require.FailNow(t, "not posted", "%v", err)
		}
		once(qp, cq, batch, 1)
		once(farQP, farCQ, nil, 1)
	})
	require.Zero(t, got, "allocations of sending and receiving")
}

// allocsPerRun is testing.AllocsPerRun, but leaves GOMAXPROCS as it is: on one CPU, the other side of a
// connection that the test polls for would run only when the scheduler's monitor looks, every 10 ms.
// Allocations of the device's engines count, as they should. Occasional ones of the rest of the process
// do not: the lowest of several series counts.
func allocsPerRun(runs int, f func()) uint64 {
	f()
	var before, after runtime.MemStats
	got := ^uint64(0)
	for range 5 {
		runtime.ReadMemStats(&before)
		for range runs {
			f()
		}
		runtime.ReadMemStats(&after)
		if got = min(got, (after.Mallocs-before.Mallocs)/uint64(runs)); got == 0 {
			break
		}
	}
	return got
}
