package qmp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestGrid: numbers are lexicographic in the order of the axes; coordinates wrap; steps
// there and back lead home.
func TestGrid(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		dims := make([]int, 1+r.IntN(5))
		n := 1
		for i := range dims {
			dims[i] = 1 + r.IntN(4)
			n *= dims[i]
		}
		order := r.Perm(len(dims))
		g, err := newGrid(n, dims, order)
		require.NoError(t, err)
		at := make([]int, len(dims)) // counts as the map says
		for node := range n {
			require.Equal(t, at, g.Coordinates(node))
			far := slices.Clone(at)
			for i := range far {
				far[i] += dims[i] * (r.IntN(7) - 3)
			}
			require.Equal(t, node, g.Node(far))
			for axis := range dims {
				for _, dir := range []int{Plus, Minus} {
					next := slices.Clone(at)
					next[axis] += dir
					require.Equal(t, g.Node(next), g.Neighbour(node, axis, dir))
					require.Equal(t, node, g.Neighbour(g.Neighbour(node, axis, dir), axis, -dir))
				}
			}
			for _, axis := range order {
				if at[axis]++; at[axis] < dims[axis] {
					break
				}
				at[axis] = 0
			}
		}
	}
}

// TestTopology: what is asked before and after a topology is declared.
func TestTopology(t *testing.T) {
	for _, m := range machines(t, 6, nil) {
		c := m.DefaultComm()
		require.Equal(t, Switch, m.MsgPassingType())
		require.Zero(t, m.AllocatedNumberOfDimensions())
		require.Nil(t, m.AllocatedDimensions())
		require.Nil(t, m.AllocatedCoordinates())
		require.False(t, c.LogicalTopologyIsDeclared())
		require.Zero(t, c.LogicalNumberOfDimensions())
		require.Nil(t, c.LogicalCoordinates())
		require.Equal(t, -1, c.NodeNumberFrom([]int{0, 0}))
		for _, dims := range [][]int{{2, 2}, {7}, {6, 0}, {-6, -1}, {}, slices.Repeat([]int{1}, 16)} {
			status(t, StatusInvalidTopology, c.DeclareLogicalTopology(dims))
		}
		for _, order := range [][]int{{0}, {0, 0}, {0, 2}, {-1, 0}} {
			status(t, StatusInvalidTopology, c.DeclareLogicalTopologyMap([]int{2, 3}, order))
		}
		require.NoError(t, c.DeclareLogicalTopology([]int{2, 3}))
		require.Equal(t, []int{2, 3}, c.LogicalDimensions())
		require.Equal(t, 2, c.LogicalNumberOfDimensions())
		require.Equal(t, []int{c.NodeNumber() % 2, c.NodeNumber() / 2}, c.LogicalCoordinates())
		require.Equal(t, []int{1, 2}, c.LogicalCoordinatesFrom(5))
		require.Nil(t, c.LogicalCoordinatesFrom(6))
		require.Nil(t, c.LogicalCoordinatesFrom(-1))
		require.Equal(t, 5, c.NodeNumberFrom([]int{-1, 5}))
		require.Equal(t, -1, c.NodeNumberFrom([]int{1}))
		err := status(t, StatusTopologyExists, c.DeclareLogicalTopology([]int{2, 3}))
		require.EqualError(t, err, "qmp: declare logical topology: logical topology exists already: the topology is a grid of [2 3]")
	}
}

// TestAllocatedGrid: -qmp-geom makes the machine a grid, which logical queries fall
// back to, over which relative messages go, and which a topology may only turn.
func TestAllocatedGrid(t *testing.T) {
	list := machines(t, 6, []string{"-qmp-geom", "3", "2", "-qmp-alloc-map", "1", "0"})
	for rank, m := range list {
		c := m.DefaultComm()
		require.Equal(t, Grid, m.MsgPassingType())
		require.Equal(t, 2, m.AllocatedNumberOfDimensions())
		require.Equal(t, []int{3, 2}, m.AllocatedDimensions())
		require.Equal(t, []int{rank / 2, rank % 2}, m.AllocatedCoordinates())
		require.False(t, c.LogicalTopologyIsDeclared())
		require.Equal(t, []int{3, 2}, c.LogicalDimensions())
		require.Equal(t, []int{rank / 2, rank % 2}, c.LogicalCoordinates())
		require.Equal(t, rank, c.NodeNumberFrom(c.LogicalCoordinates()))
	}
	each(t, list, func(c *Comm) error {
		b, err := newBlock(c, []int{2, 3})
		if err != nil {
			return err
		}
		return b.round(1)
	})
	for rank, m := range list {
		c := m.DefaultComm()
		for _, dims := range [][]int{{6}, {6, 1}, {2, 3, 2}} {
			status(t, StatusInvalidTopology, c.DeclareLogicalTopology(dims))
		}
		require.NoError(t, c.DeclareLogicalTopology([]int{2, 1, 3}))
		require.Equal(t, []int{rank % 2, 0, rank / 2}, c.LogicalCoordinates(), "turned, and no node has moved")
	}
}

// TestJobs: -qmp-job divides the machine; the jobs know nothing of each other.
func TestJobs(t *testing.T) {
	for _, j := range []struct {
		args   []string
		number func(rank int) int
		dims   []int
	}{
		{[]string{"-qmp-job", "2"}, func(rank int) int { return rank / 4 }, nil},
		{[]string{"-qmp-geom", "4", "2", "-qmp-job", "2", "1"}, func(rank int) int { return rank % 4 / 2 }, []int{2, 2}},
		{[]string{"-qmp-geom", "4", "2", "-qmp-job", "1", "2"}, func(rank int) int { return rank / 4 }, []int{4, 1}},
	} {
		t.Run(fmt.Sprint(j.args), func(t *testing.T) {
			if len(j.args) == 2 { // the grids show that it divides
				need.Full(t)
			}
			list := machines(t, 8, j.args)
			for rank, m := range list {
				require.Equal(t, 2, m.NumberOfJobs())
				require.Equal(t, j.number(rank), m.JobNumber())
				require.Equal(t, len(m.JobGeometry()), m.NumberOfJobGeometryDimensions())
				require.Equal(t, 4, m.DefaultComm().NumberOfNodes())
				require.Equal(t, 8, m.AllocatedComm().NumberOfNodes())
				require.Same(t, m.JobComm(), m.DefaultComm())
				require.Equal(t, j.dims, m.AllocatedDimensions())
				if j.dims != nil {
					require.Equal(t, m.DefaultComm().NodeNumber(), m.DefaultComm().NodeNumberFrom(m.AllocatedCoordinates()))
				}
			}
			each(t, list, func(c *Comm) error {
				x, all := 1+100*c.Machine().JobNumber(), 1
				if err := c.SumInt(&x); err != nil {
					return err
				}
				if err := c.Machine().AllocatedComm().SumInt(&all); err != nil {
					return err
				}
				if x != 4*(1+100*c.Machine().JobNumber()) || all != 8 {
					return fmt.Errorf("%d in the job, %d in all", x, all)
				}
				return nil
			})
		})
	}
}
