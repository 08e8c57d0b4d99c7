package dirac_test

import (
	"fmt"
	"math"
	"math/cmplx"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/examples/wilson/dirac"
	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/internal/single"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/philox"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/qmp"
)

// tolerance of a site, whose spinors are of length 5.
const tolerance = 1e-13

// operator declares an operator, which ends with the test.
func operator(t testing.TB, comm *qmp.Comm, f *gauge.Field, kappa float64, o dirac.Options) *dirac.Operator {
	d, err := dirac.New(comm, f, kappa, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func randomField(seed uint64, sites int) []su3.Spinor {
	f := make([]su3.Spinor, sites)
	for i := range f {
		s := philox.New(seed, uint32(i), 0, 0)
		for c := range f[i] {
			for k := range f[i][c] {
				f[i][c][k] = complex(s.Normal())
			}
		}
	}
	return f
}

func inner(x, y []su3.Spinor) (sum complex128) {
	for i := range x {
		for c := range x[i] {
			for s := range x[i][c] {
				sum += cmplx.Conj(x[i][c][s]) * y[i][c][s]
			}
		}
	}
	return sum
}

func requireFields(t *testing.T, want, got []su3.Spinor, tolerance float64) {
	t.Helper()
	for i := range want {
		for c := range want[i] {
			for s := range want[i][c] {
				require.InDelta(t, 0, cmplx.Abs(want[i][c][s]-got[i][c][s]), tolerance, "site %d, colour %d, spin %d: want %v, got %v", i, c, s, want[i][c][s], got[i][c][s])
			}
		}
	}
}

// naive is D by its formula.
func naive(f *gauge.Field, kappa float64, antiperiodic bool, in []su3.Spinor) []su3.Spinor {
	l := f.Lattice.Local
	out := make([]su3.Spinor, len(in))
	for i := range in {
		x := l.Coords(i)
		out[i] = in[i]
		for axis := range lattice.Axes {
			for _, step := range []int{1, -1} {
				y := x
				y[axis] = (x[axis] + step + l[axis]) % l[axis]
				u := *f.Link(x, axis)
				if step < 0 {
					u = su3.Adjoint(f.Link(y, axis))
				}
				q := su3.MulVector(&u, &in[l.Index(y)])
				g := su3.Gamma(&q, axis)
				sign := complex(-kappa, 0)
				if antiperiodic && axis == 3 && (step > 0 && x[3] == l[3]-1 || step < 0 && x[3] == 0) {
					sign = -sign
				}
				for c := range q {
					for s := range q[c] {
						out[i][c][s] += sign * (q[c][s] - complex(float64(step), 0)*g[c][s])
					}
				}
			}
		}
	}
	return out
}

// each runs a test on lattices of all kinds: axes of one and two sites among them.
func each(t *testing.T, test func(t *testing.T, comm *qmp.Comm, f *gauge.Field, o dirac.Options)) {
	comm := single.Comm(t)
	for _, extents := range []lattice.Dims{{4, 4, 4, 8}, {3, 5, 2, 4}, {1, 2, 3, 1}, {1, 1, 1, 1}} {
		f := single.Field(t, comm, extents)
		require.NoError(t, f.Hot(3))
		for _, o := range []dirac.Options{{}, {Antiperiodic: true}, {SelfMessages: true}, {Antiperiodic: true, SelfMessages: true}} {
			t.Run(fmt.Sprintf("%v %+v", extents, o), func(t *testing.T) { test(t, comm, f, o) })
		}
	}
}

func TestFormula(t *testing.T) {
	each(t, func(t *testing.T, comm *qmp.Comm, f *gauge.Field, o dirac.Options) {
		const kappa = 0.13
		d := operator(t, comm, f, kappa, o)
		in := randomField(1, f.Lattice.Sites())
		out := make([]su3.Spinor, len(in))
		require.NoError(t, d.Apply(out, in))
		requireFields(t, naive(f, kappa, o.Antiperiodic, in), out, tolerance)
		require.Equal(t, randomField(1, len(in)), in) // it is not written to
		require.Equal(t, 1, d.Applied)
	})
}

// What goes through messages has the same bits as what does not.
func TestSameBits(t *testing.T) {
	comm := single.Comm(t)
	f := single.Field(t, comm, lattice.Dims{4, 2, 6, 3})
	require.NoError(t, f.Hot(3))
	in := randomField(1, f.Lattice.Sites())
	var fields [2][2][]su3.Spinor
	for i, self := range []bool{false, true} {
		d := operator(t, comm, f, 0.14, dirac.Options{SelfMessages: self})
		for k, apply := range []func(out, in []su3.Spinor) error{d.Apply, d.ApplyAdjoint} {
			fields[i][k] = make([]su3.Spinor, len(in))
			require.NoError(t, apply(fields[i][k], in))
		}
	}
	for k := range fields[0] {
		for i := range in {
			for c := range in[i] {
				for s := range in[i][c] {
					a, b := fields[0][k][i][c][s], fields[1][k][i][c][s]
					require.Equal(t, math.Float64bits(real(a)), math.Float64bits(real(b)))
					require.Equal(t, math.Float64bits(imag(a)), math.Float64bits(imag(b)))
				}
			}
		}
	}
}

// D† = γ5 D γ5, and <x, D y> = <D† x, y>.
func TestHermiticity(t *testing.T) {
	each(t, func(t *testing.T, comm *qmp.Comm, f *gauge.Field, o dirac.Options) {
		d := operator(t, comm, f, 0.15, o)
		sites := f.Lattice.Sites()
		x, y := randomField(1, sites), randomField(2, sites)
		dx, dy, g := make([]su3.Spinor, sites), make([]su3.Spinor, sites), make([]su3.Spinor, sites)
		require.NoError(t, d.ApplyAdjoint(dx, x))
		require.NoError(t, d.Apply(dy, y))
		a, b := inner(x, dy), inner(dx, y)
		require.InDelta(t, 0, cmplx.Abs(a-b), tolerance*float64(24*sites))

		for i := range x {
			g[i] = su3.Gamma5(&x[i])
		}
		require.NoError(t, d.Apply(dy, g))
		for i := range dy {
			dy[i] = su3.Gamma5(&dy[i])
		}
		requireFields(t, dx, dy, tolerance)
	})
}

// Without a gauge field plane waves are eigenvectors up to spin:
//
//	D e^(ipx) χ = e^(ipx) [ 1 - 2κ Σ (cos pμ - i γμ sin pμ) ] χ,
//
// the momenta being multiples of 2π/L, along an antiperiodic axis odd ones of π/L.
func TestFreeField(t *testing.T) {
	const kappa = 0.12
	comm := single.Comm(t)
	extents := lattice.Dims{4, 3, 2, 6}
	f := single.Field(t, comm, extents)
	require.NoError(t, f.Cold())
	for _, antiperiodic := range []bool{false, true} {
		d := operator(t, comm, f, kappa, dirac.Options{Antiperiodic: antiperiodic, SelfMessages: true})
		in, out, want := make([]su3.Spinor, extents.Product()), make([]su3.Spinor, extents.Product()), make([]su3.Spinor, extents.Product())
		for k := range extents.Product() {
			var p [lattice.Axes]float64
			for a, n := range extents.Coords(k) {
				p[a] = 2 * math.Pi * float64(n) / float64(extents[a])
			}
			if antiperiodic {
				p[3] += math.Pi / float64(extents[3])
			}
			chi := randomField(uint64(k), 1)[0]
			var spin su3.Spinor // [...] χ
			for c := range chi {
				for s := range chi[c] {
					spin[c][s] = chi[c][s]
					for a := range p {
						g := su3.Gamma(&chi, a)
						spin[c][s] -= complex(2*kappa, 0) * (complex(math.Cos(p[a]), 0)*chi[c][s] - complex(0, math.Sin(p[a]))*g[c][s])
					}
				}
			}
			for i := range in {
				phase := 0.0
				for a, n := range extents.Coords(i) {
					phase += p[a] * float64(n)
				}
				for c := range chi {
					for s := range chi[c] {
						in[i][c][s] = cmplx.Rect(1, phase) * chi[c][s]
						want[i][c][s] = cmplx.Rect(1, phase) * spin[c][s]
					}
				}
			}
			require.NoError(t, d.Apply(out, in))
			requireFields(t, want, out, tolerance)
		}
	}
}

// With U(x) -> g(x) U(x) g(x+μ)† and ψ -> gψ, Dψ goes to g Dψ.
func TestGaugeCovariance(t *testing.T) {
	comm := single.Comm(t)
	f := single.Field(t, comm, lattice.Dims{4, 4, 2, 6})
	require.NoError(t, f.Hot(9))
	sites := f.Lattice.Sites()
	in, want, out := randomField(1, sites), make([]su3.Spinor, sites), make([]su3.Spinor, sites)
	require.NoError(t, operator(t, comm, f, 0.14, dirac.Options{}).Apply(want, in))
	require.NoError(t, f.Transform(4))
	for i := range in {
		g := f.Rotation(4, f.Lattice.Global.Coords(i))
		in[i], want[i] = su3.MulVector(&g, &in[i]), su3.MulVector(&g, &want[i])
	}
	require.NoError(t, operator(t, comm, f, 0.14, dirac.Options{}).Apply(out, in))
	requireFields(t, want, out, tolerance)
}

func TestAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	comm := single.Comm(t)
	f := single.Field(t, comm, lattice.Dims{2, 2, 2, 4})
	require.NoError(t, f.Hot(1))
	d := operator(t, comm, f, 0.14, dirac.Options{SelfMessages: true})
	in := randomField(1, f.Lattice.Sites())
	out := make([]su3.Spinor, len(in))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if d.Apply(out, in) != nil || d.ApplyAdjoint(out, in) != nil {
			panic("failed")
		}
	}))
}

// One application, of whose sites none or all are computed with messages.
func BenchmarkApply(b *testing.B) {
	comm := single.Comm(b)
	for _, extents := range []lattice.Dims{{4, 4, 4, 8}, {8, 8, 8, 16}} {
		f := single.Field(b, comm, extents)
		require.NoError(b, f.Hot(1))
		for _, self := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v/self=%v", extents, self), func(b *testing.B) {
				d := operator(b, comm, f, 0.14, dirac.Options{SelfMessages: self})
				in := randomField(1, f.Lattice.Sites())
				out := make([]su3.Spinor, len(in))
				for b.Loop() {
					if err := d.Apply(out, in); err != nil {
						b.Fatal(err)
					}
				}
				perSite := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(len(in))
				b.ReportMetric(perSite, "ns/site")
				b.ReportMetric(1000*dirac.Flops/perSite, "MFlop/s")
			})
		}
	}
}
