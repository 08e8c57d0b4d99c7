//go:build cgo

package ibv_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// Posting and polling do not allocate.
func testAllocs(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	srq, err := n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 256, MaxSGE: 1})
	require.NoError(t, err)
	a, b := n.pair(verbs.QPInitAttr{})
	c, d := n.pair(verbs.QPInitAttr{SRQ: srq})
	const depth = 100
	recvs := series(depth, 1, func(id uint64) verbs.RecvWR { return verbs.RecvWR{WRID: id, SGList: n.sge(4096, 64)} })
	send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGList: n.sge(0, 8)}
	inline := verbs.SendWR{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled | verbs.SendInline, Inline: make([]byte, 16)}
	wcs := make([]verbs.WC, depth)
	take := func(e end, want int) {
		for got := 0; got < want; {
			k, err := e.cq.Poll(wcs)
			if k == 0 || err != nil || wcs[0].Status != verbs.WCSuccess {
				t.Fatal(k, err, wcs[0])
			}
			got += k
		}
		if k, err := e.cq.Poll(wcs); k != 0 || err != nil {
			t.Fatal(k, err)
		}
	}
	for name, one := range map[string]verbs.SendWR{"send": send, "inline": inline, "write": n.write(1)} {
		wrs := series(depth, 0, func(uint64) verbs.SendWR { return one })
		got := testing.AllocsPerRun(100, func() {
			want := 0
			if name != "write" {
				want = depth
			}
			for _, e := range [][2]end{{a, b}, {c, d}} {
				post := b.qp.PostRecv
				if e[0].qp == c.qp {
					post = srq.PostRecv
				}
				if k, err := post(recvs[:want]); k != want || err != nil {
					t.Fatal(k, err)
				}
				if k, err := e[0].qp.PostSend(wrs); k != depth || err != nil {
					t.Fatal(k, err)
				}
				take(e[0], depth)
				take(e[1], want)
			}
		})
		require.Zero(t, got, name)
	}
}

// A batch takes one call into C.
func testCrossings(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, b := n.pair(verbs.QPInitAttr{})
	const depth, rounds = 64, 100
	wrs, wcs := series(depth, 1, n.write), make([]verbs.WC, depth)
	recvs := make([]verbs.RecvWR, depth)
	sends := series(depth, 1, func(uint64) verbs.SendWR { return verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled} })
	count := func(f func()) float64 {
		before := runtime.NumCgoCall()
		for range rounds {
			f()
		}
		return float64(runtime.NumCgoCall()-before) / (depth * rounds)
	}
	take := func(e end) {
		k, err := e.cq.Poll(wcs)
		require.NoError(t, err)
		require.Equal(t, depth, k)
	}
	writes := count(func() { a.post(wrs...); take(a) })
	both := count(func() { b.recv(recvs...); a.post(sends...); take(a); take(b) })
	t.Logf("crossings for each message at depth %d: %.4f write, %.4f send and receive", depth, writes, both)
	require.LessOrEqual(t, writes, 1.0/16)
	require.LessOrEqual(t, both, 1.0/8)
}
