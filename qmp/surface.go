package qmp

import (
	"fmt"
	"slices"
)

// A face between two nodes counts farFace per site, or nearFace if both are on one host: memory is
// some ten times as fast as the networks that these codes run on.
const (
	farFace  = 8
	nearFace = 1
)

// looksAt bounds the neighbours that leastSurface examines, which takes half a second.
const looksAt = 30_000_000

// leastSurface returns the grid of len(hosts) nodes with the cheapest surface for a lattice. Nodes
// are numbered in an order of the axes; nil: the best one. Of equally good grids it returns the
// first found, so the result is the same at all nodes.
func leastSurface(lattice, hosts, order []int) (*grid, error) {
	nodes := len(hosts)
	all := divisions(lattice, nodes)
	if len(all) == 0 {
		return nil, fmt.Errorf("the lattice %v is not divisible by any grid of %d nodes", lattice, nodes)
	}
	area := func(dims []int) int { return surface(lattice, dims) }
	slices.SortStableFunc(all, func(a, b []int) int { return area(a) - area(b) })
	orders := [][]int{order}
	spread := slices.Max(hosts) > slices.Min(hosts)
	if order == nil && spread {
		orders = permutations(len(lattice))
	}
	var best *grid
	least, looks := 0, 0
	for _, dims := range all {
		if best != nil && (!spread || area(dims)*nearFace*nodes >= least || looks > looksAt) {
			break // no grid that follows has less surface
		}
		for _, o := range orders {
			g, err := newGrid(nodes, dims, o)
			if err != nil {
				return nil, err
			}
			looks += nodes * len(dims)
			if c := g.cost(lattice, hosts); best == nil || c < least {
				best, least = g, c
			}
		}
	}
	return best, nil
}

// divisions returns all grids of n nodes that divide a lattice.
func divisions(lattice []int, n int) [][]int {
	if len(lattice) == 0 {
		if n == 1 {
			return [][]int{nil}
		}
		return nil
	}
	var all [][]int
	for d := 1; d <= min(n, lattice[0]); d++ {
		if n%d != 0 || lattice[0]%d != 0 {
			continue
		}
		for _, rest := range divisions(lattice[1:], n/d) {
			all = append(all, append([]int{d}, rest...))
		}
	}
	return all
}

// permutations returns all orders of n axes, 0, 1, 2... first. For more than 6 axes it returns only
// that one.
func permutations(n int) [][]int {
	first := make([]int, n)
	for i := range first {
		first[i] = i
	}
	if n > 6 {
		return [][]int{first}
	}
	var all [][]int
	var extend func(done, left []int)
	extend = func(done, left []int) {
		if len(left) == 0 {
			all = append(all, slices.Clone(done))
		}
		for i, axis := range left {
			extend(append(done, axis), slices.Concat(left[:i], left[i+1:]))
		}
	}
	extend(make([]int, 0, n), first)
	return all
}

// surface returns the number of sites that a node sends in one direction of each axis.
func surface(lattice, dims []int) int {
	volume := 1
	for i, n := range lattice {
		volume *= n / at(dims, i)
	}
	sum := 0
	for i, n := range lattice {
		if d := at(dims, i); d > 1 {
			sum += volume / (n / d)
		}
	}
	return sum
}

// at returns the number of nodes along an axis; 1 for axes that the grid does not have.
func at(dims []int, axis int) int {
	if axis < len(dims) {
		return dims[axis]
	}
	return 1
}

// cost returns the weighted number of sites that all nodes send in direction + of each axis.
func (g *grid) cost(lattice, hosts []int) int {
	volume := 1
	for i, n := range lattice {
		volume *= n / at(g.Dims, i)
	}
	sum := 0
	for axis, d := range g.Dims {
		if d == 1 {
			continue
		}
		face := volume / (lattice[axis] / d)
		for node := range hosts {
			if hosts[node] == hosts[g.Neighbour(node, axis, 1)] {
				sum += face * nearFace
			} else {
				sum += face * farFace
			}
		}
	}
	return sum
}

// rotatedFor returns the same machine with its axes in the order that fits a lattice with the
// smallest surface.
func (g *grid) rotatedFor(lattice []int) (*grid, error) {
	left := slices.DeleteFunc(slices.Clone(g.Dims), func(d int) bool { return d == 1 })
	for len(left) < len(lattice) {
		left = append(left, 1)
	}
	var best []int
	turned := make([]int, 0, len(lattice))
	var place func(left []int) // what is left of the machine's axes along the next of the lattice
	place = func(left []int) {
		axis := len(turned)
		if axis == len(lattice) {
			if len(left) == 0 && (best == nil || surface(lattice, turned) < surface(lattice, best)) {
				best = slices.Clone(turned)
			}
			return
		}
		for i, d := range left {
			if lattice[axis]%d != 0 || slices.Contains(left[:i], d) {
				continue
			}
			turned = append(turned, d)
			place(slices.Concat(left[:i], left[i+1:]))
			turned = turned[:axis]
		}
	}
	place(left)
	if best == nil {
		return nil, fmt.Errorf("the lattice %v does not fit the machine %v in any order of its axes", lattice, g.Dims)
	}
	return g.rotated(best)
}
