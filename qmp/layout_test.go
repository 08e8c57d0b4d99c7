package qmp

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestDivide: the published algorithm, worked out by hand.
func TestDivide(t *testing.T) {
	for _, c := range []struct {
		lattice []int
		nodes   int
		want    []int
	}{
		{[]int{24, 24, 24, 32}, 128, []int{4, 4, 2, 4}},
		{[]int{24, 24, 24, 32}, 1, []int{1, 1, 1, 1}},
		{[]int{8, 8, 8, 8}, 2, []int{1, 1, 1, 2}},
		{[]int{8, 8, 8, 8}, 16, []int{2, 2, 2, 2}},
		{[]int{8, 8, 8, 8}, 32, []int{4, 2, 2, 2}},
		{[]int{12, 12, 12, 12}, 6, []int{1, 1, 2, 3}},
		{[]int{16, 16, 16, 48}, 3, []int{1, 1, 1, 3}},
		{[]int{59, 2}, 118, []int{59, 2}}, // a prime above 53
		{[]int{7}, 7, []int{7}},
	} {
		got, err := divide(c.lattice, c.nodes)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%v on %d", c.lattice, c.nodes)
	}
	_, err := divide([]int{8, 8}, 3)
	require.EqualError(t, err, "the lattice [8 8] cannot be divided among 3 nodes: no axis of the remaining [8 8] is divisible by 3")
}

// check requires that a grid is one of so many nodes, and divides the lattice.
func check(t *testing.T, lattice, dims []int, nodes int) {
	t.Helper()
	n := 1
	for i, d := range dims {
		n *= d
		require.Zero(t, lattice[i]%d, "%v on %v", lattice, dims)
	}
	require.Equal(t, nodes, n)
	require.Len(t, dims, len(lattice))
}

// naive looks at every grid and every order of axes.
func naive(t *testing.T, lattice, hosts []int) (least int, found bool) {
	var dims []int
	var look func()
	look = func() {
		if len(dims) < len(lattice) {
			for d := 1; d <= lattice[len(dims)]; d++ {
				dims = append(dims, d)
				look()
				dims = dims[:len(dims)-1]
			}
			return
		}
		n := 1
		for i, d := range dims {
			if n *= d; lattice[i]%d != 0 {
				return
			}
		}
		if n != len(hosts) {
			return
		}
		for _, order := range permutations(len(dims)) {
			g, err := newGrid(n, dims, order)
			require.NoError(t, err)
			cost := 0
			for node := range n {
				for axis, d := range dims {
					face := 1
					for i := range dims {
						if i != axis {
							face *= lattice[i] / dims[i]
						}
					}
					at := g.Coordinates(node)
					at[axis]++
					switch to := g.Node(at); {
					case d == 1:
					case hosts[to] == hosts[node]:
						cost += face
					default:
						cost += 8 * face
					}
				}
			}
			if !found || cost < least {
				least, found = cost, true
			}
		}
	}
	look()
	return least, found
}

// TestLayoutProperties: both ways give a grid that divides the lattice, or say that
// there is none; and no grid has a cheaper surface than the least.
func TestLayoutProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	divided, turned, spread := 0, 0, 0
	for range 300 {
		lattice := make([]int, 1+r.IntN(4))
		for i := range lattice {
			lattice[i] = []int{1, 2, 3, 4, 6, 8, 12}[r.IntN(7)]
		}
		hosts := make([]int, 1+r.IntN(24))
		perHost := 1 + r.IntN(len(hosts))
		for i := range hosts {
			hosts[i] = i / perHost
		}
		if hosts[len(hosts)-1] > 0 {
			spread++
		}
		least, possible := naive(t, lattice, hosts)
		g, err := leastSurface(lattice, hosts, nil)
		require.Equal(t, possible, err == nil, "%v on %v: %v", lattice, hosts, err)
		if possible {
			check(t, lattice, g.Dims, len(hosts))
			require.Equal(t, least, g.cost(lattice, hosts), "%v on %v: %v", lattice, hosts, g)
			divided++
			if plain, err := leastSurface(lattice, hosts, permutations(len(lattice))[0]); err == nil && plain.cost(lattice, hosts) > least {
				turned++
			}
		}
		dims, err := divide(lattice, len(hosts))
		require.Equal(t, possible, err == nil, "%v on %v: %v", lattice, hosts, err)
		if possible {
			check(t, lattice, dims, len(hosts))
		}
	}
	require.Greater(t, divided, 50)
	require.Positive(t, turned, "layouts for which axis 0 is not to vary fastest")
	require.Greater(t, spread, 50)
}

// TestSurfaceExample: the lattice and the machine of the 1.2 document, 128 nodes.
func TestSurfaceExample(t *testing.T) {
	lattice, hosts := []int{24, 24, 24, 32}, make([]int, 128)
	g, err := leastSurface(lattice, hosts, nil)
	require.NoError(t, err)
	check(t, lattice, g.Dims, 128)
	for _, dims := range divisions(lattice, 128) {
		require.LessOrEqual(t, surface(lattice, g.Dims), surface(lattice, dims))
	}
	require.Less(t, surface(lattice, g.Dims), surface(lattice, []int{4, 4, 1, 8}), "that of the document, for a machine with other costs")

	// With 16 nodes on each host.
	for i := range hosts {
		hosts[i] = i / 16
	}
	placed, err := leastSurface(lattice, hosts, nil)
	require.NoError(t, err)
	check(t, lattice, placed.Dims, 128)
	require.LessOrEqual(t, placed.cost(lattice, hosts), g.cost(lattice, hosts))
}

// TestSurfaceBound: what is looked at is bounded on large machines, too.
func TestSurfaceBound(t *testing.T) {
	lattice, hosts := []int{96, 96, 96, 192}, make([]int, 1<<14)
	for i := range hosts {
		hosts[i] = i / 48 // which no grid fits
	}
	g, err := leastSurface(lattice, hosts, nil)
	require.NoError(t, err)
	check(t, lattice, g.Dims, len(hosts))
}

// TestLayoutGrid: topology and subgrid, with and without what has been declared before.
func TestLayoutGrid(t *testing.T) {
	need.Full(t)
	plain := machines(t, 4, nil)[0].DefaultComm() // declares nothing
	for _, c := range []struct {
		name     string
		lattice  []int // nil: 4×6×8×8
		args     []string
		topology []int
		opts     []LayoutOption
		dims     []int
		subgrid  []int
	}{
		{name: "published", dims: []int{1, 1, 2, 2}, subgrid: []int{4, 6, 4, 4}},
		{name: "surface", opts: []LayoutOption{MinimalSurface()}, dims: []int{1, 1, 1, 4}, subgrid: []int{4, 6, 8, 2}},
		{name: "declared", topology: []int{2, 1, 2, 1}, dims: []int{2, 1, 2, 1}, subgrid: []int{2, 6, 4, 8}},
		{name: "fewer axes", topology: []int{4}, dims: []int{4}, subgrid: []int{1, 6, 8, 8}},
		{name: "grid machine", args: []string{"-qmp-geom", "4", "1"}, dims: []int{1, 1, 4, 1}, subgrid: []int{4, 6, 2, 8}},
		{name: "grid machine of two axes", args: []string{"-qmp-geom", "2", "2", "-qmp-alloc-map", "1", "0"}, dims: []int{1, 1, 2, 2}, subgrid: []int{4, 6, 4, 4}},
		{name: "grid machine, turned", args: []string{"-qmp-geom", "2", "2", "1"}, lattice: []int{6, 5, 8, 9}, dims: []int{2, 1, 2, 1}, subgrid: []int{3, 5, 4, 9}},
		{name: "many axes", args: []string{"-qmp-geom", "4"}, lattice: []int{3, 3, 3, 3, 3, 3, 3, 4}, dims: []int{1, 1, 1, 1, 1, 1, 1, 4}, subgrid: []int{3, 3, 3, 3, 3, 3, 3, 1}},
		{name: "map", args: []string{"-qmp-logic-map", "3", "2", "1", "0"}, dims: []int{1, 1, 2, 2}, subgrid: []int{4, 6, 4, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.lattice != nil || len(c.opts) > 0 || c.name == "map" {
				need.Full(t)
			}
			lattice := c.lattice
			if lattice == nil {
				lattice = []int{4, 6, 8, 8}
			}
			for _, m := range machines(t, 4, c.args) {
				comm := m.DefaultComm()
				require.Nil(t, comm.SubgridDimensions())
				require.Zero(t, comm.NumberOfSubgridSites())
				if c.topology != nil {
					require.NoError(t, comm.DeclareLogicalTopology(c.topology))
				}
				require.NoError(t, comm.LayoutGrid(lattice, c.opts...))
				require.True(t, comm.LogicalTopologyIsDeclared())
				require.Equal(t, c.dims, comm.LogicalDimensions())
				require.Equal(t, c.subgrid, comm.SubgridDimensions())
				sites := 1
				for _, n := range c.subgrid {
					sites *= n
				}
				require.Equal(t, sites, comm.NumberOfSubgridSites())
				require.Equal(t, m.Node().Rank(), comm.NodeNumberFrom(comm.LogicalCoordinates()))
				status(t, StatusTopologyExists, comm.LayoutGrid(lattice))
				status(t, StatusTopologyExists, comm.DeclareLogicalTopology([]int{4}))
			}
		})
	}
	for _, c := range []struct {
		name     string
		args     []string
		topology []int
		lattice  []int
		want     Status
	}{
		{"nothing to divide", nil, nil, []int{3, 3}, StatusInvalidTopology},
		{"topology does not divide", nil, []int{4, 1}, []int{6, 4}, StatusInvalidTopology},
		{"topology of more axes", nil, []int{2, 2}, []int{4}, StatusInvalidTopology},
		{"machine does not divide", []string{"-qmp-geom", "4"}, nil, []int{6, 2}, StatusInvalidTopology},
		{"no axes", nil, nil, nil, StatusInvalidArg},
		{"too many axes", nil, nil, slices.Repeat([]int{4}, 16), StatusInvalidArg},
		{"empty", nil, nil, []int{4, 0}, StatusInvalidArg},
	} {
		t.Run(c.name, func(t *testing.T) {
			comm := plain
			if c.args != nil || c.topology != nil {
				comm = machines(t, 4, c.args)[0].DefaultComm()
			}
			if c.topology != nil {
				require.NoError(t, comm.DeclareLogicalTopology(c.topology))
			}
			status(t, c.want, comm.LayoutGrid(c.lattice))
			status(t, c.want, comm.LayoutGrid(c.lattice, MinimalSurface()))
			require.Nil(t, comm.SubgridDimensions())
		})
	}
}
