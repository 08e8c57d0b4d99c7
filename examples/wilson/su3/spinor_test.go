package su3

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// gammas are the matrices as the comment draws them.
var gammas = [4][4][4]complex128{
	{{0, 0, 0, 1i}, {0, 0, 1i, 0}, {0, -1i, 0, 0}, {-1i, 0, 0, 0}},
	{{0, 0, 0, -1}, {0, 0, 1, 0}, {0, 1, 0, 0}, {-1, 0, 0, 0}},
	{{0, 0, 1i, 0}, {0, 0, 0, -1i}, {-1i, 0, 0, 0}, {0, 1i, 0, 0}},
	{{0, 0, 1, 0}, {0, 0, 0, 1}, {1, 0, 0, 0}, {0, 1, 0, 0}},
}

func product(a, b [4][4]complex128) (c [4][4]complex128) {
	for i := range 4 {
		for j := range 4 {
			for k := range 4 {
				c[i][j] += a[i][k] * b[k][j]
			}
		}
	}
	return c
}

// onSpins applies a matrix to the spins of each colour.
func onSpins(m [4][4]complex128, p *Spinor) (q Spinor) {
	for c := range 3 {
		for i := range 4 {
			for j := range 4 {
				q[c][i] += m[i][j] * p[c][j]
			}
		}
	}
	return q
}

func randomSpinor(r *rand.Rand) (p Spinor) {
	for c := range p {
		for s := range p[c] {
			p[c][s] = normal(r)
		}
	}
	return p
}

func requireSpinor(t *testing.T, want, got *Spinor) {
	t.Helper()
	for c := range want {
		requireNear(t, want[c][:], got[c][:])
	}
}

// γμγν + γνγμ = 2δ, γ hermitian, γ5 their product.
func TestGammas(t *testing.T) {
	one := [4][4]complex128{{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}}
	five := one
	r := rand.New(rand.NewPCG(5, 0))
	p := randomSpinor(r)
	for mu, a := range gammas {
		five = product(five, a)
		for nu, b := range gammas {
			ab, ba := product(a, b), product(b, a)
			for i := range 4 {
				for j := range 4 {
					want := complex128(0)
					if mu == nu {
						want = 2 * one[i][j]
					}
					require.Equal(t, want, ab[i][j]+ba[i][j], "axes %d %d", mu, nu)
					require.Equal(t, conj(a[j][i]), a[i][j])
				}
			}
		}
		want, got := onSpins(a, &p), Gamma(&p, mu)
		requireSpinor(t, &want, &got)
	}
	want, got := onSpins(five, &p), Gamma5(&p)
	requireSpinor(t, &want, &got)
}

// What a projection leaves is all of (1 ± γ)p.
func TestProjections(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 0))
	for axis, g := range gammas {
		p, into := randomSpinor(r), randomSpinor(r)
		gp := onSpins(g, &p)
		for _, c := range []struct {
			name    string
			sign    complex128
			project func(*Half, *Spinor, int)
			add     func(*Spinor, *Half, int)
		}{
			{"minus", -1, (*Half).ProjectMinus, (*Spinor).AddMinus},
			{"plus", 1, (*Half).ProjectPlus, (*Spinor).AddPlus},
		} {
			want := into
			for k := range 3 {
				for s := range 4 {
					want[k][s] += p[k][s] + c.sign*gp[k][s]
				}
			}
			var h Half
			c.project(&h, &p, axis)
			got := into
			c.add(&got, &h, axis)
			requireSpinor(t, &want, &got)
		}
	}
}

func TestHalf(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 0))
	for range 100 {
		u, p := randomMatrix(r), randomSpinor(r)
		adjoint := Adjoint(&u)
		for _, c := range []struct {
			u    Matrix
			call func(r *Half, u *Matrix, h *Half)
		}{{u, (*Half).Mul}, {adjoint, (*Half).AdjointMul}} {
			q := MulVector(&c.u, &p)
			var h, got Half
			for k := range 3 {
				copy(h[k][:], p[k][:2])
			}
			c.call(&got, &u, &h)
			for k := range 3 {
				want := make([]complex128, 4)
				for s := range 4 {
					for j := range 3 {
						want[s] += c.u[k][j] * p[j][s]
					}
				}
				requireNear(t, want, q[k][:])
				requireNear(t, want[:2], got[k][:])
			}
		}
	}
}
