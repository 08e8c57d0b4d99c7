package channel

import (
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/internal/grid"
)

// Grid arranges ranks along one or more axes (MPI_Cart_create). The last axis varies
// fastest in the rank number, as in MPI and in C arrays. A Grid only computes: it does
// not communicate, and its methods may be called concurrently.
type Grid struct {
	g        *grid.Grid
	periodic []bool
}

// NewGrid arranges size ranks in a grid with dims[i] ranks along axis i. Zeros in dims
// are replaced so that the grid is as close to a cube as size allows (MPI_Dims_create).
// periodic says which axes wrap around; nil means none.
//
// Errors: [ErrInvalid] if the ranks do not fill the grid, or if periodic and dims
// differ in length.
func NewGrid(size int, dims []int, periodic []bool) (*Grid, error) {
	if periodic == nil {
		periodic = make([]bool, len(dims))
	}
	if len(dims) == 0 || len(periodic) != len(dims) {
		return nil, nodeError("make grid", fmt.Errorf("%w: %d axes, but periodic has length %d", ErrInvalid, len(dims), len(periodic)))
	}
	order := make([]int, len(dims)) // the last axis first
	for i := range order {
		order[i] = len(dims) - 1 - i
	}
	g, err := grid.New(size, balanced(size, dims), order)
	if err != nil {
		return nil, nodeError("make grid", fmt.Errorf("%w: %w", ErrInvalid, err))
	}
	return &Grid{g, slices.Clone(periodic)}, nil
}

// balanced replaces the zeros of dims by factors of size: it assigns each prime factor,
// largest first, to the axis with the smallest share. The resulting shares descend.
func balanced(size int, dims []int) []int {
	dims = slices.Clone(dims)
	var free []int
	for i, d := range dims {
		switch {
		case d == 0:
			free = append(free, i)
		case d < 0 || size%d != 0:
			return dims // grid.New refuses them
		default:
			size /= d
		}
	}
	if len(free) == 0 || size < 1 {
		return dims
	}
	var primes []int
	for p := 2; size > 1; p++ {
		for ; size%p == 0; size /= p {
			primes = append(primes, p)
		}
		if p*p > size && size > 1 {
			primes = append(primes, size)
			break
		}
	}
	share := slices.Repeat([]int{1}, len(free))
	for _, p := range slices.Backward(primes) {
		share[len(share)-1] *= p
		slices.SortFunc(share, func(a, b int) int { return b - a })
	}
	for i, axis := range free {
		dims[axis] = share[i]
	}
	return dims
}

// Dims returns the number of ranks along each axis.
func (g *Grid) Dims() []int { return slices.Clone(g.g.Dims) }

// Coordinates returns the coordinates of a rank (MPI_Cart_coords).
func (g *Grid) Coordinates(rank int) []int { return g.g.Coordinates(rank) }

// Rank returns the rank at coordinates (MPI_Cart_rank), which wrap on periodic axes. It
// returns false if there is no such rank.
func (g *Grid) Rank(coordinates ...int) (rank int, ok bool) {
	if len(coordinates) != len(g.g.Dims) {
		return -1, false
	}
	for axis, c := range coordinates {
		if !g.periodic[axis] && (c < 0 || c >= g.g.Dims[axis]) {
			return -1, false
		}
	}
	return g.g.Node(coordinates), true
}

// Neighbour returns the rank that is so many steps away along an axis (MPI_Cart_shift),
// or false beyond the end of the grid.
func (g *Grid) Neighbour(rank, axis, steps int) (neighbour int, ok bool) {
	if at := g.g.Coordinate(rank, axis) + steps; !g.periodic[axis] && (at < 0 || at >= g.g.Dims[axis]) {
		return -1, false
	}
	return g.g.Neighbour(rank, axis, steps), true
}
