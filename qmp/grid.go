package qmp

import (
	"fmt"

	rankgrid "github.com/sluice-hpc/sluice/internal/grid"
)

// MaxDimensions is the number of axes that a topology can have: each takes two of the
// streams of a communicator.
const MaxDimensions = 15

// grid is a periodic grid of nodes.
type grid struct{ *rankgrid.Grid }

// newGrid makes a grid of n nodes. Axis order[0] varies fastest in the node number, then order[1]
// and so on; nil means axis 0, axis 1 and so on.
func newGrid(n int, dims, order []int) (*grid, error) {
	if len(dims) < 1 || len(dims) > MaxDimensions {
		return nil, fmt.Errorf("the grid has %d axes, not 1 to %d", len(dims), MaxDimensions)
	}
	g, err := rankgrid.New(n, dims, order)
	if err != nil {
		return nil, err
	}
	return &grid{g}, nil
}
