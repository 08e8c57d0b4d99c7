package qmp

import (
	"fmt"
	"slices"
)

// DeclareLogicalTopology arranges the nodes of the communicator in a periodic grid with dims[i]
// nodes along axis i (QMP_declare_logical_topology). It does not change node numbers: they become
// lexicographic in the grid, axis 0 fastest, or, for the default communicator, in the order given
// by -qmp-logic-map. It is a local call, which every node must make with the same grid. A topology
// can be declared only once.
//
// If the machine is a grid ([Machine.AllocatedDimensions]), its axes may be put in another order,
// and axes of one node may be added or left out; node numbers then remain those of the allocated
// grid, so that neighbours stay neighbours.
//
// Errors: [StatusTopologyExists]; [StatusInvalidTopology] for a grid that does not fit the nodes or
// the allocated machine; [StatusNotInited].
func (c *Comm) DeclareLogicalTopology(dims []int) error {
	var order []int
	if c != nil && c.isDefault() {
		order = c.m.args.logicMap
	}
	return c.declareTopology("declare logical topology", dims, order)
}

// DeclareLogicalTopologyMap is [Comm.DeclareLogicalTopology] with the order in which the axes
// number the nodes (QMP_declare_logical_topology_map): order[0] is the axis that varies fastest.
func (c *Comm) DeclareLogicalTopologyMap(dims, order []int) error {
	return c.declareTopology("declare logical topology map", dims, order)
}

func (c *Comm) declareTopology(op string, dims, order []int) error {
	if err := c.check(op); err != nil {
		return err
	}
	exists := func(g *grid) error { return invalid(op, StatusTopologyExists, "the topology is a grid of %v", g.Dims) }
	if g := c.topology.Load(); g != nil {
		return exists(g)
	}
	var g *grid
	var err error
	if a := c.allocated; a != nil && len(order) == 0 {
		g, err = a.rotated(dims)
	} else {
		g, err = newGrid(c.NumberOfNodes(), dims, order)
	}
	if err != nil {
		return fail(op, StatusInvalidTopology, err)
	}
	if !c.topology.CompareAndSwap(nil, g) {
		return exists(c.topology.Load())
	}
	c.m.trace("%s %v", op, dims)
	return nil
}

// grid returns the topology in force: the declared one, otherwise the allocated machine; nil if
// there is neither.
func (c *Comm) grid() *grid {
	if c == nil {
		return nil
	}
	if g := c.topology.Load(); g != nil {
		return g
	}
	return c.allocated
}

// LogicalTopologyIsDeclared reports whether a topology has been declared, directly or by
// [Comm.LayoutGrid] (QMP_logical_topology_is_declared).
func (c *Comm) LogicalTopologyIsDeclared() bool { return c != nil && c.topology.Load() != nil }

// LogicalNumberOfDimensions returns the number of axes of the topology or, before one is declared,
// of the allocated machine (QMP_get_logical_number_of_dimensions).
func (c *Comm) LogicalNumberOfDimensions() int { return len(c.LogicalDimensions()) }

// LogicalDimensions returns the number of nodes along each axis of the topology or, before one is
// declared, of the allocated machine; nil if there is neither (QMP_get_logical_dimensions). The
// slice belongs to the caller.
func (c *Comm) LogicalDimensions() []int {
	if g := c.grid(); g != nil {
		return slices.Clone(g.Dims)
	}
	return nil
}

// LogicalCoordinates returns the coordinates of this node in the topology or, before one is
// declared, in the allocated machine; nil if there is neither (QMP_get_logical_coordinates).
func (c *Comm) LogicalCoordinates() []int {
	if c == nil {
		return nil
	}
	return c.LogicalCoordinatesFrom(c.me)
}

// LogicalCoordinatesFrom is [Comm.LogicalCoordinates] for any node; nil if there is no such node
// (QMP_get_logical_coordinates_from).
func (c *Comm) LogicalCoordinatesFrom(node int) []int {
	g := c.grid()
	if g == nil || node < 0 || node >= c.NumberOfNodes() {
		return nil
	}
	return g.Coordinates(node)
}

// NodeNumberFrom returns the node at coordinates, which wrap around; -1 without a topology or for
// another number of axes (QMP_get_node_number_from).
func (c *Comm) NodeNumberFrom(coordinates []int) int {
	g := c.grid()
	if g == nil || len(coordinates) != len(g.Dims) {
		return -1
	}
	return g.Node(coordinates)
}

// rotated returns the same machine with its axes in the order of dims, in which axes of one node
// may be added or left out. Of axes of the same length the first allocated comes first.
func (g *grid) rotated(dims []int) (*grid, error) {
	n := 1
	for _, d := range g.Dims {
		n *= d
	}
	r, err := newGrid(n, dims, nil)
	if err != nil {
		return nil, err
	}
	used := make([]bool, len(g.Dims))
	for i, d := range dims {
		r.Stride[i] = 1 // for an axis of one node
		if d == 1 {
			continue
		}
		found := false
		for j := range g.Dims {
			if found = !used[j] && g.Dims[j] == d; found {
				used[j] = true
				r.Stride[i] = g.Stride[j]
				break
			}
		}
		if !found {
			return nil, fmt.Errorf("the grid %v does not fit the allocated machine %v", dims, g.Dims)
		}
	}
	return r, nil
}
