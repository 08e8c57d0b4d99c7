package coll_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
)

// TestChosen: whatever the settings and the shape, all members choose the same
// algorithm, though each sees only what it knows, and it does what it should.
func TestChosen(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	chosen := map[coll.Kind]map[coll.Algorithm]bool{}
	rounds := 3000
	if testing.Short() {
		rounds = 1000
	}
	for range rounds {
		settings := coll.DeriveSettings(random.IntN(300), random.IntN(6))
		settings.Segment = 1 + random.IntN(100)
		settings.Pipeline = random.IntN(2000)
		settings.RingBlock = random.IntN(2000)
		g := &group{segment: settings.Segment}
		g.Kind, g.Size, g.Count, g.InPlace = coll.Kind(random.IntN(int(coll.Alltoall)+1)), 1+random.IntN(12), random.IntN(60), random.IntN(2) == 0
		g.Root = random.IntN(g.Size)
		if !g.Kind.Rooted() {
			g.Root = 0
		}
		g.Ordered = g.Kind.Reduces() && random.IntN(2) == 0
		switch {
		case random.IntN(2) == 0:
		case g.Kind == coll.Alltoall:
			g.Between = func(from, to int) int { return (from*5 + to*3) % 7 }
		case g.Kind == coll.ReduceScatter, g.Kind == coll.Gather, g.Kind == coll.Scatter, g.Kind == coll.Allgather:
			g.agreed = random.IntN(2) == 0
			g.Counts = make([]int, g.Size)
			for i := range g.Counts {
				g.Counts[i] = max(random.IntN(40)-10, 0)
			}
		}
		for rank := range g.Size {
			a := settings.Choose(g.shape(rank))
			if rank == 0 {
				g.algorithm = a
			}
			require.Equal(t, g.algorithm, a, "%v: member %d", g, rank)
		}
		g.check(t, colltest.NewNetwork(g.Size, modes[random.IntN(2)]), nil, random)
		if chosen[g.Kind] == nil {
			chosen[g.Kind] = map[coll.Algorithm]bool{}
		}
		chosen[g.Kind][g.algorithm] = true
	}
	for kind := coll.Barrier; kind <= coll.Alltoall; kind++ {
		for _, a := range coll.Algorithms(kind) {
			if (kind != coll.Barrier && kind != coll.Allreduce) || a != coll.Binomial { // these have better ones
				require.True(t, chosen[kind][a], "%v by %v is never chosen", kind, a)
			}
		}
	}
}

// TestTwoLevels: a reduction inside each host, among the masters, and back, with any
// placement of members and any root, is that of all members.
func TestTwoLevels(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		hosts := make([]int, 1+random.IntN(20))
		for i := range hosts {
			hosts[i] = random.IntN(6)
			if i%2 == 0 { // consecutive now and then
				hosts[i] = hosts[max(i-1, 0)]
			}
		}
		p, err := coll.NewPlacement(hosts)
		require.NoError(t, err)
		whole := &group{Reference: colltest.Reference{Kind: coll.Reduce, Size: len(hosts), Root: random.IntN(len(hosts)), Count: 9, Ordered: p.Contiguous()}}
		among := &group{Reference: colltest.Reference{Kind: coll.Reduce, Size: p.Hosts(), Root: p.Host(whole.Root), Count: 9, Ordered: whole.Ordered}, algorithm: coll.Binomial}
		n := colltest.NewNetwork(among.Size, colltest.Rendezvous)
		masters := among.members(t, n, nil)
		for h, m := range masters {
			for i, member := range p.Members(h) {
				if i == 0 {
					copy(m.in, whole.Given(member))
				} else {
					whole.Combiner()(m.in, m.in, whole.Given(member))
				}
			}
		}
		for _, err := range n.Drive(runs(masters), among.headers(1), nil) {
			require.NoError(t, err)
		}
		require.Equal(t, whole.Root, p.Masters(whole.Root)[among.Root])
		require.Equal(t, whole.Wanted()[whole.Root], masters[among.Root].out)
	}
}
