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
	return narrowed(r, draw(r, n, source))
}

// narrowed makes float32 of x, and some of any bits.
func narrowed(r *rand.Rand, x []float64) []float32 {
	w := make([]float32, len(x))
	for i, v := range x {
		if w[i] = float32(v); r.IntN(8) == 0 {
			w[i] = math.Float32frombits(r.Uint32() &^ (uint32(r.IntN(2)) * 0x7f800000)) // half of them subnormal
		}
	}
	return w
}

// widened takes every element of x with the stride.
func widened[T exact.Float](x []T, stride int) (w []float64) {
	for i := 0; i < len(x); i += stride {
		w = append(w, float64(x[i]))
	}
	return w
}

// ofEachKind calls f for each source, and for slices whose parts are of several.
func ofEachKind(t *testing.T, f func(t *testing.T, r *rand.Rand, draw func(n int) []float64)) {
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(31, 32))
			f(t, r, func(n int) []float64 { return draw(r, n, source) })
		})
	}
	t.Run("patchwork", func(t *testing.T) {
		t.Parallel()
		r := rand.New(rand.NewPCG(31, 32))
		f(t, r, func(n int) []float64 { return patchwork(r, n) })
	})
}

// stridedLengths are about those from which kernels are used, and of what is laid side by side at a time.
var stridedLengths = []int{0, 1, 2, 31, 32, 33, 1023, 1024, 1025, 2300}

func TestStrided(t *testing.T) {
	ofEachKind(t, func(t *testing.T, r *rand.Rand, draw func(n int) []float64) {
		for _, strideX := range []int{1, 2, 3, 7} {
			for _, strideY := range []int{1, 2, 5} {
				for _, n := range stridedLengths {
					x := draw(max(0, n*strideX-r.IntN(strideX)))
					y := draw(max(0, n*strideY-r.IntN(strideY)))
					requireStrided(t, x, strideX, y, strideY)
					requireStrided(t, narrowed(r, x), strideX, narrowed(r, y), strideY)
				}
			}
		}
	})
}

// requireStrided compares sums of every strideX-th of x and every strideY-th of y, by each kernel, with one
// addition after the other of the same numbers.
func requireStrided[T exact.Float](t *testing.T, x []T, strideX int, y []T, strideY int) {
	t.Helper()
	wideX, wideY := widened(x, strideX), widened(y, strideY)
	sum, dot := encoded(t, sumOneByOne(wideX)), encoded(t, sumOneByOne(nil, wideX, wideY))
	var a, b exact.Accumulator
	requireBoth := func(about any) {
		t.Helper()
		require.Equal(t, sum, encoded(t, &a), "sum %v of %d, %T, stride %d", about, len(wideX), x, strideX)
		require.Equal(t, dot, encoded(t, &b), "products %v of %d, %T, strides %d, %d", about, len(wideX), x, strideX, strideY)
	}
	exact.AddStrided(&a, x, strideX)
	exact.AddProductsStrided(&b, x, strideX, y, strideY)
	requireBoth("by default")
	for _, k := range exact.Kernels() {
		a.Reset()
		b.Reset()
		exact.AddStridedBy(k, &a, x, strideX)
		exact.AddProductsStridedBy(k, &b, x, strideX, y, strideY)
		requireBoth(k)
	}
}

func TestComplex(t *testing.T) {
	ofEachKind(t, func(t *testing.T, r *rand.Rand, draw func(n int) []float64) {
		for _, n := range stridedLengths {
			requireComplex(t, paired[complex128](draw(2*n)), paired[complex128](draw(2*n)))
			requireComplex(t, paired[complex64](draw(2*n)), paired[complex64](draw(2*n)))
		}
	})
}

// Every length up to some turns of the loops that lay elements side by side, and every place in a line of
// the cache.
func TestStridedOfEveryLength(t *testing.T) {
	const strideX, strideY = 3, 2
	most := 330
	if testing.Short() {
		most = 100
	}
	ofEachKind(t, func(t *testing.T, r *rand.Rand, draw func(n int) []float64) {
		x, y := draw(8+strideX*most), draw(8+strideX*most)
		u, v := narrowed(r, x), narrowed(r, y)
		z, w := paired[complex128](x), paired[complex128](y)
		c, d := paired[complex64](x), paired[complex64](y)
		for n := range most + 1 {
			at, other := n%8, n/8%8
			requireStrided(t, x[at:][:strideX*n], strideX, y[other:][:strideY*n], strideY)
			requireStrided(t, u[at:][:strideX*n], strideX, v[other:][:n], 1)
			requireStrided(t, u[at:][:n], 1, v[other:][:n], 1)
			requireComplex(t, z[at/2:][:n], w[other/2:][:n])
			requireComplex(t, c[at/2:][:n], d[other/2:][:n])
			requireSquares(t, x[at:][:strideX*n], strideX)
			requireSquares(t, u[at:][:strideX*n], strideX)
			requireComplex(t, z[at/2:][:n], z[at/2:][:n])
			requireComplex(t, c[at/2:][:n], c[at/2:][:n])
		}
	})
}

// Slices of many pieces of different kinds: kernels hand back some, and what they have lasts.
func TestStridedOfPatchwork(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 3
	}
	r := rand.New(rand.NewPCG(37, 38))
	for range rounds {
		n := r.IntN(20_000)
		x, y := patchwork(r, 2*n), patchwork(r, 3*n)
		requireStrided(t, x, 2, y, 3)
		requireStrided(t, narrowed(r, x), 2, narrowed(r, y), 3)
		requireComplex(t, paired[complex128](x), paired[complex128](y[:2*n]))
		requireComplex(t, paired[complex64](x), paired[complex64](y[:2*n]))
		u, z, w := narrowed(r, x), paired[complex128](x), paired[complex64](x)
		requireSquares(t, x, 2)
		requireSquares(t, u, 1)
		requireComplex(t, z, z)
		requireComplex(t, w, w)
	}
}

// requireSquares is requireStrided for products of x by itself, whose elements are laid side by side once.
func requireSquares[T exact.Float](t *testing.T, x []T, stride int) {
	t.Helper()
	requireStrided(t, x, stride, x, stride)
	requireStrided(t, x[:(len(x)+stride-1)/stride], 1, x, stride)
}

// paired takes the numbers of x as real and imaginary parts, by turns.
func paired[T exact.ComplexNumber](x []float64) []T {
	z := make([]T, len(x)/2)
	for i := range z {
		z[i] = T(complex(x[2*i], x[2*i+1]))
	}
	return z
}

// requireComplex compares sums of x and y, by each kernel, with one addition after the other of the same
// numbers.
func requireComplex[T exact.ComplexNumber](t *testing.T, x, y []T) {
	t.Helper()
	var wantSum, wantInner exact.Complex
	for i := range x {
		v, w := complex128(x[i]), complex128(y[i])
		wantSum.Re.Add(real(v))
		wantSum.Im.Add(imag(v))
		wantInner.Re.AddProduct(real(v), real(w))
		wantInner.Re.AddProduct(imag(v), imag(w))
		wantInner.Im.AddProduct(real(v), imag(w))
		wantInner.Im.AddProduct(-imag(v), real(w))
	}
	wantBoth := wantSum
	wantBoth.Merge(&wantInner)
	requireAll := func(about any, sum, inner exact.Complex) {
		t.Helper()
		both := sum
		both.Merge(&inner)
		for i, c := range [][2]*exact.Complex{{&wantSum, &sum}, {&wantInner, &inner}, {&wantBoth, &both}} {
			require.Equal(t, encoded(t, &c[0].Re), encoded(t, &c[1].Re), "%v, %d %T, %d", about, len(x), x, i)
			require.Equal(t, encoded(t, &c[0].Im), encoded(t, &c[1].Im), "%v, %d %T, %d", about, len(x), x, i)
			requireSame(t, real(c[0].Round()), real(c[1].Round()), about)
			requireSame(t, imag(c[0].Round()), imag(c[1].Round()), about)
		}
	}
	var sum, inner exact.Complex
	exact.AddComplex(&sum, x)
	exact.AddInner(&inner, x, y)
	requireAll("by default", sum, inner)
	for _, k := range exact.Kernels() {
		sum, inner = exact.Complex{}, exact.Complex{}
		exact.AddComplexBy(k, &sum, x)
		exact.AddInnerBy(k, &inner, x, y)
		requireAll(k, sum, inner)
	}
}

// TestStridedExtremes has slices of no elements, and strides beyond their end.
func TestStridedExtremes(t *testing.T) {
	var a exact.Accumulator
	var c exact.Complex
	for _, stride := range []int{1, 2, 1000, math.MaxInt} {
		exact.AddStrided[float64](&a, nil, stride)
		exact.AddStrided(&a, []float32{}, stride)
		exact.AddProductsStrided(&a, nil, stride, []float64{}, 1)
		exact.AddProductsStrided[float32](&a, nil, 3, nil, stride)
	}
	exact.AddComplex[complex64](&c, nil)
	exact.AddComplex(&c, []complex128{})
	exact.AddInner(&c, nil, []complex64{})
	exact.AddInner[complex128](&c, nil, nil)
	require.Equal(t, exact.Accumulator{}, a)
	require.Equal(t, exact.Complex{}, c)

	x, y := []float64{3, nan, nan}, []float32{5, 7}
	exact.AddStrided(&a, x, math.MaxInt)
	exact.AddStrided(&a, y, math.MaxInt)
	exact.AddProductsStrided(&a, x, 3, x, math.MaxInt)
	exact.AddProductsStrided(&a, y, 2, y, math.MaxInt)
	requireSame(t, 3+5+9+25, a.Round())
}

// TestStridedPanics: nothing is added before.
func TestStridedPanics(t *testing.T) {
	var a exact.Accumulator
	var c exact.Complex
	for _, stride := range []int{0, -1, math.MinInt} {
		message := fmt.Sprintf("exact: stride %d is less than 1", stride)
		require.PanicsWithValue(t, message, func() { exact.AddStrided(&a, []float64{1}, stride) })
		require.PanicsWithValue(t, message, func() { exact.AddStrided[float32](&a, nil, stride) })
		require.PanicsWithValue(t, message, func() { exact.AddProductsStrided(&a, []float64{1}, 1, []float64{1}, stride) })
		require.PanicsWithValue(t, message, func() { exact.AddProductsStrided(&a, []float32{1}, stride, []float32{1}, 1) })
	}
	require.PanicsWithValue(t, "exact: products of 2 elements and of 3",
		func() { exact.AddProductsStrided(&a, make([]float32, 4), 2, make([]float32, 3), 1) })
	require.PanicsWithValue(t, "exact: products of 1 elements and of 0",
		func() { exact.AddProductsStrided(&a, []float64{1}, math.MaxInt, nil, math.MaxInt) })
	require.PanicsWithValue(t, "exact: inner product of 1 elements and 0",
		func() { exact.AddInner(&c, make([]complex64, 1), nil) })
	require.Panics(t, func() { a.AddProducts(make([]float64, 1000), make([]float64, 999)) })
	require.Equal(t, exact.Accumulator{}, a)
	require.Equal(t, exact.Complex{}, c)
}

func TestStridedAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	r := rand.New(rand.NewPCG(35, 36))
	x, u := draw(r, 4000, (*rand.Rand).NormFloat64), narrow(r, 4000, (*rand.Rand).NormFloat64)
	v, z, w := u[1000:], make([]complex128, 1000), make([]complex64, 1001)
	var a exact.Accumulator
	var c exact.Complex
	require.Zero(t, testing.AllocsPerRun(100, func() {
		exact.AddStrided(&a, x, 3)
		exact.AddStrided(&a, u, 1)
		exact.AddProductsStrided(&a, x, 2, x, 2)
		exact.AddProductsStrided(&a, u, 1, u, 1)
		exact.AddProductsStrided(&a, u[:len(v)], 1, v, 1)
		exact.AddComplex(&c, z)
		exact.AddInner(&c, z, z)
		exact.AddInner(&c, w, w)
		exact.AddInner(&c, w[1:], w[:len(w)-1])
	}))
}

func BenchmarkStrided(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{64, 4096} {
		benchmarkStrided(b, r, n)
	}
}

func benchmarkStrided(b *testing.B, r *rand.Rand, n int) {
	x := draw(r, 3*n, (*rand.Rand).NormFloat64)
	y := draw(r, 3*n, (*rand.Rand).NormFloat64)
	u, v, second := make([]float32, n), make([]float32, n), make([]float32, 2*n)
	z, w := paired[complex128](x[:2*n]), paired[complex128](y[:2*n])
	c64, d64 := paired[complex64](x[:2*n]), paired[complex64](y[:2*n])
	for i := range n {
		u[i], v[i], second[2*i] = float32(x[i]), float32(y[i]), float32(x[i])
	}
	var a exact.Accumulator
	var c exact.Complex
	for _, f := range []struct {
		name  string
		bytes int
		do    func()
	}{
		{"every third", 8 * n, func() { exact.AddStrided(&a, x, 3) }},
		{"products, every third", 16 * n, func() { exact.AddProductsStrided(&a, x, 3, y, 3) }},
		{"float32", 4 * n, func() { exact.AddStrided(&a, u, 1) }},
		{"float32, every second", 4 * n, func() { exact.AddStrided(&a, second, 2) }},
		{"products of float32", 8 * n, func() { exact.AddProductsStrided(&a, u, 1, v, 1) }},
		{"squares of float32", 4 * n, func() { exact.AddProductsStrided(&a, u, 1, u, 1) }},
		{"squares, every third", 8 * n, func() { exact.AddProductsStrided(&a, x, 3, x, 3) }},
		{"inner square of complex64", 8 * n, func() { exact.AddInner(&c, c64, c64) }},
		{"complex64", 8 * n, func() { exact.AddComplex(&c, c64) }},
		{"complex128", 16 * n, func() { exact.AddComplex(&c, z) }},
		{"inner product of complex128", 32 * n, func() { exact.AddInner(&c, z, w) }},
		{"inner product of complex64", 16 * n, func() { exact.AddInner(&c, c64, d64) }},
	} {
		b.Run(fmt.Sprintf("%s/%d", f.name, n), func(b *testing.B) {
			b.SetBytes(int64(f.bytes))
			for b.Loop() {
				f.do()
			}
		})
	}
}
