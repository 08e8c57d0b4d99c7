package exact

import (
	"math"
	"math/bits"
	"sync"
)

const (
	// A sum of 64 bits holds this many terms of one sign and exponent: 2^11 of 53 bits.
	binTerms = 1 << 11
	// With fewer terms a table costs more than it saves; measured.
	binsFrom = 256
)

// bins is the large superaccumulator of Neal, section 3: a sum of 64 bits for each sign and
// exponent, the upper 12 bits of a float64. Whole floats are added, sign and exponent included,
// modulo 2^64; the number of additions is known, and thus what to subtract again.
type bins struct {
	sum  [1 << 12]uint64
	left [1 << 12]int16       // terms that still fit; 0 for a bin that is not open
	open [1 << 12 / 64]uint64 // one bit for each bin
}

var binsPool = sync.Pool{New: func() any { return new(bins) }}

// AddSlice adds all elements of x exactly. Long slices without a kernel, or too different for it,
// use a table of 41 KiB, taken from a pool and returned at the end.
func (a *Accumulator) AddSlice(x []float64) { a.addSlice(native, x) }

func (a *Accumulator) addSlice(k kernels, x []float64) {
	if k != plain && len(x) >= sumFrom {
		var s terms
		s.start(k)
		s.add(a, x)
		s.finish(a)
		return
	}
	if len(x) >= binsFrom {
		a.noteTerms(x)
	}
	var t *bins
	a.addIntegers(&t, x)
	t.release(a)
}

// addIntegers adds x one by one, or by the table *t, which it takes from the pool.
func (a *Accumulator) addIntegers(t **bins, x []float64) {
	if *t == nil {
		if len(x) < binsFrom {
			for _, v := range x {
				a.add(math.Float64bits(v))
			}
			return
		}
		*t = binsPool.Get().(*bins)
	}
	(*t).add(a, x)
}

// noteTerms sets the flags that distinguish a sum of -0 terms from others.
func (a *Accumulator) noteTerms(x []float64) {
	for _, v := range x {
		if math.Float64bits(v) != signBit {
			a.flags |= flagOther
			return
		}
		a.flags |= flagNegZero
	}
}

func (t *bins) add(a *Accumulator, x []float64) {
	for _, v := range x {
		b := math.Float64bits(v)
		i := b >> mantBits
		left := t.left[i] - 1
		if left < 0 {
			if i&expMask == expInf {
				a.addNonFinite(b)
				continue
			}
			left = t.renew(a, i)
		}
		t.left[i] = left
		t.sum[i] += b
	}
}

// renew opens bin i, or empties it if it is full, and returns how many terms fit
// after the next one.
func (t *bins) renew(a *Accumulator, i uint64) int16 {
	if bit := uint64(1) << (i % 64); t.open[i/64]&bit == 0 {
		t.open[i/64] |= bit
	} else {
		t.empty(a, i)
	}
	return binTerms - 1
}

// empty adds bin i, which is open, to a.
func (t *bins) empty(a *Accumulator, i uint64) {
	n := uint64(binTerms - t.left[i])
	m := t.sum[i] - n*(i<<mantBits)
	e := i & expMask
	if e != 0 {
		m += n << mantBits
	} else {
		e = 1
	}
	t.sum[i] = 0
	a.addWide(e+termBias, 0, m, -int64(i>>11))
}

// release adds all bins to a, and returns t, which may be nil, to the pool.
func (t *bins) release(a *Accumulator) {
	if t != nil {
		t.flush(a)
		binsPool.Put(t)
	}
}

// flush adds all bins to a and leaves t as if it were new.
func (t *bins) flush(a *Accumulator) {
	for w, open := range t.open {
		for ; open != 0; open &= open - 1 {
			i := uint64(w*64 + bits.TrailingZeros64(open))
			t.empty(a, i)
			t.left[i] = 0
		}
		t.open[w] = 0
	}
}
