package reduce_test

import (
	"math"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/reduce"
)

func view[T any](p []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/int(unsafe.Sizeof(zero)))
}

func integers[T int32 | int64 | uint32 | uint64](lowest, highest T) []T {
	return []T{1, 0, 2, 3, highest, lowest, highest - 1, lowest + 1, highest / 2, highest/2 + 1, ^T(0), 12345, 46341, 65536}
}

var (
	int32s  = integers[int32](math.MinInt32, math.MaxInt32)
	uint32s = integers[uint32](0, math.MaxUint32)
	int64s  = append(integers[int64](math.MinInt64, math.MaxInt64), 1<<32, -1<<32, 1<<31, 3037000500)
	uint64s = append(integers[uint64](0, math.MaxUint64), 1<<32, 1<<63, 1<<31, 1<<63-1)

	float64s = []float64{
		1, 0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), -1, math.Pi, 1.0 / 3, 1e300, -1e300, 1e-300,
		math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, 0x1p-1022, 0x1.fffffffffffffp-1023, math.MaxFloat64,
		-math.MaxFloat64, 1 + 0x1p-52, 0x1p53, math.Float64frombits(0xfff8000000000123), math.Float64frombits(0x7ff0000000000001),
	}
	float32s = []float32{
		1, 0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), -1, math.Pi, 1.0 / 3, 1e30,
		-1e30, 1e-30, math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 0x1p-126, 0x1.fffffcp-127, math.MaxFloat32,
		-math.MaxFloat32, 1 + 0x1p-23, 0x1p24, math.Float32frombits(0xffc00123), math.Float32frombits(0x7f800001),
	}
)

// fill writes values of the type's list; choose takes the list's length, and gives
// the index into it.
func fill(p []byte, t reduce.Type, choose func(n int) int) {
	switch t {
	case reduce.Int32:
		fillFrom(view[int32](p), int32s, choose)
	case reduce.Int64:
		fillFrom(view[int64](p), int64s, choose)
	case reduce.Uint32:
		fillFrom(view[uint32](p), uint32s, choose)
	case reduce.Uint64:
		fillFrom(view[uint64](p), uint64s, choose)
	case reduce.Float32, reduce.Complex64:
		fillFrom(view[float32](p), float32s, choose)
	case reduce.Float64, reduce.Complex128:
		fillFrom(view[float64](p), float64s, choose)
	case reduce.Float64Int64:
		for i := range view[reduce.Pair](p) {
			view[reduce.Pair](p)[i] = reduce.Pair{Value: float64s[choose(len(float64s))], Index: int64s[choose(len(int64s))]}
		}
	}
}

func fillFrom[T any](p, values []T, choose func(n int) int) {
	for i := range p {
		p[i] = values[choose(len(values))]
	}
}

// firstDifference is the index of the first element of type t that differs, -1 if
// none does; two NaNs are the same.
func firstDifference(t reduce.Type, want, got []byte) int {
	switch t {
	case reduce.Float32, reduce.Complex64:
		return differs(want, got, func(v uint32) bool { return v&0x7fffffff > 0x7f800000 })
	case reduce.Float64, reduce.Complex128:
		return differs(want, got, isNaN)
	case reduce.Float64Int64:
		for i, w := range view[[2]uint64](want) {
			g := view[[2]uint64](got)[i]
			if w != g && (w[1] != g[1] || !isNaN(w[0]) || !isNaN(g[0])) {
				return i
			}
		}
		return -1
	}
	return differs(want, got, func(byte) bool { return false })
}

func isNaN(v uint64) bool { return v&(1<<63-1) > 0x7ff<<52 }

func differs[T byte | uint32 | uint64](want, got []byte, nan func(T) bool) int {
	for i, w := range view[T](want) {
		if g := view[T](got)[i]; w != g && (!nan(w) || !nan(g)) {
			return i
		}
	}
	return -1
}
