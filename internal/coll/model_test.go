package coll_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// counted runs the group once and returns what has really gone over the network.
func counted(t *testing.T, g *group, mode colltest.Mode) coll.Model {
	combined := int64(0)
	combine := g.Combiner()
	g.Combine = func(dst, a, b []byte) {
		combined += int64(len(dst))
		combine(dst, a, b)
	}
	n := colltest.NewNetwork(g.Size, mode)
	members := g.members(t, n, nil)
	for rank, err := range n.Drive(runs(members), g.headers(7), nil) {
		require.NoError(t, err, "%v: member %d", g, rank)
	}
	g.Combine = nil
	c := n.Counts()
	return coll.Model{
		Messages: c.Messages, Bytes: c.Bytes - c.Messages*coll.HeaderSize, Most: c.Most, Depth: int(c.Depth), Combined: combined,
	}
}

// TestCost: the formulas say exactly what the real algorithms do.
func TestCost(t *testing.T) {
	t.Parallel()
	for _, size := range someSizes() {
		each(size, func(g *group) {
			want, err := coll.Cost(g.algorithm, g.shape(g.Root))
			if g.Between != nil {
				require.ErrorIs(t, err, coll.ErrShape)
				return
			}
			require.NoError(t, err)
			for i, mode := range modes {
				if size > 9 && i != size%len(modes) && !need.WantLong() {
					continue // it does the same as with less
				}
				require.Equal(t, want, counted(t, g, mode), "%v over %v", g, mode)
			}
		})
	}
}

// TestCostLarge: the same with 1024 members, and with other numbers of them that are
// no powers of two; where that is not long the results are compared too. What sends much
// among a thousand members is for long tests.
func TestCostLarge(t *testing.T) {
	need.Full(t)
	sizes := []int{64, 100, 1024}
	if need.WantLong() {
		sizes = []int{63, 64, 65, 100, 1000, 1024}
	}
	for _, size := range sizes {
		for kind := coll.Barrier; kind <= coll.Alltoall; kind++ {
			for _, algorithm := range coll.Algorithms(kind) {
				g := &group{Reference: colltest.Reference{Kind: kind, Size: size, Count: 1, Root: size / 3}, algorithm: algorithm, segment: elem}
				if !kind.Rooted() {
					g.Root = 0
				}
				switch kind {
				case coll.Broadcast, coll.Reduce, coll.Allreduce:
					g.Count = 20
				case coll.ReduceScatter:
					if algorithm == coll.Linear {
						g.Count = 0 // the others show that blocks arrive
					}
				}
				want, err := coll.Cost(algorithm, g.shape(g.Root))
				if err != nil {
					require.ErrorIs(t, err, coll.ErrAlgorithm)
					continue
				}
				much := want.Messages > 20_000 || want.Bytes > 5_000_000
				if size >= 1000 && much && !need.WantLong() {
					continue
				}
				if size == 1000 && want.Messages > 200_000 {
					continue // with 1024 members is enough of these
				}
				t.Run(fmt.Sprintf("%d/%v/%v", size, kind, algorithm), func(t *testing.T) {
					require.Equal(t, want, counted(t, g, colltest.Rendezvous), g)
					if want.Messages < 200_000 && kind != coll.Scan && kind != coll.Exscan {
						g.check(t, colltest.NewNetwork(size, colltest.Eager), nil, nil)
					}
				})
			}
		}
	}
}

// TestEstimate: times that can be worked out by hand.
func TestEstimate(t *testing.T) {
	t.Parallel()
	const (
		l = 1000 * time.Nanosecond
		o = 100 * time.Nanosecond
		g = 300 * time.Nanosecond
	)
	m := coll.LogGP{Latency: l, Overhead: o, Gap: g, PerByte: 1, Combine: 2, Copy: 3}
	bytes := func(n int) time.Duration { return time.Duration(n + coll.HeaderSize) }
	message := func(n int) time.Duration { return o + bytes(n) + l + o }
	for _, c := range []struct {
		name  string
		a     coll.Algorithm
		shape coll.Shape
		want  time.Duration
	}{
		{"no other member", coll.Linear, coll.Shape{Kind: coll.Reduce, Size: 1, Elem: 1, Count: 50}, 3 * 50},
		{"one message", coll.Linear, coll.Shape{Kind: coll.Broadcast, Size: 2, Elem: 1, Count: 50}, message(50)},
		{"and combined", coll.Linear, coll.Shape{Kind: coll.Reduce, Size: 2, Elem: 1, Count: 50}, message(50) + 2*50},
		// The sender's gap lies between messages, and so do long messages.
		{"three short ones", coll.Linear, coll.Shape{Kind: coll.Broadcast, Size: 4, Elem: 1, Count: 50}, 2*g + message(50)},
		{"three long ones", coll.Linear, coll.Shape{Kind: coll.Broadcast, Size: 4, Elem: 1, Count: 1000}, 2*(o+bytes(1000)) + message(1000)},
		// They reach the root at once, which takes them one after the other.
		{"three to the root", coll.Linear, coll.Shape{Kind: coll.Gather, Size: 4, Elem: 1, Count: 1000}, message(1000) + 2*bytes(1000) + 3*1000},
		{"a tree", coll.Binomial, coll.Shape{Kind: coll.Broadcast, Size: 4, Elem: 1, Count: 50}, 2 * message(50)},
		{"doubling", coll.RecursiveDoubling, coll.Shape{Kind: coll.Allreduce, Size: 8, Elem: 1, Count: 50}, 3 * (message(50) + 2*50)},
		{"signals", coll.Dissemination, coll.Shape{Kind: coll.Barrier, Size: 9}, 4 * message(0)},
		{"a ring", coll.Ring, coll.Shape{Kind: coll.Allreduce, Size: 5, Elem: 1, Count: 500}, 8*message(100) + 4*2*100},
	} {
		got, err := m.Estimate(c.a, &c.shape)
		require.NoError(t, err)
		require.Equal(t, c.want, got, c.name)
	}
}

// TestEstimateAll: every algorithm has a time, of at least its depth.
func TestEstimateAll(t *testing.T) {
	t.Parallel()
	m := coll.LogGP{Latency: 1000, Overhead: 100, Gap: 300, PerByte: 0.1}
	sizes := []int{2, 7, 16}
	if need.WantLong() {
		sizes = append(sizes, 70)
	}
	for _, size := range sizes {
		each(size, func(g *group) {
			got, err := m.Estimate(g.algorithm, g.shape(g.Root))
			if g.Between != nil {
				require.ErrorIs(t, err, coll.ErrShape)
				return
			}
			require.NoError(t, err)
			c, err := coll.Cost(g.algorithm, g.shape(g.Root))
			require.NoError(t, err)
			least := time.Duration(c.Depth) * (m.Latency + 2*m.Overhead)
			if g.algorithm == coll.Linear && (g.Kind == coll.Allgather || g.Kind == coll.Alltoall) {
				least = m.Latency // its rounds only follow one another
			}
			require.GreaterOrEqual(t, got, least, g)
		})
	}
	_, err := coll.LogGP{Latency: -1}.Estimate(coll.Linear, &coll.Shape{Kind: coll.Barrier, Size: 2})
	require.ErrorIs(t, err, coll.ErrShape)
	_, err = m.Estimate(coll.Auto, &coll.Shape{Kind: coll.Barrier, Size: 2})
	require.ErrorIs(t, err, coll.ErrAlgorithm)
	_, err = m.Estimate(coll.Linear, &coll.Shape{Kind: coll.Barrier})
	require.ErrorIs(t, err, coll.ErrShape)
}

func BenchmarkEstimate(b *testing.B) {
	m := coll.LogGP{Latency: 1000, Overhead: 100, Gap: 300, PerByte: 0.1}
	for _, algorithm := range coll.Algorithms(coll.Allreduce) {
		b.Run(fmt.Sprintf("allreduce/%v/1024", algorithm), func(b *testing.B) {
			for b.Loop() {
				if _, err := m.Estimate(algorithm, &coll.Shape{Kind: coll.Allreduce, Size: 1024, Elem: 8, Count: 1 << 17}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, algorithm := range coll.Algorithms(coll.Allreduce) {
		b.Run(fmt.Sprintf("allreduce/%v/1024", algorithm), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := coll.Build(algorithm, &coll.Shape{Kind: coll.Allreduce, Size: 1024, Elem: 8, Count: 1 << 17}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
