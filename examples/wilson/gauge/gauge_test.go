package gauge_test

import (
	"math"
	"math/cmplx"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/internal/single"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

func averages(t *testing.T, s *global.Sums, f *gauge.Field) (plaquette, trace float64) {
	plaquette, trace, err := s.Averages(f)
	require.NoError(t, err)
	return plaquette, trace
}

// The average plaquette by its definition, on a lattice that closes round each axis.
func naivePlaquette(f *gauge.Field) float64 {
	l := f.Lattice
	sum, n := 0.0, 0
	f.Each(func(x lattice.Dims, mu int, u *su3.Matrix) {
		for nu := mu + 1; nu < lattice.Axes; nu++ {
			step := func(axis int) lattice.Dims {
				y := x
				y[axis] = (y[axis] + 1) % l.Local[axis]
				return y
			}
			p := su3.Mul(u, f.Link(step(mu), nu))
			p = su3.MulAdjoint(&p, f.Link(step(nu), mu))
			p = su3.MulAdjoint(&p, f.Link(x, nu))
			sum += p.ReTrace() / 3
			n++
		}
	})
	return sum / float64(n)
}

func TestStarts(t *testing.T) {
	comm := single.Comm(t)
	for _, extents := range []lattice.Dims{{4, 4, 4, 8}, {3, 1, 2, 5}, {1, 1, 1, 1}} {
		f := single.Field(t, comm, extents)
		s := global.New(comm, global.Exact)
		require.NoError(t, f.Cold())
		plaquette, trace := averages(t, s, f)
		require.Equal(t, 1.0, plaquette)
		require.Equal(t, 1.0, trace)

		require.NoError(t, f.Hot(5))
		f.Each(func(_ lattice.Dims, _ int, u *su3.Matrix) { require.Less(t, u.Deviation(), 1e-13) })
		plaquette, trace = averages(t, s, f)
		require.InDelta(t, naivePlaquette(f), plaquette, 1e-14)
		// The mean of (Re tr U / 3)² is 1/18.
		sites := float64(extents.Product())
		require.InDelta(t, 0, trace, 6/math.Sqrt(18*4*sites))

		p, r, err := global.New(comm, global.Plain).Averages(f)
		require.NoError(t, err)
		require.InDelta(t, plaquette, p, 1e-14)
		require.InDelta(t, trace, r, 1e-14)

		require.NoError(t, f.Transform(6))
		transformed, other := averages(t, s, f)
		require.InDelta(t, plaquette, transformed, 1e-14)
		if sites > 1 {
			require.Greater(t, math.Abs(other-trace), 1e-4) // it has transformed something
		}
	}
}

// onePlaquette is the average of Re tr U / 3 over SU(3) with the weight exp(β Re tr U /
// 3), an integral over the angles of the eigenvalues (H. Weyl). Four dimensions add
// 4·onePlaquette⁵ at strong coupling, the surface of a cube.
// (J.-M. Drouffe and J.-B. Zuber, Phys. Rep. 102 (1983) 1)
func onePlaquette(beta float64) float64 {
	const steps = 400
	var norm, sum float64
	for i := range steps {
		for j := range steps {
			a, b := 2*math.Pi*float64(i)/steps, 2*math.Pi*float64(j)/steps
			e := [3]complex128{cmplx.Rect(1, a), cmplx.Rect(1, b), cmplx.Rect(1, -a-b)}
			vandermonde := cmplx.Abs((e[0] - e[1]) * (e[0] - e[2]) * (e[1] - e[2]))
			trace := real(e[0]+e[1]+e[2]) / 3
			w := vandermonde * vandermonde * math.Exp(beta*trace)
			norm += w
			sum += w * trace
		}
	}
	return sum / norm
}

// run does sweeps of the heat-bath, and returns the mean of the average plaquette and an
// estimate of its statistical error, from blocks of sweeps.
func run(t *testing.T, f *gauge.Field, s *global.Sums, seed uint64, beta float64, skip, blocks, block int) (mean, sigma float64) {
	sweep := uint32(0)
	next := func() {
		sweep++
		require.NoError(t, f.Heatbath(seed, sweep, beta))
	}
	for range skip {
		next()
	}
	var squares float64
	for range blocks {
		var sum float64
		for range block {
			next()
			plaquette, _ := averages(t, s, f)
			sum += plaquette
		}
		sum /= float64(block)
		mean += sum
		squares += sum * sum
	}
	n := float64(blocks)
	mean /= n
	return mean, math.Sqrt(max(0, squares/n-mean*mean) / (n - 1))
}

// At strong coupling against the expansion, elsewhere against the values that are known
// of large lattices, 0.5492 at β = 5.7 and 0.5937 at 6.0, from which small lattices
// differ by less than the margin.
func TestHeatbath(t *testing.T) {
	comm := single.Comm(t)
	s := global.New(comm, global.Exact)
	strong := func(beta float64) float64 {
		u := onePlaquette(beta)
		return u + 4*math.Pow(u, 5)
	}
	for _, c := range []struct {
		beta, want, margin  float64
		extents             lattice.Dims
		skip, blocks, block int
		long                bool
	}{
		{beta: 0.5, want: strong(0.5), extents: lattice.Dims{4, 4, 4, 4}, skip: 5, blocks: 20, block: 5},
		{beta: 2, want: strong(2), margin: 1e-4, extents: lattice.Dims{4, 4, 4, 4}, skip: 10, blocks: 20, block: 5},
		{beta: 5.7, want: 0.5492, margin: 2e-3, extents: lattice.Dims{6, 6, 6, 6}, skip: 60, blocks: 10, block: 15, long: true},
		{beta: 6.0, want: 0.5937, margin: 2e-3, extents: lattice.Dims{6, 6, 6, 6}, skip: 40, blocks: 10, block: 10, long: true},
	} {
		if testing.Short() { // a lattice whose plaquette differs more, for fewer sweeps
			if c.long {
				c.margin = 1e-2
			}
			c.extents = lattice.Dims{4, 4, 4, 4}
			c.skip, c.blocks, c.block = c.skip/2, 8, 2
		}
		f := single.Field(t, comm, c.extents)
		require.NoError(t, f.Hot(1))
		mean, sigma := run(t, f, s, 1, c.beta, c.skip, c.blocks, c.block)
		t.Logf("β = %v: %.5f ± %.5f, expected %.5f", c.beta, mean, sigma, c.want)
		require.InDelta(t, c.want, mean, 5*sigma+c.margin, "β = %v", c.beta)
		f.Each(func(_ lattice.Dims, _ int, u *su3.Matrix) { require.Less(t, u.Deviation(), 1e-12) })
	}
}

func TestHeatbathOdd(t *testing.T) {
	comm := single.Comm(t)
	f := single.Field(t, comm, lattice.Dims{4, 3, 4, 4})
	require.ErrorIs(t, f.Heatbath(1, 1, 6), gauge.ErrOdd)
}
