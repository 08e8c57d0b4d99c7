package exact_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
)

var (
	negZero = math.Copysign(0, -1)
	inf     = math.Inf(1)
	nan     = math.NaN()
)

const (
	tiny = math.SmallestNonzeroFloat64
	huge = math.MaxFloat64
)

// lengths are on both sides of what goes through tables and fills their bins.
var lengths = []int{0, 1, 2, 3, 17, 127, 128, 255, 256, 1000, 5000}

func TestSum(t *testing.T) {
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(5, 6))
			for _, n := range lengths {
				for range max(1, 300/(n+1)) {
					x := draw(r, n, source)
					requireSame(t, sumReference(x).round(), exact.Sum(x), x[:min(n, 20)])
				}
			}
		})
	}
}

func TestDot(t *testing.T) {
	for name, source := range sources {
		for other, second := range sources {
			t.Run(name+" "+other, func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewPCG(7, 8))
				for _, n := range lengths {
					for range max(1, 100/(n+1)) {
						x, y := draw(r, n, source), draw(r, n, second)
						requireSame(t, dotReference(x, y).round(), exact.Dot(x, y), x[:min(n, 20)], y[:min(n, 20)])
					}
				}
			})
		}
	}
}

// TestFloat32: a sum, or an inner product, of float32 is that of the same numbers.
func TestFloat32(t *testing.T) {
	rng := rand.New(rand.NewPCG(81, 82))
	for _, n := range []int{0, 1, 31, 64, 1025, 5000} {
		x, y, wx, wy := make([]float32, n), make([]float32, n), make([]float64, n), make([]float64, n)
		for i := range x {
			x[i], y[i] = float32(math.Ldexp(rng.NormFloat64(), rng.IntN(200)-100)), float32(rng.NormFloat64())
			wx[i], wy[i] = float64(x[i]), float64(y[i])
		}
		require.Equal(t, exact.Sum(wx), exact.Sum(x), "%d terms", n)
		require.Equal(t, exact.Dot(wx, wy), exact.Dot(x, y), "%d products", n)
	}
	require.Panics(t, func() { exact.Dot(make([]float32, 2), make([]float32, 3)) })
}

func TestDotOfDifferentLengths(t *testing.T) {
	require.Panics(t, func() { exact.Dot(make([]float64, 2), make([]float64, 3)) })
}

// TestSpecialSums has the sums that the comment of Round defines.
func TestSpecialSums(t *testing.T) {
	for _, c := range []struct {
		want  float64
		terms []float64
	}{
		{0, nil},
		{0, []float64{0}},
		{negZero, []float64{negZero}},
		{negZero, []float64{negZero, negZero, negZero}},
		{0, []float64{negZero, 0}},
		{0, []float64{1, negZero, -1}},
		{0, []float64{-tiny, tiny}},
		{0, []float64{1e300, 1, -1e300, -1}},
		{1, []float64{1e300, 1, -1e300}},
		{inf, []float64{inf, -huge, -huge}},
		{-inf, []float64{1, -inf, 5}},
		{nan, []float64{inf, -inf}},
		{nan, []float64{nan}},
		{nan, []float64{inf, math.Float64frombits(0xfff0000000000001), 3}},
		// What overflows on its way but not in the end.
		{huge, []float64{huge, huge, huge, -huge, -huge}},
		{inf, []float64{huge, huge}},
		{-inf, []float64{-huge, -huge}},
		// Half an ulp of the largest: a tie, which goes to even, that is infinity.
		{inf, []float64{huge, 0x1p970}},
		{huge, []float64{huge, 0x1p970, -tiny}},
		{huge, []float64{huge, 0x1p969}},
		{-inf, []float64{-huge, -0x1p970}},
		// Ties to even, and what breaks them.
		{1, []float64{1, 0x1p-53}},
		{1 + 0x1p-52, []float64{1, 0x1p-53, tiny}},
		{1 + 0x1p-52, []float64{1, 0x1p-53, 0x1p-63}},
		{1 + 0x1p-52, []float64{1, 0x1p-53, 0x1p-64}}, // bit 65, in the third limb as
		{1 + 0x1p-52, []float64{1, 0x1p-53, 0x1p-70}}, // the last bit there,
		{1 + 0x1p-52, []float64{1, 0x1p-53, 0x1p-71}}, // and the first of the fourth
		{1, []float64{1, 0x1p-53, -tiny}},
		{1 + 0x1p-51, []float64{1 + 0x1p-52, 0x1p-53}},
		{-1, []float64{-1, -0x1p-53}},
		{-1 - 0x1p-52, []float64{-1, -0x1p-53, -tiny}},
		{0x1p-1022, []float64{0x1p-1022 - tiny, tiny}},
		{-0x1p-1022, []float64{-0x1p-1022 + tiny, -tiny}},
		{1 - 0x1p-53, []float64{1, -0x1p-53}},
		{1, []float64{1, -0x1p-54}},
	} {
		requireSame(t, c.want, exact.Sum(c.terms), c.terms)
		var a exact.Accumulator
		for _, x := range c.terms {
			a.Add(x)
		}
		requireSame(t, c.want, a.Round(), c.terms)
		// The same as part of a slice that goes through the table, between zeros if that
		// does not matter to the result.
		zero := 0.
		if math.Signbit(c.want) && c.want == 0 {
			zero = negZero
		}
		long := make([]float64, 1000)
		for i := range long {
			long[i] = zero
		}
		copy(long[500:], c.terms)
		requireSame(t, c.want, exact.Sum(long), c.terms)
	}
}

// TestSpecialProducts has products that float64 does not hold.
func TestSpecialProducts(t *testing.T) {
	for _, c := range []struct {
		want float64
		x, y []float64
	}{
		{0, []float64{1e300, 1e300}, []float64{1e300, -1e300}},
		{1, []float64{1e300, 1e-300, 1e300, 1e-300, 1}, []float64{1e300, 1e-300, -1e300, -1e-300, 1}},
		{0, []float64{tiny}, []float64{tiny}},
		{negZero, []float64{-tiny}, []float64{tiny}}, // not zero, and rounds to it
		{0, []float64{-tiny, tiny}, []float64{tiny, tiny}},
		{0, []float64{tiny}, []float64{0.5}}, // a tie, to even
		{2 * tiny, []float64{3 * tiny}, []float64{0.5}},
		{tiny, []float64{tiny, tiny}, []float64{0.5, tiny}},
		{0, []float64{tiny, -tiny}, []float64{0.5, tiny}},
		{inf, []float64{huge}, []float64{huge}},
		{-inf, []float64{-huge}, []float64{huge}},
		{huge, []float64{huge, huge, huge}, []float64{huge, 1, -huge}},
		{nan, []float64{inf}, []float64{0}},
		{nan, []float64{negZero}, []float64{-inf}},
		{nan, []float64{nan}, []float64{1}},
		{nan, []float64{0}, []float64{nan}},
		{nan, []float64{inf, inf}, []float64{1, -tiny}},
		{-inf, []float64{inf}, []float64{-tiny}},
		{inf, []float64{-inf}, []float64{-inf}},
		{negZero, []float64{0}, []float64{-1}},
		{negZero, []float64{negZero, -1}, []float64{tiny, 0}},
		{0, []float64{negZero, 0}, []float64{1, 1}},
		{0, []float64{negZero}, []float64{-1}},
	} {
		requireSame(t, c.want, exact.Dot(c.x, c.y), c)
		requireSame(t, c.want, exact.Dot(c.y, c.x), c)
		// The same where it goes through the table.
		x, y := make([]float64, 1000), make([]float64, 1000)
		for i := range x {
			y[i] = 1
			if c.want == 0 && math.Signbit(c.want) {
				x[i] = negZero
			}
		}
		copy(x[500:], c.x)
		copy(y[500:], c.y)
		requireSame(t, c.want, exact.Dot(x, y), c)
	}
}

// TestCancellation adds terms whose sum is far smaller than they are.
func TestCancellation(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 200 {
		n := 1 + r.IntN(1000)
		x := draw(r, n, finite)
		for i := range n {
			x = append(x, -x[i])
		}
		rest := draw(r, 1+r.IntN(3), finite)
		x = append(x, rest...)
		r.Shuffle(len(x), func(i, j int) { x[i], x[j] = x[j], x[i] })
		requireSame(t, sumReference(rest).round(), exact.Sum(x))
	}
}

// TestIllConditionedDot takes inner products as Ogita, Rump and Oishi make them
// (Accurate sum and dot product, 2005, algorithm 6.1), with condition numbers beyond
// 2^1000: plain arithmetic has no digit of them.
func TestIllConditionedDot(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, exponent := range []int{10, 50, 100, 300, 500} {
		n := 400
		x, y := make([]float64, n), make([]float64, n)
		for i := range n / 2 {
			x[i] = math.Ldexp(2*r.Float64()-1, r.IntN(exponent))
			y[i] = math.Ldexp(2*r.Float64()-1, r.IntN(exponent))
		}
		sum := dotReference(x[:n/2], y[:n/2])
		for i := n / 2; i < n; i++ {
			// y[i] takes away what there is so far, as far as one float64 can.
			x[i] = math.Ldexp(1+r.Float64(), r.IntN(exponent)*(n-i)/n)
			quotient, _ := new(big.Float).Quo(&sum.sum, big.NewFloat(x[i])).Float64()
			y[i] = -quotient
			sum.addProduct(x[i], y[i])
		}
		requireSame(t, sum.round(), exact.Dot(x, y), exponent)
		var absolute reference
		for i := range x {
			absolute.addProduct(math.Abs(x[i]), math.Abs(y[i]))
		}
		require.Greater(t, absolute.sum.MantExp(nil)-sum.sum.MantExp(nil), 1000, "the condition number's exponent")
	}
}

// TestPartitions divides terms among accumulators in every way: bits, words and
// encodings are the same.
func TestPartitions(t *testing.T) {
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(13, 14))
			for range 20 {
				n := r.IntN(2000)
				x, y := draw(r, n, source), draw(r, n, source)
				var whole exact.Accumulator
				whole.AddSlice(x)
				whole.AddProducts(x, y)
				want, words := encoded(t, &whole), wordsOf(&whole)
				reference := sumReference(x)
				for i := range x {
					reference.addProduct(x[i], y[i])
				}
				requireSame(t, reference.round(), whole.Round())
				for range 5 {
					merged := mergeParts(r, x, y)
					require.Equal(t, want, encoded(t, merged))
					require.Equal(t, words, wordsOf(merged))
					requireSame(t, whole.Round(), merged.Round())
				}
			}
		})
	}
}

// mergeParts adds the terms of x, and the products of x and y, in random order to
// some accumulators, of which some may stay empty, one by one or as slices; and
// merges these in random order.
func mergeParts(r *rand.Rand, x, y []float64) *exact.Accumulator {
	x, y = slices.Clone(x), slices.Clone(y)
	r.Shuffle(len(x), func(i, j int) { x[i], x[j], y[i], y[j] = x[j], x[i], y[j], y[i] })
	parts := make([]exact.Accumulator, 1+r.IntN(12))
	for alone := r.IntN(len(x) + 1); alone > 0; alone-- {
		parts[r.IntN(len(parts))].Add(x[0])
		parts[r.IntN(len(parts))].AddProduct(x[0], y[0])
		x, y = x[1:], y[1:]
	}
	for len(x) > 0 {
		n := 1 + r.IntN(len(x))
		parts[r.IntN(len(parts))].AddSlice(x[:n])
		parts[r.IntN(len(parts))].AddProducts(x[:n], y[:n])
		x, y = x[n:], y[n:]
	}
	for len(parts) > 1 {
		i, last := r.IntN(len(parts)-1), len(parts)-1
		parts[i].Merge(&parts[last])
		parts = parts[:last]
	}
	return &parts[0]
}

// TestDoubling merges a sum with itself until it is that of 2^90 terms, of which the
// carries go where no loop could take them.
func TestDoubling(t *testing.T) {
	for _, x := range []float64{1, -1, huge, -huge, tiny, -tiny, math.Pi, -0x1.fffffffffffffp-1} {
		t.Run(fmt.Sprint(x), func(t *testing.T) {
			var a, squares exact.Accumulator
			a.Add(x)
			squares.AddProduct(x, math.Abs(x))
			sum := sumReference([]float64{x})
			product := dotReference([]float64{x}, []float64{math.Abs(x)})
			for range 88 {
				a.Merge(&a)
				squares.Merge(&squares)
				sum.sum.Add(&sum.sum, &sum.sum)
				product.sum.Add(&product.sum, &product.sum)
				requireSame(t, sum.round(), a.Round())
				requireSame(t, product.round(), squares.Round())
			}
			// And back again: what is infinite when rounded was kept exactly.
			var back exact.Accumulator
			back.AddProduct(-x, math.Abs(x))
			for range 88 {
				back.Merge(&back)
			}
			squares.Merge(&back)
			squares.Add(1)
			requireSame(t, 1, squares.Round())
		})
	}
}

// TestBeyondRange doubles a sum until it is out of range, and counts as infinite.
func TestBeyondRange(t *testing.T) {
	for _, sign := range []float64{1, -1} {
		var a exact.Accumulator
		a.AddProduct(huge, sign*huge)
		for range 200 {
			a.Merge(&a)
		}
		requireSame(t, sign*inf, a.Round())
		var back exact.Accumulator
		require.NoError(t, back.UnmarshalBinary(encoded(t, &a)))
		requireSame(t, sign*inf, back.Round())
	}
}

// TestOrderBeyondRange shows what the comment of Merge says: beyond the range, the order decides what a sum is,
// and how it is written.
func TestOrderBeyondRange(t *testing.T) {
	quarter := func(sign float64) *exact.Accumulator { // ±2^2134, of a range that ends at ±2^2136
		var a exact.Accumulator
		a.AddProduct(0x1p1023, sign*0x1p1023)
		for range 2134 - 2046 {
			a.Merge(&a)
		}
		return &a
	}
	type times struct {
		n int
		*exact.Accumulator
	}
	merged := func(parts ...times) *exact.Accumulator {
		var a exact.Accumulator
		for _, p := range parts {
			for range p.n {
				a.Merge(p.Accumulator)
			}
			if p.n == 0 {
				a.Round()
			}
		}
		return &a
	}
	var round times
	for _, sign := range []float64{1, -1} {
		var some exact.Accumulator
		some.Add(1)
		up, down, one := quarter(sign), quarter(-sign), times{1, &some}

		// The terms of one sum: it is infinite if carries were propagated while it was beyond the range.
		require.Equal(t, encoded(t, merged(times{3, up})), encoded(t, merged(times{5, up}, times{2, down})))
		requireSame(t, sign*inf, merged(times{5, up}, round, times{2, down}).Round())
		requireSame(t, 0, merged(times{5, up}, times{5, down}).Round())
		requireSame(t, nan, merged(times{5, up}, round, times{5, down}).Round())

		// Both infinite, but one has a finite part.
		first, last := merged(one, times{5, up}), merged(times{5, up}, round, one)
		requireSame(t, sign*inf, first.Round())
		requireSame(t, sign*inf, last.Round())
		require.NotEqual(t, encoded(t, first), encoded(t, last))
		require.NotEqual(t, wordsOf(first), wordsOf(last))

		// Up to the ends of the range there is nothing of that.
		want := encoded(t, merged(times{3, up}, one))
		require.Equal(t, want, encoded(t, merged(one, round, times{3, up}, round, times{6, down}, round, times{6, up})))
		require.Equal(t, want, encoded(t, merged(times{3, down}, round, times{6, up}, round, one)))
	}
	// The lower end is within the range, the upper one beyond it.
	requireSame(t, 1, merged(times{4, quarter(-1)}, round, times{4, quarter(1)}, times{1, sumOneByOne([]float64{1})}).Round())
	requireSame(t, inf, merged(times{4, quarter(1)}, round, times{4, quarter(-1)}).Round())
}

// TestManyAdds adds the same terms often enough that all limbs carry several times,
// without a call that would carry earlier.
func TestManyAdds(t *testing.T) {
	for _, x := range []float64{
		0x1.fffffffffffffp13, -0x1.fffffffffffffp13, // adds more than others to one limb, 2^52-1
		0x1.fffffffffffffp52, huge, -huge, 0x1.fffffffffffffp-1022,
	} {
		var one exact.Accumulator
		slice := make([]float64, 100_000)
		for i := range slice {
			slice[i] = x
			one.Add(x)
		}
		sum := new(big.Float).SetPrec(precision).SetFloat64(x)
		want, _ := sum.Mul(sum, big.NewFloat(float64(len(slice)))).Float64()
		requireSame(t, want, one.Round())
		for _, k := range exact.Kernels() {
			var bulk exact.Accumulator
			k.AddSlice(&bulk, slice)
			require.Equal(t, encoded(t, &one), encoded(t, &bulk), k)
		}

		// Sums that have not carried, merged, and terms added to what that gives.
		var all exact.Accumulator
		for range 50 {
			var part exact.Accumulator
			for _, v := range slice[:2047] {
				part.Add(v)
			}
			all.Merge(&part)
			all.Merge(&part)
			for _, v := range slice[:3000] {
				all.Add(v)
			}
		}
		sum.SetFloat64(x)
		want, _ = sum.Mul(sum, big.NewFloat(50*(2*2047+3000))).Float64()
		requireSame(t, want, all.Round())
	}
}

// TestCarriesInTime adds a term, alone and as a product with 1, so often that limbs overflow
// unless they carry: around the number of additions after which that is due, in one sum and in
// two that are merged.
func TestCarriesInTime(t *testing.T) {
	const x, more = 0x1.fffffffffffffp13, 5000
	kinds := map[string]func(i int) bool{ // which terms are products
		"terms":            func(int) bool { return false },
		"products":         func(int) bool { return true },
		"mixed":            func(i int) bool { return i%2 == 0 },
		"behind a product": func(i int) bool { return i == 0 },
	}
	add := func(a *exact.Accumulator, n int, product func(i int) bool) {
		for i := range n {
			if product(i) {
				a.AddProduct(x, 1)
			} else {
				a.Add(x)
			}
		}
	}
	for name, before := range kinds {
		for then, after := range kinds {
			for _, n := range []int{1000, 2046, 2047, 2048} {
				for _, m := range []int{-1, 0, 1, 1046, 1047, 2047} { // -1: nothing is merged
					var a, b exact.Accumulator
					add(&a, n, before)
					if m >= 0 {
						add(&b, m, before)
						a.Merge(&b)
					}
					add(&a, more, after)
					count := new(big.Float).SetInt64(int64(n + max(m, 0) + more))
					want, _ := count.Mul(count.SetPrec(precision), big.NewFloat(x)).Float64()
					requireSame(t, want, a.Round(), fmt.Sprintf("%d %s, merged with %d, then %d %s", n, name, m, more, then))
				}
			}
		}
	}
}

// TestLongProducts adds more products of one exponent than a bin of the table takes, which only the plain
// instructions fill.
func TestLongProducts(t *testing.T) {
	x := make([]float64, 1<<22+1000)
	for i := range x {
		x[i] = 0x1.fffffffffffffp0
	}
	square := new(big.Float).SetPrec(precision).SetFloat64(x[0])
	square.Mul(square, square)
	want, _ := square.Mul(square, big.NewFloat(float64(len(x)))).Float64()
	for _, k := range exact.Kernels() {
		var a exact.Accumulator
		k.AddProducts(&a, x, x)
		requireSame(t, want, a.Round(), k)
	}
}

func TestReset(t *testing.T) {
	a := *filled()
	a.Add(nan)
	a.Reset()
	require.Equal(t, exact.Accumulator{}, a)
}

// TestCopy says that an accumulator is a value.
func TestCopy(t *testing.T) {
	a := *filled()
	before := encoded(t, &a)
	b := a
	b.Add(1)
	b.AddSlice(make([]float64, 1000))
	require.Equal(t, before, encoded(t, &a))
	require.NotEqual(t, before, encoded(t, &b))
}

// TestGoroutines sums the same slices in several goroutines, each into an accumulator of its own, which are
// merged as they come. The tables of all are from the same pools.
func TestGoroutines(t *testing.T) {
	const goroutines, rounds = 8, 10
	r := rand.New(rand.NewPCG(47, 48))
	x, y := patchwork(r, 6000), patchwork(r, 6000)
	one := sumOneByOne(x, x, y)
	var want exact.Accumulator
	for range goroutines * rounds {
		want.Merge(one)
	}
	for _, k := range exact.Kernels() {
		var sum exact.Accumulator
		var mu sync.Mutex
		var group sync.WaitGroup
		for range goroutines {
			group.Go(func() {
				for range rounds {
					var a exact.Accumulator
					k.AddSlice(&a, x)
					k.AddProducts(&a, x, y)
					mu.Lock()
					sum.Merge(&a)
					mu.Unlock()
				}
			})
		}
		group.Wait()
		require.Equal(t, encoded(t, &want), encoded(t, &sum), k)
	}
}

// TestMergeLeavesOther says that the argument of Merge keeps its value and form.
func TestMergeLeavesOther(t *testing.T) {
	var a, b exact.Accumulator
	for range 2047 {
		a.Add(-3)
		b.Add(-3)
	}
	before := b
	a.Merge(&b)
	require.Equal(t, before, b)
	requireSame(t, -3*2*2047, a.Round())
}
