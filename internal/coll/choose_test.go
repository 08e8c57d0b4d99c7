package coll

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChoose: the choices around the crossovers, by the defaults.
func TestChoose(t *testing.T) {
	t.Parallel()
	s := DefaultSettings()
	for _, c := range []struct {
		shape Shape
		want  Algorithm
	}{
		{Shape{Kind: Barrier, Size: 4}, Linear},
		{Shape{Kind: Barrier, Size: 5}, Dissemination},
		{Shape{Kind: Broadcast, Size: 4, Count: 1023}, Linear},
		{Shape{Kind: Broadcast, Size: 5, Count: 1023}, Binomial},
		{Shape{Kind: Broadcast, Size: 5, Count: 1024}, Binomial},
		{Shape{Kind: Broadcast, Size: 4, Count: 1024}, ScatterAllgather},
		{Shape{Kind: Broadcast, Size: 4, Count: 2 << 20}, Pipeline},
		{Shape{Kind: Broadcast, Size: 2, Count: 256 << 10}, Linear},
		{Shape{Kind: Broadcast, Size: 100, Count: 256 << 10}, ScatterAllgather},
		{Shape{Kind: Reduce, Size: 4, Count: 1023}, Linear},
		{Shape{Kind: Reduce, Size: 5, Count: 1023}, Binomial},
		{Shape{Kind: Reduce, Size: 4, Count: 1024}, Rabenseifner},
		{Shape{Kind: Reduce, Size: 4, Count: 1024, Ordered: true}, Binomial},
		{Shape{Kind: Reduce, Size: 4, Count: 2 << 20, Ordered: true}, Pipeline},
		{Shape{Kind: Allreduce, Size: 4, Count: 1023}, Linear},
		{Shape{Kind: Allreduce, Size: 5, Count: 1023}, RecursiveDoubling},
		{Shape{Kind: Allreduce, Size: 16, Count: 1024}, Rabenseifner},
		{Shape{Kind: Allreduce, Size: 17, Count: 1024}, RecursiveDoubling},
		{Shape{Kind: Allreduce, Size: 4, Count: 1024, Ordered: true}, RecursiveDoubling},
		{Shape{Kind: Allreduce, Size: 16, Count: 16 * 262144}, Ring},
		{Shape{Kind: Allreduce, Size: 16, Count: 2 << 20, Ordered: true}, Pipeline},
		{Shape{Kind: ReduceScatter, Size: 4, Count: 255}, Linear},
		{Shape{Kind: ReduceScatter, Size: 4, Count: 256}, RecursiveHalving},
		{Shape{Kind: ReduceScatter, Size: 5, Count: 1}, RecursiveHalving},
		{Shape{Kind: ReduceScatter, Size: 5, Count: 1, Ordered: true}, Pairwise},
		{Shape{Kind: ReduceScatter, Size: 5, Count: 262144}, Ring},
		{Shape{Kind: Scan, Size: 4, Count: 10}, Linear},
		{Shape{Kind: Exscan, Size: 5, Count: 10}, RecursiveDoubling},
		{Shape{Kind: Scan, Size: 5, Count: 2 << 20}, Pipeline},
		{Shape{Kind: Gather, Size: 4, Count: 10}, Linear},
		{Shape{Kind: Gather, Size: 5, Count: 1023}, Binomial},
		{Shape{Kind: Gather, Size: 5, Count: 1024}, Linear},
		{Shape{Kind: Scatter, Size: 5, Counts: make([]int, 5)}, Linear},
		{Shape{Kind: Scatter, Size: 5, Counts: make([]int, 5), Agreed: true}, Binomial},
		{Shape{Kind: Allgather, Size: 4, Count: 1}, Linear},
		{Shape{Kind: Allgather, Size: 8, Count: 1}, RecursiveDoubling},
		{Shape{Kind: Allgather, Size: 9, Counts: make([]int, 9)}, Bruck},
		{Shape{Kind: Allgather, Size: 9, Count: 262144}, Ring},
		{Shape{Kind: Alltoall, Size: 4, Count: 1}, Linear},
		{Shape{Kind: Alltoall, Size: 5, Count: 255}, Bruck},
		{Shape{Kind: Alltoall, Size: 5, Count: 256}, Linear},
		{Shape{Kind: Alltoall, Size: 5, Count: 32 << 10}, Pairwise},
		{Shape{Kind: Alltoall, Size: 5, SendCounts: make([]int, 5), RecvCounts: make([]int, 5)}, Pairwise},
	} {
		c.shape.Elem = 1
		require.NoError(t, c.shape.Check())
		require.Equal(t, c.want, s.Choose(&c.shape), "%+v", c.shape)
	}
}

// TestChoosePossible: what is chosen can be built, whatever is forced; what is forced
// is chosen where it can be built; and all members choose the same.
func TestChoosePossible(t *testing.T) {
	t.Parallel()
	for k := range Kind(kinds) {
		for _, force := range append([]Algorithm{Auto}, algorithmsOf[k]...) {
			s := DefaultSettings()
			s.Force[k] = force
			for _, size := range []int{1, 2, 3, 4, 5, 8, 9} {
				for _, count := range []int{0, 1, 100, 1000, 10_000, 1_000_000} {
					for _, ordered := range []bool{false, true} {
						shape := Shape{Kind: k, Size: size, Elem: 4, Count: count, Ordered: ordered}
						name := fmt.Sprintf("%+v, force %v", shape, force)
						a := s.Choose(&shape)
						require.NoError(t, a.allowed(&shape), name)
						if force != Auto && force.allowed(&shape) == nil {
							require.Equal(t, force, a, name)
						}
						shape.Rank = size - 1
						require.Equal(t, a, s.Choose(&shape), name)
					}
				}
			}
		}
	}
}

// TestBadShapes: what no collective can be is an error, and so is an algorithm that
// the shape does not allow.
func TestBadShapes(t *testing.T) {
	t.Parallel()
	good := Shape{Kind: Allgather, Size: 3, Elem: 1, Count: 1}
	_, err := Build(Ring, &good)
	require.NoError(t, err)
	for says, change := range map[string]func(*Shape){
		"no such kind":                          func(s *Shape) { s.Kind = 200 },
		"member 3 of 3":                         func(s *Shape) { s.Rank = 3 },
		"member 0 of 0":                         func(s *Shape) { s.Size = 0 },
		"root -1 of 3":                          func(s *Shape) { s.Kind, s.Root = Gather, -1 },
		"segments of -1":                        func(s *Shape) { s.Segment = -1 },
		"elements of 0":                         func(s *Shape) { s.Elem = 0 },
		"-1 elements":                           func(s *Shape) { s.Count = -1 },
		"-2 elements":                           func(s *Shape) { s.Counts = []int{1, -2, 3} },
		"2 counts for 3":                        func(s *Shape) { s.Counts = []int{1, 2} },
		"bcast: counts by member":               func(s *Shape) { s.Kind, s.Counts = Broadcast, []int{1, 2, 3} },
		"counts to send":                        func(s *Shape) { s.SendCounts = []int{1, 2, 3} },
		"counts of one":                         func(s *Shape) { s.Kind, s.SendCounts = Alltoall, []int{1, 2, 3} },
		"1 elements to itself and 2 from":       func(s *Shape) { s.Kind, s.SendCounts, s.RecvCounts = Alltoall, []int{1, 2, 3}, []int{2, 2, 3} },
		"allgather: more bytes than fit into m": func(s *Shape) { s.Count = 1 << 62 },
		"more bytes than fit":                   func(s *Shape) { s.Counts = []int{1 << 61, 1 << 61, 1 << 61} },
	} {
		s := good
		change(&s)
		_, err := Build(Ring, &s)
		require.ErrorIs(t, err, ErrShape)
		require.ErrorContains(t, err, says)
	}
	for says, c := range map[string]struct {
		a Algorithm
		s Shape
	}{
		"allgather by auto: not known":  {Auto, good},
		"not a power of two":            {RecursiveDoubling, good},
		"only the root knows":           {Binomial, Shape{Kind: Gather, Size: 2, Elem: 1, Counts: []int{1, 2}}},
		"alltoall by bruck: counts by":  {Bruck, Shape{Kind: Alltoall, Size: 1, Elem: 1, SendCounts: []int{1}, RecvCounts: []int{1}}},
		"does not keep the order":       {Ring, Shape{Kind: Allreduce, Size: 2, Elem: 1, Ordered: true}},
		"barrier by pipeline: not know": {Pipeline, Shape{Kind: Barrier, Size: 2}},
	} {
		_, err := Build(c.a, &c.s)
		require.ErrorIs(t, err, ErrAlgorithm)
		require.ErrorContains(t, err, says)
	}
}

// TestNames: what is printed is what the settings take.
func TestNames(t *testing.T) {
	t.Parallel()
	for k := range Kind(kinds) {
		parsed, ok := ParseKind(k.String())
		require.True(t, ok)
		require.Equal(t, k, parsed)
		require.NotEmpty(t, Algorithms(k))
	}
	for a := range Algorithm(algorithms) {
		parsed, ok := ParseAlgorithm(a.String())
		require.True(t, ok)
		require.Equal(t, a, parsed)
	}
	_, ok := ParseAlgorithm("")
	require.False(t, ok)
	_, ok = ParseKind("")
	require.False(t, ok)
	require.Equal(t, "kind(200) algorithm(201)", fmt.Sprint(Kind(200), " ", Algorithm(201)))
	require.Nil(t, Algorithms(200))
}
