package exact_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/exact/internal/rounding"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// sumOneByOne adds one term after the other, and then one product, by no kernel and no table.
func sumOneByOne(x []float64, products ...[]float64) *exact.Accumulator {
	var a exact.Accumulator
	for _, v := range x {
		a.Add(v)
	}
	for i := 0; i+1 < len(products); i += 2 {
		for j, v := range products[i] {
			a.AddProduct(v, products[i+1][j])
		}
	}
	return &a
}

// requireKernels says that all kernels have the sum of x, and the products of x and y, to the
// last bit.
func requireKernels(t testing.TB, x, y []float64, about ...any) {
	t.Helper()
	sum, dot := encoded(t, sumOneByOne(x)), encoded(t, sumOneByOne(nil, x, y))
	both := encoded(t, sumOneByOne(x, x, y))
	for _, k := range exact.Kernels() {
		var a, b exact.Accumulator
		k.AddSlice(&a, x)
		require.Equal(t, sum, encoded(t, &a), "sum %v of %d %v", k, len(x), about)
		k.AddProducts(&b, x, y)
		require.Equal(t, dot, encoded(t, &b), "products %v of %d %v", k, len(x), about)
	}
	for _, k := range exact.Kernels()[1:] {
		var c exact.Accumulator
		k.AddLevels(&c, x, y)
		require.Equal(t, both, encoded(t, &c), "levels %v of %d %v", k, len(x), about)
	}
}

// As many terms as there is room for: each as large as the first level expects, of one sign, with all bits, and
// small ones, for which the lowest level is there. The bases are in all places between two levels.
func TestKernelsOfLevelsAreFull(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 32))
	for _, c := range []struct {
		low            int
		sums, products bool // have levels enough
	}{
		{0, true, true},
		{60, true, true},
		{65, true, true},
		{239, true, true},
		{244, false, true},
		{520, false, true},
		{610, false, false},
	} {
		for base := -200; base <= 500; base += 31 {
			x, y := make([]float64, exact.WideBlock), make([]float64, exact.WideBlock)
			for i := range x {
				x[i], y[i] = math.Ldexp(2-0x1p-52, base), 2-0x1p-52
				if i%16 == 15 {
					x[i] = math.Ldexp(1+r.Float64(), base+1-c.low)
				}
			}
			requireKernels(t, x, y, c.low, base)
			for _, k := range exact.Kernels()[1:] {
				var a exact.Accumulator
				terms, pairs := k.AddLevels(&a, x, y)
				require.Equal(t, c.sums, terms == 0, "%v %+v %d", k, c, base)
				require.Equal(t, c.products, pairs == 0, "%v %+v %d", k, c, base)
			}
		}
	}
}

// Levels take zeroes of either sign, alone and between others, but no product that is not zero and is rounded to
// it, or whose error is, and nothing that is not finite.
func TestKernelsOfLevelsAndZeroes(t *testing.T) {
	for _, c := range []struct {
		x, y float64
		take bool
	}{
		{0, 1, true},
		{math.Copysign(0, -1), 1, true},
		{0x1p-1074, 1, true},
		{0x1p-600, 0x1p-600, false},
		{0x1p-1074, 0x1p-1074, false},
		{0x1p-500 + 0x1p-552, 0x1p-500 + 0x1p-552, false},
		{math.Inf(1), 0, false},
		{math.NaN(), 1, false},
		{math.MaxFloat64, 2, false},
		{math.MaxFloat64, 1, false},
	} {
		for _, other := range []float64{0, 0x1p-500, -0x1p-540} {
			for _, n := range []int{1, 63, 64, 130, exact.WideBlock} {
				x, y := make([]float64, n), make([]float64, n)
				for i := range x {
					x[i], y[i] = other, 0x1p-20
				}
				x[n/2], y[n/2] = c.x, c.y
				requireKernels(t, x, y, c, other, n)
				for _, k := range exact.Kernels()[1:] {
					var a exact.Accumulator
					_, products := k.AddLevels(&a, x, y)
					if other == 0 {
						require.Equal(t, c.take, products == 0, "%v %+v %d", k, c, n)
					}
				}
			}
		}
	}
}

// Levels that one block has found are tried for the next one before it is looked at. Here it has, at some place,
// what they have no room for, or numbers that fill them, and whose total is rounded.
func TestKernelsOfLevelsAndTheNextBlock(t *testing.T) {
	r := rand.New(rand.NewPCG(49, 50))
	for _, c := range []struct{ x, y float64 }{
		{0x1p-300, 1},
		{0x1p300, 1},
		{0x1p-600, 0x1p-600},
		{0x1p-500 + 0x1p-552, 0x1p-500 + 0x1p-552},
		{tiny, -tiny},
		{huge, huge},
		{inf, 1},
		{-inf, 0},
		{nan, 1},
		{math.Float64frombits(0x7ff0000000000001), 1},
	} {
		for _, place := range []int{0, 1, 9, 100, exact.WideBlock - 1} {
			x, y := draw(r, 2*exact.WideBlock, spread(40)), draw(r, 2*exact.WideBlock, spread(1))
			x[exact.WideBlock+place], y[exact.WideBlock+place] = c.x, c.y
			requireKernels(t, x, y, c, place)
		}
	}
	x, y := draw(r, 2*exact.WideBlock, spread(40)), draw(r, 2*exact.WideBlock, spread(1))
	clear(x[exact.WideBlock:])
	for i := range 8 { // an element of a register each; the first level begins at 1.5·2^13 for terms, 1.5·2^14 for products
		x[exact.WideBlock+i], y[exact.WideBlock+i] = 0x1.cdp11, 2
	}
	x[exact.WideBlock] += 0x1p-39
	requireKernels(t, x, y)
}

// spread draws numbers of so many exponents, below 2.
func spread(exponents int) func(r *rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return math.Ldexp(1+r.Float64(), -r.IntN(exponents)) }
}

// Products that take more levels than a block may use, where a few products do not show it: some that are next
// to each other are far below the others, or far above.
func TestKernelsOfTooManyLevels(t *testing.T) {
	r := rand.New(rand.NewPCG(51, 52))
	for _, exponent := range []int{-900, -600, -200, 200, 600, 900} {
		for _, from := range []int{32, 64, exact.WideBlock - 64} {
			x, y := draw(r, exact.WideBlock, spread(200)), draw(r, exact.WideBlock, spread(1))
			for i := range 32 {
				x[from+i] = math.Ldexp(1+r.Float64(), exponent)
			}
			requireKernels(t, x, y, exponent, from)
			for _, k := range exact.Kernels()[1:] {
				var a exact.Accumulator
				_, products := k.AddLevels(&a, x, y)
				require.Equal(t, exponent*exponent > 200*200, products > 0, "%v %d %d", k, exponent, from)
			}
		}
	}
}

// Every length up to some turns of the longest loop, and every place in a line of the cache.
func TestKernelsOfEveryLength(t *testing.T) {
	most := 330
	if testing.Short() {
		most = 100
	}
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(21, 22))
			x, y := draw(r, most+8, source), draw(r, most+8, source)
			for n := range most + 1 {
				requireKernels(t, x[n%8:][:n], y[n/8%8:][:n], n%8)
			}
			for offset := range 8 {
				for other := range 8 {
					requireKernels(t, x[offset:][:77], y[other:][:77], offset, other)
				}
			}
		})
	}
}

// Lengths about those of blocks and stretches.
func TestKernelsOfLongSlices(t *testing.T) {
	lengths := []int{exact.SumBlock, exact.DotStretch, exact.SumStretch, 2 * exact.SumStretch}
	if testing.Short() {
		lengths = lengths[:2]
	}
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(23, 24))
			for _, n := range lengths {
				for _, more := range []int{-1, 0, 1, 37} {
					requireKernels(t, draw(r, n+more, source), draw(r, n+more, source))
				}
			}
		})
	}
}

// patchwork draws slices whose parts are of several kinds, so that kernels hand back
// blocks at any place, and go on.
func patchwork(r *rand.Rand, n int) []float64 {
	names := []string{"uniform", "normal", "finite", "edges", "bits", "tiny", "huge", "integers", "zeros"}
	x := make([]float64, 0, n)
	for len(x) < n {
		source := sources[names[r.IntN(len(names))]]
		scale := math.Ldexp(1, r.IntN(120)-60)
		for range min(n-len(x), 1<<r.IntN(13)) {
			x = append(x, source(r)*scale)
		}
	}
	return x
}

func TestKernelsOfPatchwork(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 6
	}
	r := rand.New(rand.NewPCG(25, 26))
	for i := range rounds {
		n := r.IntN(20_000)
		requireKernels(t, patchwork(r, n), patchwork(r, n), i)
	}
}

// adversarial draws up to most pairs of terms that sums and products lose bits of: far apart,
// nearly cancelled, with carries through many limbs, at both ends of the range.
func adversarial(r *rand.Rand, most int) (x, y []float64) {
	n := 1 + r.IntN(most)
	x, y = make([]float64, n), make([]float64, n)
	middle, width := r.IntN(2000)-1000, 1+r.IntN(1<<r.IntN(10))
	term := func() float64 {
		mantissa := r.Uint64() >> r.IntN(60) << r.IntN(60)
		switch r.IntN(4) {
		case 0:
			mantissa = math.MaxUint64 << r.IntN(52) // carries
		case 1:
			mantissa = 1 << r.IntN(52)
		}
		e := middle + r.IntN(width) - width/2
		v := math.Float64frombits(mantissa&(1<<52-1) | uint64(min(max(e+1023, 0), 2046))<<52)
		if r.IntN(2) == 0 {
			return -v
		}
		return v
	}
	for i := range x {
		x[i], y[i] = term(), term()
		switch j := r.IntN(i + 1); r.IntN(5) {
		case 0:
			x[i], y[i] = -x[j], y[j]
		case 1:
			x[i], y[i] = y[j], math.Nextafter(x[j], 0)
		}
	}
	return x, y
}

// adversarialParts draws up to most pairs of terms: several of what adversarial draws, each of its own
// exponents, so that kernels go from blocks to levels and integers, and back, at any place. Then, each in some
// of the slices, most of the second half cancels most of the first; numbers that are special are anywhere; and
// the sum, or that of the products, is made half-way between two numbers, or next to that.
func adversarialParts(r *rand.Rand, most int) (x, y []float64) {
	for n := 1 + r.IntN(most); len(x) < n; {
		px, py := adversarial(r, min(1<<r.IntN(12), n-len(x)))
		x, y = append(x, px...), append(y, py...)
	}
	if half := len(x) / 2; r.IntN(2) == 0 {
		for i, few := range r.Perm(half) {
			if few > r.IntN(4) {
				x[half+i], y[half+i] = -x[i], y[i]
			}
		}
	}
	if r.IntN(3) == 0 {
		for range 1 + r.IntN(4) {
			i, j := r.IntN(len(x)), r.IntN(len(x))
			x[i], y[[2]int{i, j}[r.IntN(2)]] = special[r.IntN(len(special))], special[r.IntN(len(special))]
		}
	}
	if ties := r.IntN(3); ties > 0 {
		before := len(x)
		x, y = appendTie(r, x, y, ties == 2)
		for i := before; i < len(x) && r.IntN(8) > 0; i++ { // of its terms, some are elsewhere
			j := r.IntN(i)
			x[i], x[j], y[i], y[j] = x[j], x[i], y[j], y[i]
		}
	}
	return x, y
}

var special = []float64{inf, -inf, nan, 0, negZero, tiny, -tiny, huge, -huge, 0x1p-1022}

// appendTie appends terms that make the sum of x, or of the products, a tie, or that and the least there is.
func appendTie(r *rand.Rand, x, y []float64, products bool) (_, _ []float64) {
	sum, least := sumReference(x), -1074
	if products {
		sum, least = dotReference(x, y), -2148
	}
	near := math.Abs(sum.round())
	if math.IsNaN(near) || math.IsInf(near, 0) || !products && near < 0x1p-1020 { // no term is half of what is there
		return x, y
	}
	exponent := -1021 // of subnormal numbers, and zero
	if near >= 0x1p-1022 {
		_, exponent = math.Frexp(near)
	}
	tie := new(big.Float).SetPrec(precision).SetFloat64(near)
	tie.Add(tie, new(big.Float).SetMantExp(big.NewFloat(1), exponent-54))
	if sum.sum.Signbit() {
		tie.Neg(tie)
	}
	tie.Add(tie, new(big.Float).SetMantExp(big.NewFloat(float64(r.IntN(3)-1)), least))
	for left := tie.Sub(tie, &sum.sum); left.Sign() != 0; {
		part := new(big.Float).SetPrec(53).SetMode(big.ToZero).Set(left)
		left.Sub(left, part)
		shift := max(part.MantExp(nil)-53, least)
		f, _ := part.SetMantExp(part, -shift).Float64() // an integer
		if x = append(x, math.Ldexp(f, shift)); products {
			x[len(x)-1] = math.Ldexp(f, shift/2)
			y = append(y, math.Ldexp(1, shift-shift/2))
		} else {
			y = append(y, 1)
		}
	}
	return x, y
}

// TestKernelsAgainstBig compares with math/big, a million vectors if it may be long, and all bits of their sums.
func TestKernelsAgainstBig(t *testing.T) {
	vectors := 4000
	switch {
	case need.WantLong():
		vectors = 1_000_000
	case testing.Short():
		vectors = 400
	}
	againstBig(t, vectors, func(r *rand.Rand) (x, y []float64) { return adversarial(r, 100) })
}

// TestKernelsOfPartsAgainstBig does so for slices that reach all blocks, levels and tables.
func TestKernelsOfPartsAgainstBig(t *testing.T) {
	vectors := 80
	switch {
	case need.WantLong():
		vectors = 8000
	case testing.Short():
		vectors = 16
	}
	againstBig(t, vectors, func(r *rand.Rand) (x, y []float64) { return adversarialParts(r, 5000) })
}

// againstBig compares sums of so many pairs of slices with math/big, by each kernel, and as a second slice of
// an accumulator, too.
func againstBig(t *testing.T, vectors int, draw func(r *rand.Rand) (x, y []float64)) {
	const parts = 8
	for part := range parts {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(27, uint64(part)))
			for range vectors / parts {
				x, y := draw(r)
				sum, dot := sumReference(x), dotReference(x, y)
				both := sum.plus(dot)
				cut := r.IntN(len(x) + 1)
				for _, k := range exact.Kernels() {
					var a, b exact.Accumulator
					k.AddSlice(&a, x)
					requireExact(t, sum, &a, k, x)
					k.AddProducts(&b, x, y)
					requireExact(t, dot, &b, k, x, y)
					b.Reset()
					k.AddProducts(&b, x[:cut], y[:cut])
					k.AddSlice(&b, x[:cut])
					k.AddSlice(&b, x[cut:])
					k.AddProducts(&b, x[cut:], y[cut:])
					requireExact(t, both, &b, k, cut, x, y)
				}
				for _, k := range exact.Kernels()[1:] {
					var a exact.Accumulator
					k.AddLevels(&a, x, y)
					requireExact(t, both, &a, k, x, y)
				}
			}
		})
	}
}

// TestKernelsInAnyEnvironment says that neither the rounding mode of the caller, nor subnormals
// that count as zero, nor exceptions that have happened, change a sum; and that a kernel
// leaves them as they are.
func TestKernelsInAnyEnvironment(t *testing.T) {
	if rounding.SetEnvironment == nil {
		return // no kernel either
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const (
		clean                       = 0x1f80
		down, up, zero, flush, deny = 1 << 13, 2 << 13, 3 << 13, 1 << 15, 1 << 6
		raised                      = 0x3f
	)
	r := rand.New(rand.NewPCG(29, 30))
	for name, source := range sources {
		x, y, u, v := draw(r, 1000, source), draw(r, 1000, source), narrow(r, 1000, source), narrow(r, 1000, source)
		z, w := complexOf(u), complexOf(v)
		for _, environment := range []uint32{clean | down, clean | up, clean | zero, clean | flush | deny, clean | raised} {
			for _, k := range exact.Kernels() {
				var a exact.Accumulator
				var c exact.Complex
				before := rounding.SetEnvironment(environment)
				k.AddSlice(&a, x)
				k.AddProducts(&a, x, y)
				exact.AddStridedBy(k, &a, u, 1)
				exact.AddStridedBy(k, &a, u, 2)
				exact.AddProductsStridedBy(k, &a, u, 1, u, 1)
				exact.AddProductsStridedBy(k, &a, u, 1, v, 1)
				exact.AddComplexBy(k, &c, z)
				exact.AddInnerBy(k, &c, z, z)
				exact.AddInnerBy(k, &c, z, w)
				after := rounding.SetEnvironment(before)
				require.Equal(t, environment&^raised, after&^raised, name)
				wideU, wideV := widened(u, 1), widened(v, 1)
				want := sumOneByOne(slices.Concat(x, wideU, widened(u, 2)), x, y, wideU, wideU, wideU, wideV)
				require.Equal(t, encoded(t, want), encoded(t, &a), "%s %v %#x", name, k, environment)
				re, im, turned := partsOf(z)
				want = sumOneByOne(re, wideU, wideU, wideU, wideV)
				require.Equal(t, encoded(t, want), encoded(t, &c.Re), "%s %v %#x", name, k, environment)
				want = sumOneByOne(im, turned, wideU, turned, wideV)
				require.Equal(t, encoded(t, want), encoded(t, &c.Im), "%s %v %#x", name, k, environment)
			}
		}
	}
}

// complexOf takes the numbers of u, bit by bit, as real and imaginary parts, by turns.
func complexOf(u []float32) []complex64 {
	z := make([]complex64, len(u)/2)
	for i := range z {
		z[i] = complex(u[2*i], u[2*i+1])
	}
	return z
}

// partsOf returns the parts of z, and the factor by which the imaginary part of an inner product is one of reals.
func partsOf(z []complex64) (re, im, turned []float64) {
	for _, v := range z {
		re, im = append(re, float64(real(v))), append(im, float64(imag(v)))
		turned = append(turned, -float64(imag(v)), float64(real(v)))
	}
	return re, im, turned
}

// TestExtent: the kernels find the exponents of what is not zero, whatever its sign and its place.
func TestExtent(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	exponent := func(v float64) int { return int(math.Float64bits(v) >> 52 & 0x7ff) }
	of := func(x, y []float64) (low, high int) {
		low = math.MaxInt
		for i, v := range x {
			e := exponent(v)
			if y != nil {
				e += exponent(y[i])
			}
			if v != 0 && (y == nil || y[i] != 0) {
				low, high = min(low, e), max(high, e)
			}
		}
		return low, high
	}
	for n := range 40 {
		for range 100 {
			x, y := draw(r, n, finite), draw(r, n, finite)
			for i := range x {
				switch r.IntN(5) {
				case 0:
					x[i] = math.Copysign(0, x[i])
				case 1:
					y[i] = math.Copysign(0, y[i])
				case 2:
					x[i] = math.Copysign(math.SmallestNonzeroFloat64, x[i])
				}
			}
			for _, k := range exact.Kernels()[1:] {
				for _, z := range [][]float64{nil, y, x} {
					low, high := k.Extent(x, z)
					wantLow, wantHigh := of(x, z)
					if wantLow > wantHigh {
						require.Greater(t, low, high, "%v %v", x, z)
						continue
					}
					require.Equal(t, []int{wantLow, wantHigh}, []int{low, high}, "%v %v", x, z)
				}
			}
		}
	}
}
