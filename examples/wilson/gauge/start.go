package gauge

import (
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/philox"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// What a stream of random numbers is for, which is in its counter beside the axis of
// a link: streams of different purposes have no number in common.
const (
	forStart uint32 = iota << 8
	forHeatbath
	forTransform
)

// Cold makes all links 1.
func (f *Field) Cold() error {
	f.Each(func(_ lattice.Dims, _ int, u *su3.Matrix) { *u = su3.Identity })
	return f.Exchange()
}

// Hot makes all links random, evenly distributed over SU(3) and independent of each
// other. They depend on the seed and the extents of the whole lattice, not on the
// grid.
func (f *Field) Hot(seed uint64) error {
	f.Each(func(c lattice.Dims, axis int, u *su3.Matrix) {
		s := philox.New(seed, uint32(f.Lattice.GlobalIndex(c)), forStart|uint32(axis), 0)
		*u = random(&s)
	})
	return f.Exchange()
}

// random returns a matrix evenly distributed over SU(3): rows of normal numbers have
// no preferred direction, nor has what the method of Gram and Schmidt makes of them.
func random(s *philox.Stream) (u su3.Matrix) {
	for i := range 2 {
		for j := range 3 {
			u[i][j] = complex(s.Normal())
		}
	}
	u.Reunitarise()
	return u
}

// Rotation returns the matrix g(x) of a random gauge transformation at the site of
// given coordinates in the whole lattice.
func (f *Field) Rotation(seed uint64, global lattice.Dims) su3.Matrix {
	s := philox.New(seed, uint32(f.Lattice.Global.Index(global)), forTransform, 0)
	return random(&s)
}

// Transform applies the gauge transformation g of [Field.Rotation]: each link U(x)
// along μ becomes g(x)·U(x)·g(x+μ)†. Nothing that can be measured changes.
func (f *Field) Transform(seed uint64) error {
	l := f.Lattice
	f.Each(func(c lattice.Dims, axis int, u *su3.Matrix) {
		here := l.GlobalCoords(c)
		next := here
		next[axis] = (next[axis] + 1) % l.Global[axis]
		g, h := f.Rotation(seed, here), f.Rotation(seed, next)
		*u = su3.Mul(&g, u)
		*u = su3.MulAdjoint(u, &h)
	})
	return f.Exchange()
}
