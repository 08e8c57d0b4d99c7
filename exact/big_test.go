package exact_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
)

// reference is the sum that accumulators are compared with: of math/big, with the
// exceptions of IEEE 754 added as the standard has them for one addition after the
// other.
type reference struct {
	sum       big.Float
	exception float64 // the sum of the terms that are not finite; 0 if there are none
	terms     int
	negZeros  int
}

// precision suffices for all sums of products, of 2^100 terms.
const precision = 4400

func (r *reference) add(x float64) {
	r.terms++
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		r.exception += x
	case x == 0 && math.Signbit(x):
		r.negZeros++
	default:
		r.sum.SetPrec(precision).Add(&r.sum, new(big.Float).SetFloat64(x))
	}
}

func (r *reference) addProduct(x, y float64) {
	if x == 0 || y == 0 || math.IsNaN(x) || math.IsNaN(y) || math.IsInf(x, 0) || math.IsInf(y, 0) {
		r.add(x * y)
		return
	}
	r.terms++
	product := new(big.Float).SetPrec(106).SetFloat64(x)
	product.Mul(product, new(big.Float).SetFloat64(y))
	r.sum.SetPrec(precision).Add(&r.sum, product)
}

// plus returns the sum of the terms of both.
func (r *reference) plus(o *reference) *reference {
	sum := &reference{exception: r.exception + o.exception, terms: r.terms + o.terms, negZeros: r.negZeros + o.negZeros}
	sum.sum.SetPrec(precision).Add(&r.sum, &o.sum)
	return sum
}

func (r *reference) round() float64 {
	switch {
	case r.exception != 0:
		return r.exception
	case r.terms > 0 && r.negZeros == r.terms:
		return math.Copysign(0, -1)
	case r.sum.Sign() == 0:
		return 0
	}
	f, _ := r.sum.Float64()
	return f
}

func sumReference(x []float64) *reference {
	r := new(reference)
	for _, v := range x {
		r.add(v)
	}
	return r
}

func dotReference(x, y []float64) *reference {
	r := new(reference)
	for i, v := range x {
		r.addProduct(v, y[i])
	}
	return r
}

// requireSame compares bits; any NaN must be the canonical one.
func requireSame(t testing.TB, want, got float64, about ...any) {
	t.Helper()
	bits := math.Float64bits(want)
	if math.IsNaN(want) {
		bits = 0x7ff8000000000000
	}
	if bits != math.Float64bits(got) {
		require.Failf(t, "sums differ", "want %x (%#x), got %x (%#x) %v", want, bits, got, math.Float64bits(got), about)
	}
}

// requireExact compares what a sum rounds to, and all bits of its finite part, with those of the reference.
func requireExact(t testing.TB, want *reference, got *exact.Accumulator, about ...any) {
	t.Helper()
	requireSame(t, want.round(), got.Round(), about...)
	b := encoded(t, got)
	finite := new(big.Float).SetPrec(precision).SetInt(new(big.Int).SetBytes(b[4:]))
	finite.SetMantExp(finite, 32*int(b[2])-2150)
	if b[1]&0x80 != 0 {
		finite.Neg(finite)
	}
	if finite.Cmp(&want.sum) != 0 {
		require.Failf(t, "sums differ", "want %x, got %x %v", &want.sum, finite, about)
	}
}

// encoded returns the encoding of a sum, by which equal sums are known.
func encoded(t testing.TB, a *exact.Accumulator) []byte {
	b, err := a.AppendBinary(nil)
	require.NoError(t, err)
	return b
}

// edges are where a sum, or the rounding of one, may go wrong.
var edges = []float64{
	0, math.Copysign(0, -1), 1, -1, math.Pi,
	math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, 3 * math.SmallestNonzeroFloat64,
	0x1p-1022, -0x1p-1022, 0x1p-1022 - 0x1p-1074, // least normal, largest subnormal
	math.MaxFloat64, -math.MaxFloat64, 0x1p1023, 0x1p970, 0x1p969, -0x1p970, // half an ulp of the largest, and less
	1 + 0x1p-52, 0x1p-53, -0x1p-53, 0x1p-54, 0x1p53, 0x1p52 + 1, 0x1p-106,
	1e300, -1e300, 1e-300, 1e16, -1e16,
}

// sources are where random terms are from.
var sources = map[string]func(r *rand.Rand) float64{
	"uniform":  (*rand.Rand).Float64,
	"normal":   (*rand.Rand).NormFloat64,
	"finite":   finite,
	"edges":    func(r *rand.Rand) float64 { return edges[r.IntN(len(edges))] },
	"bits":     func(r *rand.Rand) float64 { return math.Float64frombits(r.Uint64()) },
	"tiny":     func(r *rand.Rand) float64 { return math.Float64frombits(r.Uint64() & (1<<63 | 1<<54 - 1)) },
	"huge":     func(r *rand.Rand) float64 { return math.Copysign(math.MaxFloat64*(1-r.Float64()/4), r.Float64()-0.5) },
	"integers": func(r *rand.Rand) float64 { return float64(r.IntN(7) - 3) },
	"rarely":   func(r *rand.Rand) float64 { return rarely(r) },
	"zeros":    func(r *rand.Rand) float64 { return math.Copysign(0, r.Float64()-0.2) },
	"zero":     func(*rand.Rand) float64 { return math.Copysign(0, -1) },
}

// rarely draws an exception now and then.
func rarely(r *rand.Rand) float64 {
	exceptions := []float64{math.NaN(), math.Inf(1), math.Inf(-1)}
	if i := r.IntN(3000); i < len(exceptions) {
		return exceptions[i]
	}
	return r.NormFloat64()
}
