// Package grid numbers things along several axes.
package grid

import (
	"fmt"
	"slices"
)

// Grid is a grid of nodes along one or more axes, whose numbers are lexicographic in it.
type Grid struct {
	Dims   []int // nodes along each axis
	Stride []int // by axis: what one step adds to the number of a node
}

// New makes a grid of n nodes. Axis order[0] varies fastest in the number, then order[1] and so
// on. Without an order, axis 0 varies fastest.
func New(n int, dims, order []int) (*Grid, error) {
	left := n
	for i, d := range dims {
		if d < 1 {
			return nil, fmt.Errorf("axis %d has %d nodes", i, d)
		}
		if left%d != 0 {
			left = 0
			break
		}
		left /= d
	}
	if left != 1 {
		return nil, fmt.Errorf("a grid of %v does not have %d nodes", dims, n)
	}
	if len(order) > 0 {
		if err := CheckOrder(order, len(dims)); err != nil {
			return nil, err
		}
	}
	g := &Grid{Dims: slices.Clone(dims), Stride: make([]int, len(dims))}
	step := 1
	for i := range dims {
		axis := i
		if len(order) > 0 {
			axis = order[i]
		}
		g.Stride[axis] = step
		step *= dims[axis]
	}
	return g, nil
}

// CheckOrder returns an error unless order is a permutation of n axes.
func CheckOrder(order []int, n int) error {
	if len(order) != n {
		return fmt.Errorf("the map has %d axes, the grid %d", len(order), n)
	}
	for i, axis := range order {
		if axis < 0 || axis >= n || slices.Contains(order[:i], axis) {
			return fmt.Errorf("the map %v is not a permutation of the axes", order)
		}
	}
	return nil
}

// Coordinate returns the coordinate of a node on an axis.
func (g *Grid) Coordinate(node, axis int) int { return node / g.Stride[axis] % g.Dims[axis] }

// Coordinates returns the coordinates of a node.
func (g *Grid) Coordinates(node int) []int {
	c := make([]int, len(g.Dims))
	for axis := range c {
		c[axis] = g.Coordinate(node, axis)
	}
	return c
}

// Node returns the node at coordinates, which wrap.
func (g *Grid) Node(coordinates []int) int {
	n := 0
	for i, d := range g.Dims {
		n += ((coordinates[i]%d + d) % d) * g.Stride[i]
	}
	return n
}

// Neighbour returns the node so many steps along an axis, around its end.
func (g *Grid) Neighbour(node, axis, steps int) int {
	d, at := g.Dims[axis], g.Coordinate(node, axis)
	return node + (((at+steps%d)%d+d)%d-at)*g.Stride[axis]
}
