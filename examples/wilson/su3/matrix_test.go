package su3

import (
	"math"
	"math/cmplx"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// tolerance of a dozen operations with numbers of about 1.
const tolerance = 1e-13

func normal(r *rand.Rand) complex128 { return complex(r.NormFloat64(), r.NormFloat64()) }

func randomMatrix(r *rand.Rand) (m Matrix) {
	for i := range m {
		for j := range m[i] {
			m[i][j] = normal(r)
		}
	}
	return m
}

func randomSU3(r *rand.Rand) Matrix {
	m := randomMatrix(r)
	m.Reunitarise()
	return m
}

func requireNear(t *testing.T, want, got []complex128) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.InDelta(t, 0, cmplx.Abs(want[i]-got[i]), tolerance, "element %d: want %v, got %v", i, want[i], got[i])
	}
}

func requireMatrix(t *testing.T, want, got *Matrix) {
	t.Helper()
	for i := range want {
		requireNear(t, want[i][:], got[i][:])
	}
}

// naive is the product by its definition.
func naive(a, b *Matrix) (c Matrix) {
	for i := range 3 {
		for j := range 3 {
			for k := range 3 {
				c[i][j] += a[i][k] * b[k][j]
			}
		}
	}
	return c
}

func TestProducts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for range 100 {
		a, b := randomMatrix(r), randomMatrix(r)
		ad, bd := Adjoint(&a), Adjoint(&b)
		want := naive(&a, &b)
		got := Mul(&a, &b)
		requireMatrix(t, &want, &got)
		want, got = naive(&a, &bd), MulAdjoint(&a, &b)
		requireMatrix(t, &want, &got)
		require.InDelta(t, want.ReTrace(), ReTraceMulAdjoint(&a, &b), tolerance)
		want, got = naive(&ad, &b), AdjointMul(&a, &b)
		requireMatrix(t, &want, &got)
	}
}

// By Leibniz's formula.
func TestDet(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 0))
	for range 100 {
		a := randomMatrix(r)
		want := a[0][0]*(a[1][1]*a[2][2]-a[1][2]*a[2][1]) - a[0][1]*(a[1][0]*a[2][2]-a[1][2]*a[2][0]) + a[0][2]*(a[1][0]*a[2][1]-a[1][1]*a[2][0])
		require.InDelta(t, 0, cmplx.Abs(want-a.Det()), tolerance)
	}
}

func TestReunitarise(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	for range 100 {
		a := randomSU3(r)
		require.Less(t, a.Deviation(), tolerance)
		b := a
		b.CompleteRows()
		requireMatrix(t, &a, &b)
		b.Reunitarise() // what is in SU(3) stays
		requireMatrix(t, &a, &b)
	}
}

func TestDeviation(t *testing.T) {
	require.Zero(t, Identity.Deviation())
	for name, spoil := range map[string]func(*Matrix){
		"long row":       func(m *Matrix) { m[1][1] *= 1.01 },
		"not orthogonal": func(m *Matrix) { m[1][0] += 0.01 },
		"determinant":    func(m *Matrix) { m[2][2] = 1i },
	} {
		m := Identity
		spoil(&m)
		require.Greater(t, m.Deviation(), 0.009, name)
	}
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		m := Identity
		m[2][0] = complex(0, x)
		require.True(t, math.IsNaN(m.Deviation()), x)
	}
}

// element is the matrix of SU(3) that an element of a subgroup is.
func element(a SU2, subgroup int) Matrix {
	m := Identity
	m.LeftMulSU2(a, subgroup)
	return m
}

func TestSubgroups(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 0))
	unit := func() SU2 {
		a := SU2{r.NormFloat64(), r.NormFloat64(), r.NormFloat64(), r.NormFloat64()}
		n := a.Norm()
		for i := range a {
			a[i] /= n
		}
		return a
	}
	for range 100 {
		for subgroup := range Subgroups {
			a, b, w := unit(), unit(), randomMatrix(r)
			ma, mb := element(a, subgroup), element(b, subgroup)
			require.Less(t, ma.Deviation(), tolerance)
			require.InDelta(t, 1+2*a[0], ma.ReTrace(), tolerance)

			want := naive(&ma, &w)
			got := w
			got.LeftMulSU2(a, subgroup)
			requireMatrix(t, &want, &got)

			want = MulAdjoint(&ma, &mb)
			got = element(a.MulAdjoint(&b), subgroup)
			requireMatrix(t, &want, &got)

			// Re tr(a·w) - Re tr(b·w) is that of the extracted matrix.
			e := ExtractSU2(&w, subgroup)
			aw, bw := naive(&ma, &w), naive(&mb, &w)
			inner := func(x SU2) float64 { return 2 * (x[0]*e[0] - x[1]*e[1] - x[2]*e[2] - x[3]*e[3]) }
			require.InDelta(t, aw.ReTrace()-bw.ReTrace(), inner(a)-inner(b), tolerance)
		}
	}
}
