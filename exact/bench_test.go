package exact_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/exact/internal/rounding"
)

// distributions are terms as programs have them, by the width of their exponents.
var distributions = []struct {
	name string
	draw func(r *rand.Rand) float64
}{
	{"one exponent", func(r *rand.Rand) float64 { return 1 + r.Float64() }},
	{"uniform", func(r *rand.Rand) float64 { return r.Float64() }},
	{"normal", func(r *rand.Rand) float64 { return r.NormFloat64() }},
	{"200 exponents", func(r *rand.Rand) float64 { return math.Ldexp(r.NormFloat64(), r.IntN(200)-100) }},
	{"all exponents", func(r *rand.Rand) float64 { return finite(r) }},
}

// finite draws from all finite float64.
func finite(r *rand.Rand) float64 {
	for {
		if v := math.Float64frombits(r.Uint64()); !math.IsNaN(v) && !math.IsInf(v, 0) {
			return v
		}
	}
}

func draw(r *rand.Rand, n int, draw func(r *rand.Rand) float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = draw(r)
	}
	return x
}

var sink float64

var benchLengths = []int{16, 64, 256, 4096, 1 << 20}

func BenchmarkAddSlice(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range distributions {
		for _, n := range benchLengths {
			x := draw(r, n, d.draw)
			for _, k := range exact.Kernels() {
				b.Run(fmt.Sprintf("%s/%d/%v", d.name, n, k), func(b *testing.B) {
					b.SetBytes(int64(8 * n))
					b.ReportAllocs()
					var a exact.Accumulator
					for b.Loop() {
						k.AddSlice(&a, x)
					}
					sink = a.Round()
				})
			}
		}
	}
}

func BenchmarkAddProducts(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range distributions {
		for _, n := range benchLengths {
			x, y := draw(r, n, d.draw), draw(r, n, d.draw)
			for _, k := range exact.Kernels() {
				b.Run(fmt.Sprintf("%s/%d/%v", d.name, n, k), func(b *testing.B) {
					b.SetBytes(int64(16 * n))
					b.ReportAllocs()
					var a exact.Accumulator
					for b.Loop() {
						k.AddProducts(&a, x, y)
					}
					sink = a.Round()
				})
			}
		}
	}
}

// BenchmarkAddProductsStrided has products of every third element.
func BenchmarkAddProductsStrided(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range benchLengths[1:4] {
		x, y := draw(r, 3*n, (*rand.Rand).NormFloat64), draw(r, 3*n, (*rand.Rand).NormFloat64)
		for _, k := range exact.Kernels() {
			b.Run(fmt.Sprintf("%d/%v", n, k), func(b *testing.B) {
				var a exact.Accumulator
				for b.Loop() {
					exact.AddProductsStridedBy(k, &a, x, 3, y, 3)
				}
				sink = a.Round()
			})
		}
	}
}

// BenchmarkAddInner has as many complex numbers as BenchmarkAddProductsStrided has elements.
func BenchmarkAddInner(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range append([]int{32}, benchLengths[1:4]...) {
		x, y := make([]complex128, n), make([]complex128, n)
		for i := range x {
			x[i], y[i] = complex(r.NormFloat64(), r.NormFloat64()), complex(r.NormFloat64(), r.NormFloat64())
		}
		for _, k := range exact.Kernels() {
			b.Run(fmt.Sprintf("%d/%v", n, k), func(b *testing.B) {
				var c exact.Complex
				for b.Loop() {
					exact.AddInnerBy(k, &c, x, y)
				}
				sink = real(c.Round())
			})
		}
	}
}

// BenchmarkRounding has the sums that AddSlice and AddProducts are exact ones of: "go" in
// the order of the terms, the others with eight registers of sums.
func BenchmarkRounding(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range benchLengths[1:] {
		x, y := draw(r, n, (*rand.Rand).Float64), draw(r, n, (*rand.Rand).Float64)
		for _, l := range rounding.Loops() {
			b.Run(fmt.Sprintf("sum/%d/%s", n, l.Name), func(b *testing.B) {
				b.SetBytes(int64(8 * n))
				for b.Loop() {
					sink = l.Sum(x)
				}
			})
			b.Run(fmt.Sprintf("dot/%d/%s", n, l.Name), func(b *testing.B) {
				b.SetBytes(int64(16 * n))
				for b.Loop() {
					sink = l.Dot(x, y)
				}
			})
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	x := draw(rand.New(rand.NewPCG(1, 2)), 1<<10, (*rand.Rand).NormFloat64)
	var a exact.Accumulator
	for i := 0; b.Loop(); i++ {
		a.Add(x[i%len(x)])
	}
	sink = a.Round()
}

func BenchmarkAddProduct(b *testing.B) {
	x := draw(rand.New(rand.NewPCG(1, 2)), 1<<10, (*rand.Rand).NormFloat64)
	var a exact.Accumulator
	for i := 0; b.Loop(); i++ {
		a.AddProduct(x[i%len(x)], x[(i+1)%len(x)])
	}
	sink = a.Round()
}

// filled returns the sum of some terms of all sizes.
func filled() *exact.Accumulator {
	r := rand.New(rand.NewPCG(3, 4))
	var a exact.Accumulator
	a.AddProducts(draw(r, 4096, finite), draw(r, 4096, finite))
	return &a
}

func BenchmarkMerge(b *testing.B) {
	a, c := filled(), filled()
	c.Round()
	for b.Loop() {
		a.Merge(c)
	}
}

func BenchmarkWords(b *testing.B) {
	a := filled()
	var w [exact.Words]int64
	for b.Loop() {
		a.Add(1)
		a.Words(&w)
	}
}

func BenchmarkSetWords(b *testing.B) {
	a := filled()
	var w [exact.Words]int64
	a.Words(&w)
	for b.Loop() {
		if err := a.SetWords(&w); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRound(b *testing.B) {
	a := filled()
	for b.Loop() {
		a.Add(1)
		sink = a.Round()
	}
}

// BenchmarkNarrow is what a reduction of narrow words does at each rank.
func BenchmarkNarrow(b *testing.B) {
	var own, sum exact.Accumulator
	for i := range 64 {
		own.Add(float64(i) + 0.1)
	}
	words := make([]int64, exact.FlagWords+8)
	b.Run("words", func(b *testing.B) {
		for b.Loop() {
			sum = own
			sum.NarrowWords(words, 63)
		}
	})
	b.Run("set", func(b *testing.B) {
		for b.Loop() {
			if err := sum.SetNarrowWords(words, 63); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("span", func(b *testing.B) {
		for b.Loop() {
			sum.Span()
		}
	})
}
