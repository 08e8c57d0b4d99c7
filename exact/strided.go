package exact

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"unsafe"
)

// Float is what the elements of slices may be. A float32 is exactly a float64.
type Float interface{ float32 | float64 }

// gathered is how many elements are laid side by side at a time, in the first-level cache; measured.
const gathered = 1024

// sides is where that is done: 24 KiB, which the allocator has begin at a page.
type sides struct {
	x, y   [gathered]float64
	narrow [2][gathered]float32
}

// scratch has, beside it, sums of products, which need not be cleared.
type scratch struct {
	*sides
	re, im products
}

var scratchPool = sync.Pool{New: func() any { return &scratch{sides: new(sides)} }}

// AddStrided adds x[0], x[stride], x[2·stride] and so on, exactly, as far as x goes. It panics if
// stride is less than 1.
func AddStrided[T Float](a *Accumulator, x []T, stride int) { addStrided(native, a, x, stride) }

func addStrided[T Float](k kernels, a *Accumulator, x []T, stride int) {
	n := elements(len(x), stride)
	switch f, ok := as[float64](x); {
	case ok && stride == 1:
		a.addSlice(k, f)
		return
	case n < sumFrom:
		for i := range n {
			a.add(bitsOf(x[i*stride]))
		}
		return
	}
	b := scratchPool.Get().(*scratch)
	var s terms
	s.start(k)
	for i := 0; i < n; i += gathered {
		s.add(a, wide(k, &b.x, &b.narrow[0], x[i*stride:], stride, min(gathered, n-i)))
	}
	s.finish(a)
	scratchPool.Put(b)
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
	fx, isWide := as[float64](x)
	switch fy, _ := as[float64](y); {
	case isWide && strideX == 1 && strideY == 1:
		a.addProducts(k, fx, fy)
		return
	case n < dotFrom:
		for i := range n {
			a.addProduct(bitsOf(x[i*strideX]), bitsOf(y[i*strideY]))
		}
		return
	}
	b := scratchPool.Get().(*scratch)
	if squares := &x[0] == &y[0] && strideX == strideY; isWide || squares || k == plain {
		s := &b.re
		s.start(k)
		for i := 0; i < n; i += gathered {
			m := min(gathered, n-i)
			px := wide(k, &b.x, &b.narrow[0], x[i*strideX:], strideX, m)
			py := px
			if !squares {
				py = wide(k, &b.y, &b.narrow[1], y[i*strideY:], strideY, m)
			}
			s.add(a, px, py)
		}
		s.finish(a)
	} else {
		nx, _ := as[float32](x)
		ny, _ := as[float32](y)
		// The products of float32 are float64. The exponents of squares differ more than a sum often has
		// room for.
		var s terms
		s.start(k)
		for i := 0; i < n; i += gathered {
			m := min(gathered, n-i)
			px, py := side(k, &b.narrow[0], nx[i*strideX:], strideX, m), side(k, &b.narrow[1], ny[i*strideY:], strideY, m)
			k.products(&b.x[0], &px[0], &py[0], m)
			s.add(a, b.x[:m])
		}
		s.finish(a)
	}
	scratchPool.Put(b)
}

// elements returns how many of n elements have the stride.
func elements(n, stride int) int {
	if stride < 1 {
		panic(fmt.Sprintf("exact: stride %d is less than 1", stride))
	}
	return n/stride + min(n%stride, 1)
}

// as returns x itself if it is of this type.
func as[F, T Float](x []T) ([]F, bool) {
	if unsafe.Sizeof(T(0)) != unsafe.Sizeof(F(0)) {
		return nil, false
	}
	return unsafe.Slice((*F)(unsafe.Pointer(unsafe.SliceData(x))), len(x)), true
}

// side returns n elements of x side by side, in dst if they are not there yet.
func side[F Float](k kernels, dst *[gathered]F, x []F, stride, n int) []F {
	if stride == 1 {
		return x[:n]
	}
	last := x[:(n-1)*stride+1]
	if k == plain {
		for i := range dst[:n] {
			dst[i] = last[i*stride]
		}
	} else if f, ok := as[float64](last); ok {
		k.gather((*float64)(unsafe.Pointer(dst)), &f[0], stride, n)
	} else {
		f, _ := as[float32](last)
		k.gather32((*float32)(unsafe.Pointer(dst)), &f[0], stride, n)
	}
	return dst[:n]
}

// wide returns n elements of x side by side as float64, in dst if they are not there yet.
func wide[T Float](k kernels, dst *[gathered]float64, narrow *[gathered]float32, x []T, stride, n int) []float64 {
	if f, ok := as[float64](x); ok {
		return side(k, dst, f, stride, n)
	}
	f, _ := as[float32](x)
	f = side(k, narrow, f, stride, n)
	if k != plain {
		k.widen(&dst[0], &f[0], n)
		return dst[:n]
	}
	for i, v := range f {
		dst[i] = math.Float64frombits(bitsOf(v))
	}
	return dst[:n]
}

// bitsOf returns the bits of v as a float64.
func bitsOf[T Float](v T) uint64 {
	if unsafe.Sizeof(v) == 8 {
		return *(*uint64)(unsafe.Pointer(&v))
	}
	return widen(*(*uint32)(unsafe.Pointer(&v)))
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
	n := len(x) / 2
	if n < sumFrom {
		for i := 0; i < len(x); i += 2 {
			c.Re.add(bitsOf(x[i]))
			c.Im.add(bitsOf(x[i+1]))
		}
		return
	}
	b := scratchPool.Get().(*scratch)
	var re, im terms
	re.start(k)
	im.start(k)
	for i := 0; i < n; i += gathered {
		m := min(gathered, n-i)
		takeParts(k, b, x[2*i:], m)
		re.add(&c.Re, b.x[:m])
		im.add(&c.Im, b.y[:m])
	}
	re.finish(&c.Re)
	im.finish(&c.Im)
	scratchPool.Put(b)
}

func takeParts[F Float](k kernels, b *scratch, x []F, n int) {
	x = x[:2*n]
	if f, ok := as[float64](x); ok && k != plain {
		k.parts(&b.x[0], &b.y[0], &f[0], n)
	} else if f, ok := as[float32](x); ok && k != plain {
		k.parts32(&b.x[0], &b.y[0], &f[0], n)
	} else {
		for i := range n {
			b.x[i], b.y[i] = math.Float64frombits(bitsOf(x[2*i])), math.Float64frombits(bitsOf(x[2*i+1]))
		}
	}
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
		addTurns(k, c, parts[float32](x), parts[float32](y))
	}
}

// addTurns takes real and imaginary parts by turns: x̄y = (x₀y₀ + x₁y₁) + (x₀y₁ - x₁y₀)i.
func addTurns[F Float](k kernels, c *Complex, x, y []F) {
	if len(x) < dotFrom {
		for i := 0; i < len(x); i += 2 {
			x0, x1, y0, y1 := bitsOf(x[i]), bitsOf(x[i+1]), bitsOf(y[i]), bitsOf(y[i+1])
			c.Re.addProduct(x0, y0)
			c.Re.addProduct(x1, y1)
			c.Im.addProduct(x0, y1)
			c.Im.addProduct(x1^signBit, y0)
		}
		return
	}
	b := scratchPool.Get().(*scratch)
	nx, narrow := as[float32](x)
	if squares := &x[0] == &y[0]; narrow && !squares && k != plain {
		ny, _ := as[float32](y)
		var re, im terms // as in addProductsStrided
		re.start(k)
		im.start(k)
		for i := 0; i < len(x); i += gathered {
			m := min(gathered, len(x)-i)
			k.inner(&b.x[0], &b.y[0], &nx[i], &ny[i], m)
			re.add(&c.Re, b.x[:m])
			im.add(&c.Im, b.y[:m])
		}
		re.finish(&c.Re)
		im.finish(&c.Im)
	} else {
		re, im := &b.re, &b.im
		re.start(k)
		im.start(k)
		for i := 0; i < len(x); i += gathered {
			m := min(gathered, len(x)-i)
			px, turned := wide(k, &b.x, &b.narrow[0], x[i:], 1, m), b.x[:m]
			py := px
			if squares {
				turned = b.y[:m]
			} else {
				py = wide(k, &b.y, &b.narrow[1], y[i:], 1, m)
			}
			re.add(&c.Re, px, py)
			turn(k, turned, px)
			im.add(&c.Im, turned, py)
		}
		re.finish(&c.Re)
		im.finish(&c.Im)
	}
	scratchPool.Put(b)
}

// turn sets dst, which may be x, to x multiplied by i, and conjugated.
func turn(k kernels, dst, x []float64) {
	if k != plain {
		k.turn(&dst[0], &x[0], len(x))
		return
	}
	for i := 0; i < len(x); i += 2 {
		dst[i], dst[i+1] = math.Float64frombits(math.Float64bits(x[i+1])^signBit), x[i]
	}
}

// parts returns the real and imaginary parts of x, by turns: the memory of x.
func parts[F Float, T ComplexNumber](x []T) []F {
	return unsafe.Slice((*F)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x))
}
