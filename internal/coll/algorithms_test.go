package coll_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// variants are the collectives of one kind and size: counts around boundaries,
// roots, counts by member with zeros among them, ordered.
func variants(kind coll.Kind, algorithm coll.Algorithm, size int) []*group {
	var all []*group
	counts := []int{0, 1, size - 1, size, size + 1, 3*size + 2}
	if kind == coll.Barrier {
		counts = []int{0}
	}
	roots := []int{0}
	if kind.Rooted() {
		roots = []int{0, size / 2, size - 1}
	}
	uneven := make([]int, size)
	for i := range uneven {
		uneven[i] = (i*7 + 3) % 5 * ((i + 1) % 3)
	}
	for _, ordered := range []bool{false, true} {
		if ordered && !kind.Reduces() {
			continue
		}
		for i, root := range roots {
			if i > 0 && root == roots[i-1] {
				continue
			}
			add := func(g group) {
				g.Kind, g.algorithm, g.Size, g.Root, g.Ordered, g.segment = kind, algorithm, size, root, ordered, 3*elem
				all = append(all, &g)
			}
			for j, count := range counts {
				if j == 0 || count > counts[j-1] {
					add(group{Reference: colltest.Reference{Count: count}})
				}
			}
			switch kind {
			case coll.ReduceScatter, coll.Allgather:
				add(group{Reference: colltest.Reference{Counts: uneven}})
			case coll.Gather, coll.Scatter:
				add(group{Reference: colltest.Reference{Counts: uneven}})
				add(group{Reference: colltest.Reference{Counts: uneven}, agreed: true})
			case coll.Alltoall:
				add(group{Reference: colltest.Reference{Between: func(from, to int) int { return (from*3 + to*5) % 4 }}})
			}
		}
	}
	return all
}

// each calls f for every kind, algorithm and shape of the size that Build allows.
func each(size int, f func(g *group)) {
	for kind := coll.Barrier; kind <= coll.Alltoall; kind++ {
		for _, algorithm := range coll.Algorithms(kind) {
			for _, g := range variants(kind, algorithm, size) {
				if _, err := coll.Build(algorithm, g.shape(g.Root)); err == nil {
					f(g)
				}
			}
		}
	}
}

// someSizes are sizes of groups up to 17: powers of two, their neighbours, and others.
func someSizes() []int {
	switch {
	case testing.Short():
		return []int{1, 2, 3, 4, 5, 6, 8, 11}
	case need.WantLong():
		return []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}
	}
	return []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17}
}

// TestAlgorithms: every algorithm gives what the serial reference gives, whenever a
// send is over, in place and not, and whatever the order in which members go on.
func TestAlgorithms(t *testing.T) {
	t.Parallel()
	sizes := someSizes()
	if need.WantLong() {
		sizes = append(sizes, 32, 33, 64)
	}
	for _, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(1, uint64(size)))
			each(size, func(g *group) {
				schedules := g.schedules(t)
				for i, mode := range []colltest.Mode{colltest.Eager, colltest.Rendezvous} {
					for _, inPlace := range []bool{false, true} {
						g.InPlace = inPlace
						order := random
						if inPlace == (i == 0) {
							order = nil
						}
						g.check(t, colltest.NewNetwork(size, mode), schedules, order)
					}
				}
			})
		})
	}
}

// TestSchedules: what the k-th send to a member carries is what its k-th receive
// expects; rounds are bounded; references lie in their buffers; no member sends to
// itself, or receives into In; a combination is in place or disjoint.
func TestSchedules(t *testing.T) {
	t.Parallel()
	sizes := []int{1, 2, 3, 4, 5, 7, 8, 9, 16, 17}
	if need.WantLong() {
		sizes = append(sizes, 33, 70)
	}
	for _, size := range sizes {
		each(size, func(g *group) {
			if size > 17 && g.Count > size {
				return
			}
			sent, received := map[[2]int][]int{}, map[[2]int][]int{}
			for rank, s := range g.schedules(t) {
				in, out := g.Lengths(rank)
				limit := [...]int{coll.In: in * elem, coll.Out: out * elem, coll.Tmp: s.Tmp}
				for i, round := range s.Rounds {
					messages := 0
					for _, step := range round {
						switch step.Kind {
						case coll.Send:
							sent[[2]int{rank, step.Peer}] = append(sent[[2]int{rank, step.Peer}], step.A.Len)
							messages++
						case coll.Receive:
							received[[2]int{step.Peer, rank}] = append(received[[2]int{step.Peer, rank}], step.Dst.Len)
							messages++
						}
						if wrong := wrongStep(step, limit); wrong != "" {
							t.Fatalf("%v: member %d, round %d: %+v: %s", g, rank, i, step, wrong)
						}
						if step.Kind <= coll.Receive && step.Peer == rank {
							t.Fatalf("%v: member %d: message to itself", g, rank)
						}
					}
					if len(round) == 0 || messages > coll.MaxRound {
						t.Fatalf("%v: member %d, round %d: %d messages", g, rank, i, messages)
					}
				}
			}
			require.Equal(t, sent, received, g)
		})
	}
}

// wrongStep says what is wrong with a step among buffers of the given lengths.
func wrongStep(step coll.Step, limit [3]int) string {
	for _, r := range []coll.Ref{step.A, step.B, step.Dst} {
		if r.Len < 0 || r.Len > 0 && (r.Off < 0 || r.Off+r.Len > limit[r.Buf]) {
			return fmt.Sprintf("outside of %v", limit)
		}
	}
	switch {
	case step.Kind == coll.Send:
	case step.Dst.Buf == coll.In && step.Dst.Len > 0:
		return "writes In"
	case step.Kind == coll.Copy && step.A.Len != step.Dst.Len,
		step.Kind == coll.Combine && (step.A.Len != step.Dst.Len || step.B.Len != step.Dst.Len):
		return "lengths"
	}
	if step.Kind != coll.Combine {
		return ""
	}
	for _, r := range []coll.Ref{step.A, step.B} {
		if r != step.Dst && r.Buf == step.Dst.Buf && r.Off < step.Dst.Off+step.Dst.Len && step.Dst.Off < r.Off+r.Len {
			return "overlaps"
		}
	}
	return ""
}
