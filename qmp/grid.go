package qmp

import (
	"fmt"
	"slices"
)

// MaxDimensions is the most axes that a topology can have: each takes two of a communicator's
// streams.
const MaxDimensions = 15

// grid is a periodic grid of nodes. Their numbers are lexicographic in it.
type grid struct {
	dims   []int
	stride []int // by axis: what one step in + adds to the node number
}

// newGrid makes a grid of n nodes. Axis order[0] varies fastest in the node number, then order[1]
// and so on; nil means axis 0, axis 1 and so on.
func newGrid(n int, dims, order []int) (*grid, error) {
	if len(dims) < 1 || len(dims) > MaxDimensions {
		return nil, fmt.Errorf("the grid has %d axes, not 1 to %d", len(dims), MaxDimensions)
	}
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
		if err := checkOrder(order, len(dims)); err != nil {
			return nil, err
		}
	}
	g := &grid{dims: slices.Clone(dims), stride: make([]int, len(dims))}
	step := 1
	for i := range dims {
		axis := i
		if len(order) > 0 {
			axis = order[i]
		}
		g.stride[axis] = step
		step *= dims[axis]
	}
	return g, nil
}

// checkOrder says whether order is a permutation of n axes.
func checkOrder(order []int, n int) error {
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

// coordinates returns the coordinates of a node.
func (g *grid) coordinates(node int) []int {
	c := make([]int, len(g.dims))
	for i, d := range g.dims {
		c[i] = node / g.stride[i] % d
	}
	return c
}

// node returns the node at coordinates, which wrap.
func (g *grid) node(coordinates []int) int {
	n := 0
	for i, d := range g.dims {
		n += ((coordinates[i]%d + d) % d) * g.stride[i]
	}
	return n
}

// neighbour returns the node one step along an axis, in direction +1 or -1.
func (g *grid) neighbour(node, axis, dir int) int {
	d, s := g.dims[axis], g.stride[axis]
	at := node / s % d
	return node + ((at+dir+d)%d-at)*s
}
