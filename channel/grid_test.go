package channel

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The dimensions that the grid chooses: those of MPI_Dims_create of MPICH and Open MPI.
func TestGridDims(t *testing.T) {
	for _, c := range []struct {
		size       int
		dims, want []int
	}{
		{1, []int{0}, []int{1}},
		{6, []int{0, 0}, []int{3, 2}},
		{7, []int{0, 0}, []int{7, 1}},
		{8, []int{0, 0, 0}, []int{2, 2, 2}},
		{12, []int{0, 0}, []int{4, 3}},
		{12, []int{0, 2, 0}, []int{3, 2, 2}},
		{60, []int{0, 0, 0}, []int{5, 4, 3}},
		{64, []int{0, 0}, []int{8, 8}},
		{2 * 104729, []int{0, 0}, []int{104729, 2}},
	} {
		g, err := NewGrid(c.size, c.dims, nil)
		require.NoError(t, err)
		require.Equal(t, c.want, g.Dims(), "%d ranks", c.size)
	}
	for _, dims := range [][]int{nil, {5}, {-1, 0}, {3, 0}, {2, 2}} {
		_, err := NewGrid(8, dims, nil)
		require.ErrorIs(t, err, ErrInvalid, "%v", dims)
	}
	_, err := NewGrid(0, []int{0}, nil)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = NewGrid(4, []int{2, 2}, []bool{true})
	require.ErrorIs(t, err, ErrInvalid)
}

// Ranks, coordinates and neighbours agree, and a grid ends where it is not periodic.
func TestGrid(t *testing.T) {
	g, err := NewGrid(24, []int{2, 3, 4}, []bool{false, true, false})
	require.NoError(t, err)
	require.Equal(t, []int{0, 0, 1}, g.Coordinates(1), "the last axis is the fastest")
	for rank := range 24 {
		at := g.Coordinates(rank)
		back, ok := g.Rank(at...)
		require.True(t, ok)
		require.Equal(t, rank, back)
		for axis, d := range g.Dims() {
			for steps := -5; steps <= 5; steps++ {
				to := append([]int(nil), at...)
				to[axis] += steps
				want, inside := g.Rank(to...)
				require.Equal(t, axis == 1 || to[axis] >= 0 && to[axis] < d, inside)
				got, ok := g.Neighbour(rank, axis, steps)
				require.Equal(t, inside, ok)
				require.Equal(t, want, got)
			}
		}
	}
	_, ok := g.Rank(0, 0)
	require.False(t, ok)
}
