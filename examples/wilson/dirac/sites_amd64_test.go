package dirac

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// The vector code, where the CPU has it, has the bits of the portable one, whatever neighbours a site has,
// signed zeroes and infinities included; and writes to no other site.
func TestSites(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	number := func() complex128 {
		x := [2]float64{r.NormFloat64(), r.NormFloat64()}
		for i := range x {
			switch r.IntN(200) {
			case 0:
				x[i] = 0
			case 1:
				x[i] = math.Copysign(0, -1)
			case 2:
				x[i] = math.Ldexp(x[i], -1060)
			case 3:
				x[i] = math.Ldexp(x[i], 1000)
			}
		}
		return complex(x[0], x[1])
	}
	for _, sites := range []int{1, 2, 7, 3*piece + 5} {
		o := &Operator{kappa: 0.13, halo: &halo{received: make([]su3.Half, 2*sites)}}
		in := make([]su3.Spinor, sites)
		for i := range in {
			for c := range 3 {
				for s := range 4 {
					in[i][c][s] = number()
				}
				for s := range 2 {
					o.halo.received[2*i][c][s], o.halo.received[2*i+1][c][s] = number(), number()
				}
			}
			for range lattice.Axes {
				var u su3.Matrix
				for j := range 3 {
					for k := range 3 {
						u[j][k] = number()
					}
				}
				o.links = append(o.links, u)
			}
			var next [2 * lattice.Axes]int32
			for k := range next {
				next[k] = r.Int32N(int32(sites))
				if r.IntN(2) == 0 {
					next[k] = ^r.Int32N(int32(2 * sites))
				}
			}
			o.next = append(o.next, next)
		}
		var list []int32
		for _, s := range r.Perm(sites)[:(sites+1)/2] {
			list = append(list, int32(s))
		}
		for _, adjoint := range []bool{false, true} {
			for axis := range lattice.Axes {
				for _, after := range []bool{false, true} {
					want, got := make([]su3.Half, len(list)+1), make([]su3.Half, len(list)+1)
					o.packPortable(want[:len(list)], in, list, axis, after, adjoint)
					o.packSites(got[:len(list)], in, list, axis, after, adjoint)
					for i := range want {
						for c := range 3 {
							for s := range 2 {
								requireBits(t, real(want[i][c][s]), real(got[i][c][s]))
								requireBits(t, imag(want[i][c][s]), imag(got[i][c][s]))
							}
						}
					}
				}
			}
			want, got := make([]su3.Spinor, sites), make([]su3.Spinor, sites)
			o.sitesPortable(want, in, list, adjoint)
			o.sites(got, in, list, adjoint)
			for i := range want {
				for c := range 3 {
					for s := range 4 {
						requireBits(t, real(want[i][c][s]), real(got[i][c][s]))
						requireBits(t, imag(want[i][c][s]), imag(got[i][c][s]))
					}
				}
			}
		}
	}
}

func requireBits(t *testing.T, want, got float64) {
	t.Helper()
	if math.IsNaN(want) && math.IsNaN(got) { // which NaN it is, is unspecified
		return
	}
	require.Equal(t, math.Float64bits(want), math.Float64bits(got), "want %v, got %v", want, got)
}

// BenchmarkSites is what the portable code takes for a site, and the vector code.
func BenchmarkSites(b *testing.B) {
	const sites = 512
	o := &Operator{kappa: 0.13, halo: &halo{}, links: make([]su3.Matrix, lattice.Axes*sites), next: make([][2 * lattice.Axes]int32, sites)}
	var list []int32
	for s := range int32(sites) {
		list = append(list, s)
		for k := range o.next[s] {
			o.next[s][k] = (s + 1) % sites
		}
	}
	in, out := make([]su3.Spinor, sites), make([]su3.Spinor, sites)
	for _, c := range []struct {
		name string
		call func(out, in []su3.Spinor, list []int32, adjoint bool)
	}{{"portable", o.sitesPortable}, {"native", o.sites}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.call(out, in, list, false)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/sites, "ns/site")
		})
	}
}
