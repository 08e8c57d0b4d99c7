package exact

import "math"

// Terms of more exponents than a kernel has room for go to running sums of several levels: what one does
// not take has its place in the next one, which begins at a power of two that is less by levelBits.
const (
	levelBits = 42
	maxLevels = 7

	// The terms of a call. The start of a level is 1.5·2^k, and what is added to it at most 2^(k-roomBits),
	// twice for each product: so many leave it between 2^k and 2^(k+1).
	wideBlock = 1 << 10
	// Fewer terms take no longer as limbs; measured.
	termLevelsFrom = 512
)

// wideState has the running sums of each level, less their starts: of each element of a register, and then
// their totals.
type wideState [maxLevels * (8 + 1)]float64

// levels is a kernel of several levels.
type levels struct {
	levels int
	// The last bit of a term or product with these exponent fields, or their sum, is 2^(e-lastBit), and it is
	// less than 2^(e-size).
	lastBit, size int
}

// Those of terms, and of products.
var (
	termLevels    = levels{7, 1075, 1022}
	productLevels = levels{4, 2150, 2044}
)

// top returns where the first level begins for terms of exponents up to high.
func (l *levels) top(high int) int {
	const minNormal = -1022
	// All levels are normal, to their last bit, and finite.
	return min(max(high-l.size+roomBits, minNormal+mantBits+levelBits*(l.levels-1)), maxAbove)
}

// fits says whether there is room for terms of exponents from low to high, unless their last bits are zero.
func (l *levels) fits(low, high int) bool {
	bottom := l.top(high) - levelBits*(l.levels-1) - mantBits
	return high-l.size+roomBits <= maxAbove && low-l.lastBit >= bottom
}

// add adds a block, if it can do so exactly.
func (l *levels) add(a *Accumulator, k kernels, x, y []float64, top int) bool {
	var starts [maxLevels]float64
	for i := range l.levels {
		starts[i] = start(top - levelBits*i)
	}
	var s wideState
	var done int
	var whole bool
	if len(y) == 0 { // no calls by a value, which would have the arrays allocated
		done, whole = k.wideSum(&x[0], len(x), &starts[0], &s)
	} else {
		done, whole = k.wideDot(&x[0], &y[0], len(x), &starts[0], &s)
	}
	if done == 0 {
		return false
	}
	each := l.levels * k.lanes()
	if whole {
		a.addAll(s[each : each+l.levels])
	} else {
		a.addAll(s[:each])
	}
	return true
}

// addLevels adds the elements of x, or, unless y is nil, the products of x and y, block by block, up to the
// first block of which the exponents are too many. It returns what is left of x.
func (a *Accumulator) addLevels(k kernels, x, y []float64) []float64 {
	l := &termLevels
	if y != nil {
		l = &productLevels
	}
	known, top := false, 0
	for len(x) > 0 {
		n := min(len(x), wideBlock)
		block, others := x[:n], y[:min(n, len(y))]
		if !known || !l.add(a, k, block, others, top) {
			low, high := k.extent(block, others, max(n/samples, 1))
			if known = l.fits(low, high); known {
				known, top = a.addFirst(k, l, block, others)
			}
			if !known && (y == nil || high > low+gridWidth || !a.addGrid(k, block, others)) {
				return x
			}
		}
		x, y = x[n:], y[len(others):]
	}
	return x
}

// addFirst adds a block if there is room for it, and returns where its levels begin.
func (a *Accumulator) addFirst(k kernels, l *levels, x, y []float64) (done bool, top int) {
	low, high := k.extent(x, y, 1)
	top = l.top(high + 1) // what follows may be a little larger
	return l.fits(low, high+1) && l.add(a, k, x, y, top), top
}

// The levels for products of any exponents, as far apart.
const (
	gridLevels = 60
	// A block may use so many, one after the other: more take longer than integers do.
	gridUsed = 16
	// What the kernels take at once, or twice that.
	gridGroup = 32
	// Among a few products a difference of exponents is looked for that takes too many levels.
	gridWidth = 480
	// Fewer products whose exponents differ by more than some levels have room for take no longer one by one;
	// measured.
	gridFrom    = 64
	levelsWidth = 60
)

var gridStarts = func() (s [gridLevels]float64) {
	const minNormal = -1022
	for i := range s {
		s[i] = start(max(maxAbove-levelBits*i, minNormal))
	}
	return s
}()

// gridState is as wideState, of the levels that a block has used.
type gridState [gridUsed * (8 + 1)]float64

// addGrid adds the products of a block, if it can do so exactly.
func (a *Accumulator) addGrid(k kernels, x, y []float64) bool {
	var s [2]gridState
	var levels [2]int
	var whole [2]bool
	n := len(x) &^ (gridGroup - 1)
	if n > 0 {
		if levels[0], whole[0] = k.gridDot(&x[0], &y[0], n, &gridStarts[0], &s[0]); levels[0] == 0 {
			return false
		}
	}
	if n < len(x) { // a rest, with zeroes
		var padded [2][gridGroup]float64
		copy(padded[0][:], x[n:])
		copy(padded[1][:], y[n:])
		levels[1], whole[1] = k.gridDot(&padded[0][0], &padded[1][0], gridGroup, &gridStarts[0], &s[1])
		if levels[1] == 0 {
			return false
		}
	}
	for i, n := range levels {
		if whole[i] {
			a.addAll(s[i][gridUsed*8:][:n])
		} else {
			a.addAll(s[i][:n*k.lanes()])
		}
	}
	return true
}

// extent returns the smallest and the largest of the exponent fields of x, or of their sums for the
// products of x and y, zeroes apart; low is more than high if there are none. It looks at one in step.
func (k kernels) extent(x, y []float64, step int) (low, high int) {
	if len(y) < len(x) {
		low, high = k.extent(x, x, step)
		return low / 2, high / 2
	}
	low = 2 * expInf
	if whole := len(x) &^ (extentBatch - 1); step == 1 && whole > 0 {
		low, high = k.extents(&x[0], &y[0], whole)
		x, y = x[whole:], y[whole:]
	}
	y = y[:len(x)]
	for i := 0; i < len(x); i += step {
		bx, by := math.Float64bits(x[i])<<1, math.Float64bits(y[i])<<1
		if bx != 0 && by != 0 {
			e := int(bx>>(mantBits+1) + by>>(mantBits+1))
			low, high = min(low, e), max(high, e)
		}
	}
	return low, high
}
