// Package lattice is the geometry of a periodic lattice with four axes x, y, z, t that is
// divided among a grid of ranks: which rank has which sites, and where their neighbours are.
package lattice

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Axes is the number of axes.
const Axes = 4

// Dims is a number for each axis: an extent, or a coordinate. x is the first.
type Dims [Axes]int

// AxisNames are the names of the axes.
var AxisNames = [Axes]string{"x", "y", "z", "t"}

// Product returns the product of all extents.
func (d Dims) Product() int { return d[0] * d[1] * d[2] * d[3] }

// String returns the extents with x between them, "8x8x8x16".
func (d Dims) String() string { return fmt.Sprintf("%dx%dx%dx%d", d[0], d[1], d[2], d[3]) }

// ErrDims is the error of invalid extents.
var ErrDims = errors.New("invalid extents")

// ParseDims parses four extents, each at least 1, with x or commas between them. Errors wrap
// [ErrDims].
func ParseDims(s string) (d Dims, err error) {
	list := strings.FieldsFunc(s, func(r rune) bool { return r == 'x' || r == ',' })
	if len(list) != Axes {
		return d, fmt.Errorf("%w: %q: want four, such as 8x8x8x16", ErrDims, s)
	}
	for i, f := range list {
		if d[i], err = strconv.Atoi(f); err != nil || d[i] < 1 {
			return d, fmt.Errorf("%w: %q of %q is not a number of at least 1", ErrDims, f, s)
		}
	}
	return d, d.Check()
}

// MaxSites is the largest number of sites of a lattice, so that counts fit into 32 bits.
const MaxSites = math.MaxInt32

// Check returns an error unless these are valid extents of a lattice: each at least 1, and at most
// [MaxSites] sites. Errors wrap [ErrDims].
func (d Dims) Check() error {
	sites := 1
	for _, n := range d {
		if n < 1 || n > MaxSites/sites {
			return fmt.Errorf("%w: %v: each must be at least 1, and the product at most %d", ErrDims, d, MaxSites)
		}
		sites *= n
	}
	return nil
}

// Lattice is one rank's part of a lattice. The sites of a rank, and those of the whole lattice,
// are numbered with x running fastest.
type Lattice struct {
	Global Dims // extents of the whole
	Grid   Dims // ranks along each axis
	Local  Dims // extents of this rank's part
	Origin Dims // coordinates of its first site
}

// New divides a lattice of extents global evenly among a grid of ranks, and returns
// the part of the rank at coordinates at. Errors wrap [ErrDims].
func New(global, grid, at Dims) (*Lattice, error) {
	if err := global.Check(); err != nil {
		return nil, err
	}
	l := &Lattice{Global: global, Grid: grid}
	for i := range Axes {
		switch {
		case grid[i] < 1 || global[i]%grid[i] != 0:
			return nil, fmt.Errorf("%w: %d ranks along %s do not divide %d sites", ErrDims, grid[i], AxisNames[i], global[i])
		case at[i] < 0 || at[i] >= grid[i]:
			return nil, fmt.Errorf("%w: coordinate %d of a rank along %s is not below %d", ErrDims, at[i], AxisNames[i], grid[i])
		}
		l.Local[i] = global[i] / grid[i]
		l.Origin[i] = at[i] * l.Local[i]
	}
	return l, nil
}

// Sites returns the number of sites of this rank.
func (l *Lattice) Sites() int { return l.Local.Product() }

// Index returns the number of a site, by its coordinates relative to the first of this
// rank.
func (d Dims) Index(c Dims) int { return c[0] + d[0]*(c[1]+d[1]*(c[2]+d[2]*c[3])) }

// Coords is the inverse of Index.
func (d Dims) Coords(i int) (c Dims) {
	for a := range Axes {
		c[a] = i % d[a]
		i /= d[a]
	}
	return c
}

// GlobalCoords returns the coordinates in the whole lattice of a site of this rank.
func (l *Lattice) GlobalCoords(local Dims) (c Dims) {
	for i := range Axes {
		c[i] = l.Origin[i] + local[i]
	}
	return c
}

// GlobalIndex returns the number in the whole lattice of a site of this rank.
func (l *Lattice) GlobalIndex(local Dims) int { return l.Global.Index(l.GlobalCoords(local)) }

// Parity returns the sum of the coordinates in the whole lattice modulo 2.
func (l *Lattice) Parity(local Dims) int {
	c := l.GlobalCoords(local)
	return (c[0] + c[1] + c[2] + c[3]) & 1
}
