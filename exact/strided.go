package exact

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// Float is what the elements of slices may be. A float32 is exactly a float64.
type Float interface{ float32 | float64 }

// gathered is how many elements are laid side by side at a time, in the first-level cache.
const gathered = 512

// AddStrided adds x[0], x[stride], x[2·stride] and so on, exactly, as far as x goes. It panics if
// stride is less than 1.
func AddStrided[T Float](a *Accumulator, x []T, stride int) { addStrided(native, a, x, stride) }

func addStrided[T Float](k kernels, a *Accumulator, x []T, stride int) {
	n := elements(len(x), stride)
	if f, ok := contiguous(x, stride); ok {
		a.addSlice(k, f)
		return
	}
	var buf [gathered]float64
	for i := 0; i < n; i += gathered {
		a.addSlice(k, gather(k, buf[:min(gathered, n-i)], x[i*stride:], stride))
	}
}

// AddProductsStrided adds the inner product of the elements of x and y that AddStrided would add,
// exactly. It panics if a stride is less than 1, or if these are not equally many.
func AddProductsStrided[T Float](a *Accumulator, x []T, strideX int, y []T, strideY int) {
	addProductsStrided(native, a, x, strideX, y, strideY)
}

func addProductsStrided[T Float](k kernels, a *Accumulator, x []T, strideX int, y []T, strideY int) {
	n := elements(len(x), strideX)
	if m := elements(len(y), strideY); m != n {
		panic(fmt.Sprintf("exact: products of %d elements and of %d", n, m))
	}
	fx, okX := contiguous(x, strideX)
	fy, okY := contiguous(y, strideY)
	if okX && okY {
		a.addProducts(k, fx, fy)
		return
	}
	var bufX, bufY [gathered]float64
	for i := 0; i < n; i += gathered {
		m := min(gathered, n-i)
		px, py := bufX[:m], bufY[:m]
		if okX {
			px = fx[i : i+m]
		} else {
			gather(k, px, x[i*strideX:], strideX)
		}
		if okY {
			py = fy[i : i+m]
		} else {
			gather(k, py, y[i*strideY:], strideY)
		}
		a.addProducts(k, px, py)
	}
}

// elements returns how many of n elements have the stride.
func elements(n, stride int) int {
	if stride < 1 {
		panic(fmt.Sprintf("exact: stride %d is less than 1", stride))
	}
	return n/stride + min(n%stride, 1)
}

// contiguous returns x itself if it needs no gathering.
func contiguous[T Float](x []T, stride int) ([]float64, bool) {
	if stride != 1 || unsafe.Sizeof(T(0)) != 8 {
		return nil, false
	}
	return unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(x))), len(x)), true
}

// gather fills dst with elements of x, and returns it.
func gather[T Float](k kernels, dst []float64, x []T, stride int) []float64 {
	if unsafe.Sizeof(T(0)) == 8 {
		f := unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
		for i := range dst {
			dst[i] = f[i*stride]
		}
		return dst
	}
	f := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
	if stride == 1 && k != plain {
		k.widen(&dst[0], &f[0], len(dst))
		return dst
	}
	for i := range dst {
		dst[i] = math.Float64frombits(widen(math.Float32bits(f[i*stride])))
	}
	return dst
}

const (
	mantBits32 = 23
	expInf32   = 0xff
	signBit32  = 1 << 31
)

// widen returns the bits of a float64 for those of a float32, by integers: the CPU may be set to take
// a subnormal number as zero.
func widen(b uint32) uint64 {
	if b>>mantBits32&expInf32-1 < expInf32-1 {
		return uint64(b&^signBit32)<<(mantBits-mantBits32) + (1023-127)<<mantBits | uint64(b&signBit32)<<32
	}
	return widenSpecial(b)
}

// widenSpecial is widen for zero, subnormal numbers, and what is not finite.
func widenSpecial(b uint32) uint64 {
	sign, m := uint64(b&signBit32)<<32, uint64(b&(1<<mantBits32-1))
	switch {
	case b&(expInf32<<mantBits32) != 0:
		return sign | expInf<<mantBits | m<<(mantBits-mantBits32)
	case m == 0:
		return sign
	}
	shift := bits.LeadingZeros64(m) - (63 - mantBits) // makes the first bit the implicit one
	return sign | uint64(1023-149+mantBits-shift)<<mantBits | m<<shift&mantMask
}

// ComplexNumber is what the elements of complex slices may be.
type ComplexNumber interface{ complex64 | complex128 }

// Complex is an exact sum of complex numbers: one of the real parts, and one of the imaginary
// parts. It merges, and travels, as these two, and like them must not be used by two goroutines at a
// time. The zero value is the sum of no terms.
type Complex struct{ Re, Im Accumulator }

// Round returns both parts, each rounded as by [Accumulator.Round].
func (c *Complex) Round() complex128 { return complex(c.Re.Round(), c.Im.Round()) }

// Merge adds all terms of b to c, as [Accumulator.Merge] does.
func (c *Complex) Merge(b *Complex) {
	c.Re.Merge(&b.Re)
	c.Im.Merge(&b.Im)
}

// AddComplex adds all elements of x to c, exactly.
func AddComplex[T ComplexNumber](c *Complex, x []T) { addComplex(native, c, x) }

func addComplex[T ComplexNumber](k kernels, c *Complex, x []T) {
	if len(x) == 0 {
		return
	}
	if unsafe.Sizeof(T(0)) == 16 {
		addParts(k, c, parts[float64](x))
	} else {
		addParts(k, c, parts[float32](x))
	}
}

func addParts[F Float](k kernels, c *Complex, x []F) {
	addStrided(k, &c.Re, x, 2)
	addStrided(k, &c.Im, x[1:], 2)
}

// AddInner adds the inner product of x and y to c, exactly: the sum of the products of the
// conjugates of the elements of x and the elements of y, as zdotc of BLAS. Either part is a sum of real
// products, for which the rules of [Accumulator.Round] hold: zero times infinity is NaN there, whatever
// the other part is. It panics if the lengths differ.
func AddInner[T ComplexNumber](c *Complex, x, y []T) { addInner(native, c, x, y) }

func addInner[T ComplexNumber](k kernels, c *Complex, x, y []T) {
	switch {
	case len(x) != len(y):
		panic(fmt.Sprintf("exact: inner product of %d elements and %d", len(x), len(y)))
	case len(x) == 0:
	case unsafe.Sizeof(T(0)) == 16:
		addTurns(k, c, parts[float64](x), parts[float64](y))
	default:
		px, py := parts[float32](x), parts[float32](y)
		var bufX, bufY [gathered]float64
		for i := 0; i < len(px); i += gathered {
			n := min(gathered, len(px)-i)
			addTurns(k, c, gather(k, bufX[:n], px[i:], 1), gather(k, bufY[:n], py[i:], 1))
		}
	}
}

// addTurns takes real and imaginary parts by turns: x̄y = (x₀y₀ + x₁y₁) + (x₀y₁ - x₁y₀)i.
func addTurns(k kernels, c *Complex, x, y []float64) {
	c.Re.addProducts(k, x, y)
	var turned [gathered]float64
	for i := 0; i < len(x); i += gathered {
		n := min(gathered, len(x)-i)
		part := x[i : i+n]
		for j := 0; j+1 < len(part); j += 2 {
			turned[j] = math.Float64frombits(math.Float64bits(part[j+1]) ^ signBit)
			turned[j+1] = part[j]
		}
		c.Im.addProducts(k, turned[:n], y[i:i+n])
	}
}

// parts returns the real and imaginary parts of x, by turns: the memory of x.
func parts[F Float, T ComplexNumber](x []T) []F {
	return unsafe.Slice((*F)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x))
}
