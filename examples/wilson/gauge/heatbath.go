package gauge

import (
	"errors"
	"fmt"
	"math"

	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/philox"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// ErrOdd is the error of a heat-bath on a lattice with an odd extent: sites of the same colour of
// its chequerboard would be neighbours across the boundary.
var ErrOdd = errors.New("the heat-bath needs even extents")

// Heatbath replaces each link once by one drawn from its distribution given all others,
// for Wilson's action at coupling beta = 6/g². It goes through SU(2) subgroups (N.
// Cabibbo and E. Marinari, Phys. Lett. B 119 (1982) 387), all even sites at a time and
// then the odd ones. The random numbers of a link are those of its place and of sweep:
// the field does not depend on the grid.
//
// Collective. Errors: [ErrOdd]; those of [Field.Exchange].
func (f *Field) Heatbath(seed uint64, sweep uint32, beta float64) error {
	for a, n := range f.Lattice.Global {
		if n%2 != 0 {
			return fmt.Errorf("%w: %d sites along %s", ErrOdd, n, lattice.AxisNames[a])
		}
	}
	for parity := range 2 {
		for mu := range f.links {
			k := 0
			for i := range f.interior() {
				c := f.Lattice.Local.Coords(k)
				k++
				if f.Lattice.Parity(c) != parity {
					continue
				}
				s := philox.New(seed, uint32(f.Lattice.GlobalIndex(c)), forHeatbath|uint32(mu), sweep)
				staple := f.staple(i, mu)
				refresh(&s, &f.links[mu][i], &staple, beta)
			}
			if err := f.exchange(mu); err != nil {
				return err
			}
		}
	}
	return nil
}

// refresh draws a new link u, in each subgroup from its distribution given the rest.
func refresh(s *philox.Stream, u, staple *su3.Matrix, beta float64) {
	for subgroup := range su3.Subgroups {
		w := su3.Mul(u, staple)
		v := su3.ExtractSU2(&w, subgroup)
		k := v.Norm()
		a := drawSU2(s, 2*beta*k/3)
		if k > 0 {
			for i := range v {
				v[i] /= k
			}
			a = a.MulAdjoint(&v)
		}
		u.LeftMulSU2(a, subgroup)
	}
	u.Reunitarise()
}

// drawSU2 draws an element a of SU(2) with a density proportional to exp(b·a0), which
// makes that of a0 proportional to exp(b·a0)·sqrt(1-a0²).
func drawSU2(s *philox.Stream, b float64) su3.SU2 {
	a0 := drawTrace(s, b)
	r := math.Sqrt(max(0, 1-float64(a0*a0)))
	cos := 2*s.Float64() - 1
	sin := math.Sqrt(1 - float64(cos*cos))
	y, x := math.Sincos(2 * math.Pi * s.Float64())
	return su3.SU2{a0, r * sin * x, r * sin * y, r * cos}
}

// Below this b the method of Creutz rejects less than that of Kennedy and Pendleton,
// whose proposals leave the interval. Above, it needs about b^1.5 proposals.
const smallB = 1.5

// drawTrace draws a0 of [-1, 1] with a density proportional to exp(b·a0)·sqrt(1-a0²).
func drawTrace(s *philox.Stream, b float64) float64 {
	if b < smallB { // M. Creutz, Phys. Rev. D 21 (1980) 2308
		for {
			a0 := 2*s.Float64() - 1
			if b > 0 {
				a0 = min(1, math.Log1p(s.Float64()*math.Expm1(2*b))/b-1)
			}
			if r := s.Float64(); float64(r*r) <= 1-float64(a0*a0) {
				return a0
			}
		}
	}
	for { // A. D. Kennedy and B. J. Pendleton, Phys. Lett. B 156 (1985) 393
		x, y := -math.Log(s.Float64())/b, -math.Log(s.Float64())/b
		c := math.Cos(2 * math.Pi * s.Float64())
		delta := x + float64(y*float64(c*c)) // = 1 - a0
		if r := s.Float64(); float64(r*r) <= 1-delta/2 {
			return 1 - delta
		}
	}
}
