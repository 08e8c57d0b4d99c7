package reduce

import "unsafe"

// portable holds the plain Go loops, which define every operation. Their arguments have been
// checked.
var portable = [ops][types]Func{
	Sum: {
		Int32: sum[int32], Int64: sum[int64], Uint32: sum[uint32], Uint64: sum[uint64],
		Float32: sum[float32], Float64: sum[float64], Complex64: sum[float32], Complex128: sum[float64],
	},
	Product: {
		Int32: product[int32], Int64: product[int64], Uint32: product[uint32], Uint64: product[uint64],
		Float32: product[float32], Float64: product[float64],
		Complex64: complexProduct[float32], Complex128: complexProduct[float64],
	},
	Min: {
		Int32: minimum[int32], Int64: minimum[int64], Uint32: minimum[uint32], Uint64: minimum[uint64],
		Float32: minimum[float32], Float64: minimum[float64],
	},
	Max: {
		Int32: maximum[int32], Int64: maximum[int64], Uint32: maximum[uint32], Uint64: maximum[uint64],
		Float32: maximum[float32], Float64: maximum[float64],
	},
	And:    {Int32: and[uint32], Int64: and[uint64], Uint32: and[uint32], Uint64: and[uint64]},
	Or:     {Int32: or[uint32], Int64: or[uint64], Uint32: or[uint32], Uint64: or[uint64]},
	Xor:    {Int32: xor[uint32], Int64: xor[uint64], Uint32: xor[uint32], Uint64: xor[uint64]},
	MinLoc: {Float64Int64: minLoc},
	MaxLoc: {Float64Int64: maxLoc},
}

type float interface{ float32 | float64 }

type real interface {
	int32 | int64 | uint32 | uint64 | float
}

// views returns dst, a and b as elements. It cuts all three to one length so that the compiler can
// drop the bounds checks of the loops.
func views[T any](dst, a, b []byte) (d, x, y []T) {
	d, x, y = view[T](dst), view[T](a), view[T](b)
	return d, x[:len(d)], y[:len(d)]
}

func view[T any](p []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/int(unsafe.Sizeof(zero)))
}

func sum[T real](dst, a, b []byte) {
	d, x, y := views[T](dst, a, b)
	for i := range d {
		d[i] = x[i] + y[i]
	}
}

func product[T real](dst, a, b []byte) {
	d, x, y := views[T](dst, a, b)
	for i := range d {
		d[i] = x[i] * y[i]
	}
}

// complexProduct multiplies numbers whose parts are of type T. The conversions keep
// the compiler from fusing a product with the sum that follows (Go specification,
// "Floating-point operators").
func complexProduct[T float](dst, a, b []byte) {
	d, x, y := views[[2]T](dst, a, b)
	for i := range d {
		p, q := x[i], y[i]
		d[i] = [2]T{T(p[0]*q[0]) - T(p[1]*q[1]), T(p[0]*q[1]) + T(p[1]*q[0])}
	}
}

func minimum[T real](dst, a, b []byte) {
	d, x, y := views[T](dst, a, b)
	for i := range d {
		d[i] = min(x[i], y[i])
	}
}

func maximum[T real](dst, a, b []byte) {
	d, x, y := views[T](dst, a, b)
	for i := range d {
		d[i] = max(x[i], y[i])
	}
}

func and[T uint32 | uint64](dst, a, b []byte) {
	d, x, y := views[T](dst, a, b)
	for i := range d {
		d[i] = x[i] & y[i]
	}
}

func or[T uint32 | uint64](dst, a, b []byte) {
	d, x, y := views[T](dst, a, b)
	for i := range d {
		d[i] = x[i] | y[i]
	}
}

func xor[T uint32 | uint64](dst, a, b []byte) {
	d, x, y := views[T](dst, a, b)
	for i := range d {
		d[i] = x[i] ^ y[i]
	}
}

func minLoc(dst, a, b []byte) {
	d, x, y := views[Pair](dst, a, b)
	for i := range d {
		p, q := x[i], y[i]
		d[i] = Pair{min(p.Value, q.Value), location(p, q, p.Value < q.Value, q.Value < p.Value)}
	}
}

func maxLoc(dst, a, b []byte) {
	d, x, y := views[Pair](dst, a, b)
	for i := range d {
		p, q := x[i], y[i]
		d[i] = Pair{max(p.Value, q.Value), location(p, q, p.Value > q.Value, q.Value > p.Value)}
	}
}

// location returns the index of the better of p and q, which the caller has compared; a NaN is
// better than a number.
func location(p, q Pair, first, second bool) int64 {
	if !first && !second { // equal, or a NaN
		first = p.Value != p.Value && q.Value == q.Value
		second = q.Value != q.Value && p.Value == p.Value
	}
	switch {
	case first:
		return p.Index
	case second:
		return q.Index
	}
	return min(p.Index, q.Index)
}
