package qmp

import (
	"fmt"
	"slices"
)

// subgrid is the result of LayoutGrid.
type subgrid struct {
	extent []int
	sites  int
}

type layoutOptions struct{ surface bool }

// LayoutOption is an option of [Comm.LayoutGrid].
type LayoutOption func(*layoutOptions)

// MinimalSurface lays out the lattice with the least communication: of all grids that divide it,
// and of all orders in which its axes can number the nodes, it picks the one with the smallest
// surface, counting a face between two nodes of one host as an eighth. The search is not exhaustive
// for lattices of more than six axes and on machines where it would take longer than a second. The
// result is the same at all nodes. Without this option, LayoutGrid uses the published algorithm,
// which considers neither faces nor hosts.
func MinimalSurface() LayoutOption { return func(o *layoutOptions) { o.surface = true } }

// LayoutGrid divides a lattice among the nodes and declares the topology for it (QMP_layout_grid).
// If a topology has already been declared, the lattice is divided along that; its additional axes
// are not divided. If the machine is a grid, its axes are put in the order that fits the lattice
// with the smallest surface. Every node calls it once, with the same lattice.
//
// The published algorithm: each prime factor of the number of nodes, largest first, divides the
// axis with the most sites left among those that it divides; of equal ones the first that has been
// divided before, otherwise the last. It finds a grid whenever one exists: which axis is divided by
// one prime does not affect what another prime divides.
//
// Errors: [StatusTopologyExists] on a second call; [StatusInvalidTopology] if the lattice cannot be
// divided; [StatusInvalidArg]; [StatusNotInited].
func (c *Comm) LayoutGrid(lattice []int, opts ...LayoutOption) error {
	const op = "layout grid"
	if err := c.check(op); err != nil {
		return err
	}
	var o layoutOptions
	for _, set := range opts {
		set(&o)
	}
	if len(lattice) < 1 || len(lattice) > MaxDimensions {
		return invalid(op, StatusInvalidArg, "a lattice of %d axes, not 1 to %d", len(lattice), MaxDimensions)
	}
	for _, n := range lattice {
		if n < 1 {
			return invalid(op, StatusInvalidArg, "the lattice %v has an axis without sites", lattice)
		}
	}
	if c.lattice.Load() != nil {
		return invalid(op, StatusTopologyExists, "the second layout")
	}
	g, err := c.layout(lattice, o)
	if err != nil {
		return fail(op, StatusInvalidTopology, err)
	}
	s := &subgrid{extent: slices.Clone(lattice), sites: 1}
	for i := range s.extent {
		if i < len(g.Dims) {
			s.extent[i] /= g.Dims[i]
		}
		s.sites *= s.extent[i]
	}
	c.topology.CompareAndSwap(nil, g)
	if !c.lattice.CompareAndSwap(nil, s) {
		return invalid(op, StatusTopologyExists, "the second layout")
	}
	c.m.trace("%s %v on %v nodes: %v", op, lattice, g.Dims, s.extent)
	return nil
}

// layout finds the grid of nodes for a lattice.
func (c *Comm) layout(lattice []int, o layoutOptions) (*grid, error) {
	if g := c.topology.Load(); g != nil {
		if !fits(g.Dims, lattice) {
			return nil, fmt.Errorf("the lattice %v cannot be divided along the topology %v", lattice, g.Dims)
		}
		return g, nil
	}
	var order []int
	if c.isDefault() && len(c.m.args.logicMap) == len(lattice) {
		order = c.m.args.logicMap
	}
	switch {
	case c.allocated != nil:
		return c.allocated.rotatedFor(lattice)
	case o.surface:
		return leastSurface(lattice, c.hosts(), order)
	}
	dims, err := divide(lattice, c.NumberOfNodes())
	if err != nil {
		return nil, err
	}
	return newGrid(c.NumberOfNodes(), dims, order)
}

// hosts returns the host of each node.
func (c *Comm) hosts() []int {
	list := make([]int, len(c.nodes))
	for i, rank := range c.nodes {
		list[i] = c.m.hosts[rank]
	}
	return list
}

// fits says whether a grid of nodes divides a lattice.
func fits(dims, lattice []int) bool {
	if len(dims) > len(lattice) {
		return false
	}
	for i, d := range dims {
		if lattice[i]%d != 0 {
			return false
		}
	}
	return true
}

// divide is the published algorithm: it returns the number of nodes along each axis.
func divide(lattice []int, nodes int) ([]int, error) {
	left := slices.Clone(lattice)
	dims := make([]int, len(lattice))
	for i := range dims {
		dims[i] = 1
	}
	for _, p := range primeFactors(nodes) {
		best := -1
		for i := range left {
			switch {
			case left[i]%p != 0:
			case best < 0, left[i] > left[best], left[i] == left[best] && dims[best] == 1:
				best = i
			}
		}
		if best < 0 {
			return nil, fmt.Errorf("the lattice %v cannot be divided among %d nodes: no axis of the remaining %[4]v is divisible by %[3]d", lattice, nodes, p, left)
		}
		left[best] /= p
		dims[best] *= p
	}
	return dims, nil
}

// primeFactors returns the prime factors of n, largest first.
func primeFactors(n int) []int {
	var list []int
	for p := 2; p*p <= n; p++ {
		for n%p == 0 {
			list = append(list, p)
			n /= p
		}
	}
	if n > 1 {
		list = append(list, n)
	}
	slices.Reverse(list)
	return list
}

// SubgridDimensions returns the extent of this node's part of the lattice along each axis; nil
// before [Comm.LayoutGrid] (QMP_get_subgrid_dimensions). The slice belongs to the caller.
func (c *Comm) SubgridDimensions() []int {
	if c == nil || c.lattice.Load() == nil {
		return nil
	}
	return slices.Clone(c.lattice.Load().extent)
}

// NumberOfSubgridSites returns the number of lattice sites on this node; 0 before [Comm.LayoutGrid]
// (QMP_get_number_of_subgrid_sites).
func (c *Comm) NumberOfSubgridSites() int {
	if c == nil || c.lattice.Load() == nil {
		return 0
	}
	return c.lattice.Load().sites
}
