package exact_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// narrow draws float32 of all kinds: those of a source, and any bits.
func narrow(r *rand.Rand, n int, source func(*rand.Rand) float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		if x[i] = float32(source(r)); r.IntN(8) == 0 {
			x[i] = math.Float32frombits(r.Uint32() &^ (uint32(r.IntN(2)) * 0x7f800000)) // half of them subnormal
		}
	}
	return x
}

func widened(x []float32, stride int) (w []float64) {
	for i := 0; i < len(x); i += stride {
		w = append(w, float64(x[i]))
	}
	return w
}

func every[T any](x []T, stride int) (w []T) {
	for i := 0; i < len(x); i += stride {
		w = append(w, x[i])
	}
	return w
}

func TestStrided(t *testing.T) {
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(31, 32))
			for _, strideX := range []int{1, 2, 3, 7} {
				for _, strideY := range []int{1, 2, 5} {
					for _, n := range []int{0, 1, 2, 33, 511, 513, 1300} {
						lx, ly := max(0, n*strideX-r.IntN(strideX)), max(0, n*strideY-r.IntN(strideY))
						about := fmt.Sprint(strideX, strideY, n)

						x, y := draw(r, lx, source), draw(r, ly, source)
						var a, b exact.Accumulator
						exact.AddStrided(&a, x, strideX)
						exact.AddProductsStrided(&b, x, strideX, y, strideY)
						require.Equal(t, encoded(t, sumOneByOne(every(x, strideX))), encoded(t, &a), about)
						require.Equal(t, encoded(t, sumOneByOne(nil, every(x, strideX), every(y, strideY))), encoded(t, &b), about)

						u, v := narrow(r, lx, source), narrow(r, ly, source)
						a.Reset()
						b.Reset()
						exact.AddStrided(&a, u, strideX)
						exact.AddProductsStrided(&b, u, strideX, v, strideY)
						require.Equal(t, encoded(t, sumOneByOne(widened(u, strideX))), encoded(t, &a), about)
						require.Equal(t, encoded(t, sumOneByOne(nil, widened(u, strideX), widened(v, strideY))), encoded(t, &b), about)
					}
				}
			}
		})
	}
}

func TestComplex(t *testing.T) {
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(33, 34))
			for _, n := range []int{0, 1, 2, 33, 511, 513, 1300} {
				x, y := make([]complex128, n), make([]complex128, n)
				x64, y64 := make([]complex64, n), make([]complex64, n)
				for i := range n {
					x[i], y[i] = complex(source(r), source(r)), complex(source(r), source(r))
					x64[i], y64[i] = complex64(x[i]), complex64(y[i])
				}
				requireComplex(t, x, y, x, y)
				wide := func(x []complex64) (w []complex128) {
					for _, v := range x {
						w = append(w, complex128(v))
					}
					return w
				}
				requireComplex(t, wide(x64), wide(y64), x64, y64)
			}
		})
	}
}

// requireComplex compares sums of x and y with one addition after the other of the same
// numbers.
func requireComplex[T exact.ComplexNumber](t *testing.T, wideX, wideY []complex128, x, y []T) {
	t.Helper()
	var sum, inner, wantSum, wantInner exact.Complex
	for i, v := range wideX {
		wantSum.Re.Add(real(v))
		wantSum.Im.Add(imag(v))
		w := wideY[i]
		wantInner.Re.AddProduct(real(v), real(w))
		wantInner.Re.AddProduct(imag(v), imag(w))
		wantInner.Im.AddProduct(real(v), imag(w))
		wantInner.Im.AddProduct(-imag(v), real(w))
	}
	exact.AddComplex(&sum, x)
	exact.AddInner(&inner, x, y)
	for _, c := range [][2]*exact.Complex{{&wantSum, &sum}, {&wantInner, &inner}} {
		require.Equal(t, encoded(t, &c[0].Re), encoded(t, &c[1].Re))
		require.Equal(t, encoded(t, &c[0].Im), encoded(t, &c[1].Im))
		requireSame(t, real(c[0].Round()), real(c[1].Round()))
		requireSame(t, imag(c[0].Round()), imag(c[1].Round()))
	}
	wantSum.Merge(&wantInner)
	sum.Merge(&inner)
	require.Equal(t, encoded(t, &wantSum.Im), encoded(t, &sum.Im))
}

func TestStridedPanics(t *testing.T) {
	var a exact.Accumulator
	var c exact.Complex
	require.PanicsWithValue(t, "exact: stride 0 is less than 1", func() { exact.AddStrided(&a, []float64{1}, 0) })
	require.PanicsWithValue(t, "exact: products of 2 elements and of 3",
		func() { exact.AddProductsStrided(&a, make([]float32, 4), 2, make([]float32, 3), 1) })
	require.PanicsWithValue(t, "exact: inner product of 1 elements and 0",
		func() { exact.AddInner(&c, make([]complex64, 1), nil) })
}

func TestStridedAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	r := rand.New(rand.NewPCG(35, 36))
	x, u := draw(r, 4000, (*rand.Rand).NormFloat64), narrow(r, 4000, (*rand.Rand).NormFloat64)
	z, w := make([]complex128, 1000), make([]complex64, 1000)
	var a exact.Accumulator
	var c exact.Complex
	require.Zero(t, testing.AllocsPerRun(100, func() {
		exact.AddStrided(&a, x, 3)
		exact.AddStrided(&a, u, 1)
		exact.AddProductsStrided(&a, x, 2, x, 2)
		exact.AddProductsStrided(&a, u, 1, u, 1)
		exact.AddComplex(&c, z)
		exact.AddInner(&c, w, w)
	}))
}

func BenchmarkStrided(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 4096
	x := draw(r, 3*n, (*rand.Rand).NormFloat64)
	u := make([]float32, n)
	z, w := make([]complex128, n), make([]complex64, n)
	for i := range n {
		u[i], z[i] = float32(x[i]), complex(x[i], x[n+i])
		w[i] = complex64(z[i])
	}
	var a exact.Accumulator
	var c exact.Complex
	for _, f := range []struct {
		name  string
		bytes int64
		do    func()
	}{
		{"every third", 8 * n, func() { exact.AddStrided(&a, x, 3) }},
		{"products, every third", 16 * n, func() { exact.AddProductsStrided(&a, x, 3, x, 3) }},
		{"float32", 4 * n, func() { exact.AddStrided(&a, u, 1) }},
		{"products of float32", 8 * n, func() { exact.AddProductsStrided(&a, u, 1, u, 1) }},
		{"complex128", 16 * n, func() { exact.AddComplex(&c, z) }},
		{"inner product of complex128", 32 * n, func() { exact.AddInner(&c, z, z) }},
		{"inner product of complex64", 16 * n, func() { exact.AddInner(&c, w, w) }},
	} {
		b.Run(f.name, func(b *testing.B) {
			b.SetBytes(f.bytes)
			for b.Loop() {
				f.do()
			}
		})
	}
}
