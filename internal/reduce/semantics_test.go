package reduce_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/reduce"
)

// The semantics that the package comment promises, by example, for every set of
// kernels and for the portable loops that the other tests compare with.
func TestSemantics(t *testing.T) {
	var (
		inf, nan, zero = math.Inf(1), math.NaN(), math.Copysign(0, -1)
		inf32, nan32   = float32(inf), float32(nan)
		third          = float32(1.0 / 3)
	)
	for _, c := range []struct {
		o          reduce.Op
		t          reduce.Type
		a, b, want any
	}{
		{reduce.Sum, reduce.Int32, int32(math.MaxInt32), int32(1), int32(math.MinInt32)},
		{reduce.Sum, reduce.Uint32, uint32(math.MaxUint32), uint32(2), uint32(1)},
		{reduce.Sum, reduce.Int64, int64(math.MaxInt64), int64(1), int64(math.MinInt64)},
		{reduce.Sum, reduce.Uint64, uint64(math.MaxUint64), uint64(2), uint64(1)},
		{reduce.Sum, reduce.Float32, float32(0x1p24), float32(1), float32(0x1p24)},
		{reduce.Sum, reduce.Float64, 0x1p53, 3.0, 0x1p53 + 4},
		{reduce.Sum, reduce.Float64, inf, -inf, nan},
		{reduce.Sum, reduce.Float64, zero, zero, zero},
		{reduce.Sum, reduce.Complex64, complex64(1 + 2i), complex64(3 + 4i), complex64(4 + 6i)},
		{reduce.Sum, reduce.Complex128, 1 + 2i, 3 + 4i, 4 + 6i},

		{reduce.Product, reduce.Int32, int32(46341), int32(46341), int32(-2147479015)},
		{reduce.Product, reduce.Uint32, uint32(math.MaxUint32), uint32(math.MaxUint32), uint32(1)},
		{reduce.Product, reduce.Int64, int64(-1), int64(math.MinInt64), int64(math.MinInt64)},
		{reduce.Product, reduce.Uint64, uint64(0x1_2345_6789), uint64(0x1_0000_0001), uint64(0x2345_678a_2345_6789)},
		{reduce.Product, reduce.Float32, third, third, float32(third * third)},
		{reduce.Product, reduce.Float64, math.MaxFloat64, 2.0, inf},
		{reduce.Product, reduce.Float64, math.SmallestNonzeroFloat64, 0.5, 0.0},
		{reduce.Product, reduce.Float64, inf, 0.0, nan},
		{reduce.Product, reduce.Complex64, complex64(1 + 2i), complex64(3 + 4i), complex64(-5 + 10i)},
		{reduce.Product, reduce.Complex128, 1 + 2i, 3 + 4i, -5 + 10i},
		// Each product is rounded: fused, the real part would be 2^-104; and what is
		// rounded to float32 is each step, not the sum in float64.
		{reduce.Product, reduce.Complex128, complex(1+0x1p-52, 1+0x1p-51), complex(1+0x1p-52, 1.0), complex(0, 2+0x1p-50)},
		{reduce.Product, reduce.Complex64, complex(float32(1+0x1p-23), float32(1+0x1p-22)), complex(float32(1+0x1p-23), float32(1)), complex(float32(0), float32(2+0x1p-21))},
		{reduce.Product, reduce.Complex128, complex(inf, 0), complex(1.0, 0), complex(inf, nan)},
		{reduce.Product, reduce.Complex64, complex(inf32, 0), complex(float32(1), 0), complex(inf32, nan32)},

		{reduce.Min, reduce.Int32, int32(-1), int32(1), int32(-1)},
		{reduce.Max, reduce.Int32, int32(-1), int32(1), int32(1)},
		{reduce.Min, reduce.Uint32, uint32(1 << 31), uint32(1), uint32(1)},
		{reduce.Max, reduce.Uint32, uint32(1 << 31), uint32(1), uint32(1 << 31)},
		{reduce.Min, reduce.Int64, int64(math.MinInt64), int64(1), int64(math.MinInt64)},
		{reduce.Max, reduce.Int64, int64(math.MinInt64), int64(1), int64(1)},
		{reduce.Min, reduce.Uint64, uint64(1 << 63), uint64(1), uint64(1)},
		{reduce.Max, reduce.Uint64, uint64(1 << 63), uint64(1), uint64(1 << 63)},
		{reduce.Min, reduce.Float64, 0.0, zero, zero},
		{reduce.Min, reduce.Float64, zero, 0.0, zero},
		{reduce.Max, reduce.Float64, 0.0, zero, 0.0},
		{reduce.Max, reduce.Float64, zero, 0.0, 0.0},
		{reduce.Min, reduce.Float64, nan, -inf, nan},
		{reduce.Min, reduce.Float64, -inf, nan, nan},
		{reduce.Max, reduce.Float64, nan, inf, nan},
		{reduce.Max, reduce.Float64, inf, nan, nan},
		{reduce.Min, reduce.Float32, nan32, -inf32, nan32},
		{reduce.Max, reduce.Float32, inf32, nan32, nan32},
		{reduce.Max, reduce.Float32, float32(zero), float32(0), float32(0)},

		{reduce.And, reduce.Int32, int32(-4), int32(7), int32(4)},
		{reduce.Or, reduce.Int64, int64(-8), int64(3), int64(-5)},
		{reduce.Xor, reduce.Uint32, uint32(0xff00ff00), uint32(0xffff0000), uint32(0x00ffff00)},
		{reduce.Xor, reduce.Uint64, uint64(1<<63 | 1), uint64(1), uint64(1 << 63)},

		{reduce.MinLoc, reduce.Float64Int64, pair(1, 7), pair(2, 3), pair(1, 7)},
		{reduce.MinLoc, reduce.Float64Int64, pair(2, 3), pair(1, 7), pair(1, 7)},
		{reduce.MinLoc, reduce.Float64Int64, pair(1, 7), pair(1, 3), pair(1, 3)},
		{reduce.MinLoc, reduce.Float64Int64, pair(1, -7), pair(1, 3), pair(1, -7)},
		{reduce.MinLoc, reduce.Float64Int64, pair(zero, 7), pair(0, 3), pair(zero, 3)},
		{reduce.MinLoc, reduce.Float64Int64, pair(nan, 7), pair(-inf, 3), pair(nan, 7)},
		{reduce.MinLoc, reduce.Float64Int64, pair(-inf, 3), pair(nan, 7), pair(nan, 7)},
		{reduce.MinLoc, reduce.Float64Int64, pair(nan, 7), pair(nan, 3), pair(nan, 3)},
		{reduce.MaxLoc, reduce.Float64Int64, pair(1, 7), pair(2, 3), pair(2, 3)},
		{reduce.MaxLoc, reduce.Float64Int64, pair(2, 7), pair(2, 3), pair(2, 3)},
		{reduce.MaxLoc, reduce.Float64Int64, pair(zero, 3), pair(0, 7), pair(0, 3)},
		{reduce.MaxLoc, reduce.Float64Int64, pair(inf, 3), pair(nan, 7), pair(nan, 7)},
		{reduce.MaxLoc, reduce.Float64Int64, pair(nan, 7), pair(nan, 3), pair(nan, 3)},
	} {
		a, b, want := encode(t, c.a), encode(t, c.b), encode(t, c.want)
		require.Len(t, a, c.t.Size())
		for _, set := range append(reduce.Sets(), reduce.Portable()) {
			f, ok := set.Lookup(c.o, c.t)
			require.True(t, ok)
			got := make([]byte, len(a))
			f(got, a, b)
			require.Equal(t, -1, firstDifference(c.t, want, got), "%v of %v and %v by %s: % x, must be %v", c.o, c.a, c.b, set.Name, got, c.want)
		}
	}
}

func pair(value float64, index int64) reduce.Pair { return reduce.Pair{Value: value, Index: index} }

// encode returns v as it lies in memory.
func encode(t *testing.T, v any) []byte {
	b, err := binary.Append(nil, binary.NativeEndian, v)
	require.NoError(t, err)
	return b
}
