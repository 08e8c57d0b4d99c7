package exact

import (
	"math"
	"math/bits"
	"sync"
)

// AddProduct adds x·y exactly: the product is neither rounded nor subject to overflow or underflow.
// Zero times infinity is NaN.
func (a *Accumulator) AddProduct(x, y float64) {
	a.addProduct(math.Float64bits(x), math.Float64bits(y))
}

func (a *Accumulator) addProduct(x, y uint64) {
	ex, mx := split(x)
	ey, my := split(y)
	sign := int64(x^y) >> 63
	switch {
	case ex == expInf || ey == expInf:
		a.addNonFiniteProduct(x, y)
	case mx != 0 && my != 0:
		a.flags |= flagOther
		hi, lo := bits.Mul64(mx, my)
		a.addWide(ex+ey, hi, lo, sign)
	case sign != 0:
		a.flags |= flagNegZero
	default:
		a.flags |= flagOther
	}
}

// split returns the exponent field and the mantissa of a float64; subnormal numbers
// have the exponent 1 and no implicit bit.
func split(b uint64) (e, m uint64) {
	e, m = b>>mantBits&expMask, b&mantMask
	if e == 0 {
		return 1, m
	}
	return e, m | 1<<mantBits
}

// addNonFiniteProduct adds a product with at least one factor that is NaN or infinite.
func (a *Accumulator) addNonFiniteProduct(x, y uint64) {
	const inf = expInf << mantBits
	ax, ay := x&^signBit, y&^signBit
	switch {
	case ax > inf || ay > inf || ax == 0 || ay == 0:
		a.addNonFinite(canonicalNaN)
	default:
		a.addNonFinite((x^y)&signBit | inf)
	}
}

const (
	// A bin of 128 bits holds 2^22 products of 106 bits.
	productBinTerms = 1 << 22
	productBins     = 1 << 13
	// Bins that are marked as in use together.
	productBinGroup = 64
	// With fewer products a table costs more than it saves; measured.
	productBinsFrom = 128
)

// productTable has a sum of 128 bits for each sign and each sum of two exponents.
type productTable struct {
	sum  [productBins]struct{ hi, lo uint64 }
	used [productBins / productBinGroup]bool

	products int // since it was empty
}

var productPool = sync.Pool{New: func() any { return new(productTable) }}

// AddProducts adds the products of the elements of x and y with equal index, exactly: their inner
// product. It panics if the lengths differ. Long vectors without a kernel, or too different for it,
// use a table of 128 KiB, taken from a pool and returned at the end.
func (a *Accumulator) AddProducts(x, y []float64) { a.addProducts(native, x, y) }

func (a *Accumulator) addProducts(k kernels, x, y []float64) {
	if len(x) != len(y) {
		panic("exact: AddProducts of slices that differ in length")
	}
	if k != plain && len(x) >= dotFrom {
		if above, width := guess(x, y); !scattered(len(x), width) {
			var s products
			s.start(k)
			s.begin(above, width)
			s.add(a, x, y)
			s.finish(a)
			return
		}
	}
	var t *productTable
	a.addIntegerProducts(&t, x, y)
	t.release(a)
}

// addIntegerProducts adds the products of x and y one by one, or by the table *t, which it takes
// from the pool.
func (a *Accumulator) addIntegerProducts(t **productTable, x, y []float64) {
	if *t == nil {
		if len(x) < productBinsFrom {
			for i, v := range x {
				a.addProduct(math.Float64bits(v), math.Float64bits(y[i]))
			}
			return
		}
		*t = productPool.Get().(*productTable)
	}
	for len(x) > 0 {
		if (*t).products == productBinTerms {
			(*t).flush(a)
		}
		n := min(len(x), productBinTerms-(*t).products)
		(*t).add(a, x[:n], y[:n])
		x, y = x[n:], y[n:]
	}
}

// noteProducts sets the flags that distinguish a sum of products that are all -0 from others.
func (a *Accumulator) noteProducts(x, y []float64) {
	for i, v := range x {
		bx, by := math.Float64bits(v), math.Float64bits(y[i])
		if (bx^by)&signBit == 0 || bx&^signBit != 0 && by&^signBit != 0 {
			a.flags |= flagOther
			return
		}
		a.flags |= flagNegZero
	}
}

func (t *productTable) add(a *Accumulator, x, y []float64) {
	t.products += len(x)
	y = y[:len(x)]
	for i, v := range x {
		bx, by := math.Float64bits(v), math.Float64bits(y[i])
		ex, ey := bx>>mantBits&expMask, by>>mantBits&expMask
		if ex-1 >= expInf-1 || ey-1 >= expInf-1 {
			a.addProduct(bx, by)
			continue
		}
		hi, lo := bits.Mul64(bx&mantMask|1<<mantBits, by&mantMask|1<<mantBits)
		k := (bx^by)>>63<<12 | (ex+ey)&(1<<12-1)
		bin := &t.sum[k]
		var c uint64
		bin.lo, c = bits.Add64(bin.lo, lo, 0)
		bin.hi, _ = bits.Add64(bin.hi, hi, c)
		t.used[k/productBinGroup] = true
	}
}

// release adds all bins to a, and returns t, which may be nil, to the pool.
func (t *productTable) release(a *Accumulator) {
	if t != nil {
		t.flush(a)
		productPool.Put(t)
	}
}

// flush adds all bins to a and leaves t as if it were new.
func (t *productTable) flush(a *Accumulator) {
	t.products = 0
	for g, used := range t.used {
		if !used {
			continue
		}
		t.used[g] = false
		a.flags |= flagOther
		for k := g * productBinGroup; k < (g+1)*productBinGroup; k++ {
			if bin := &t.sum[k]; bin.hi|bin.lo != 0 {
				a.addWide(uint64(k)&(1<<12-1), bin.hi, bin.lo, -int64(k>>12))
				bin.hi, bin.lo = 0, 0
			}
		}
	}
}
