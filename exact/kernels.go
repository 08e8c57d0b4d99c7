package exact

import "math"

// kernels is the set of instructions that sums of slices use.
type kernels uint8

const (
	plain kernels = iota // integers only, in Go
	avx2                 // AVX2 and FMA
	avx512
)

const (
	// Shorter slices are added term by term; measured.
	sumFrom = 32
	dotFrom = 32

	// The Go runtime cannot preempt a goroutine in assembly, which garbage collection waits for:
	// a kernel is given this many terms at once, some microseconds.
	sumStretch = 1 << 14
	// The running sums of an inner product have room for the products of one stretch: 512 or
	// fewer on each of at least 8 elements.
	dotStretch = 1 << 12
	// What the kernels know to be exact or not, together.
	sumBlock = 1 << 10
	dotBlock = 1 << 9

	// A block that a kernel hands back goes to the integers, and then as many more terms before the
	// kernel is tried again; twice as many each time, up to this many blocks.
	maxHanded = 64
)

// sumState is what a kernel has of a sum: chains for each element of its registers, and
// their sums.
type sumState struct {
	chains [64]float64
	total  [2]float64
}

func (s *sumState) flush(a *Accumulator, whole bool) {
	if whole {
		a.addAll(s.total[:])
	} else {
		a.addAll(s.chains[:])
	}
}

// addAll adds x, in which a zero stands for no terms.
func (a *Accumulator) addAll(x []float64) {
	for _, v := range x {
		if b := math.Float64bits(v); b<<1 != 0 { // by integers: to v != 0, a subnormal number may be zero
			a.add(b)
		}
	}
}

// sumKernel adds x: what is not exact in a kernel, as integers.
func (a *Accumulator) sumKernel(k kernels, x []float64) {
	var s sumState
	var t *bins
	empty, whole, handed := true, true, 1
	for len(x) > 0 {
		n := min(len(x), sumStretch)
		var done int
		done, whole = k.sum(&x[0], n, &s)
		x = x[done:]
		switch {
		case done == n:
			empty, handed = false, 1
		case done > 0 || !empty:
			s.flush(a, whole) // the next block may be too small for these chains only
			s = sumState{}
			if empty = true; done > 0 {
				handed = 1
			}
		default:
			n = min(len(x), handed*sumBlock)
			a.addIntegers(&t, x[:n])
			x = x[n:]
			handed = min(2*handed, maxHanded)
		}
	}
	if !empty {
		s.flush(a, whole)
	}
	t.release(a)
}

// dotState is what a kernel has of an inner product.
type dotState struct {
	chains [96]float64
	total  [4]float64
}

func (s *dotState) flush(a *Accumulator, whole bool) {
	if whole {
		a.addAll(s.total[:])
	} else {
		a.addAll(s.chains[:])
	}
}

const (
	// The running sum above begins at 1.5·2^k, where products are to be less than 2^(k-roomBits), and
	// that below at 1.5·2^(k-belowBits).
	roomBits  = 11
	belowBits = 42
	// Where k may be: all of it is normal, and finite.
	minAbove, maxAbove = -900, 1020
)

// aboveFor returns k for products of numbers with these sums of exponent fields.
func aboveFor(e int) int {
	return min(max(e-2*1023+2+roomBits, minAbove), maxAbove)
}

// start returns 1.5·2^k.
func start(k int) float64 { return math.Float64frombits(uint64(k+1023)<<mantBits | 1<<(mantBits-1)) }

func exponents(x, y float64) int {
	return int(math.Float64bits(x)>>mantBits&expMask) + int(math.Float64bits(y)>>mantBits&expMask)
}

// guess looks at some products, and leaves room for the others.
func guess(x, y []float64) int {
	e := 0
	x = x[:min(len(x), dotBlock)]
	for i := 0; i < len(x); i += len(x) / 8 {
		e = max(e, exponents(x[i], y[i]))
	}
	return aboveFor(e + 2)
}

// largest looks at all products.
func largest(x, y []float64) int {
	e := 0
	for i, v := range x {
		e = max(e, exponents(v, y[i]))
	}
	return aboveFor(e)
}

// dotKernel adds the products of x and y: what is not exact in a kernel, as integers.
func (a *Accumulator) dotKernel(k kernels, x, y []float64) {
	var t *productTable
	above, handed := guess(x, y), 1
	for len(x) > 0 {
		var s dotState
		n := min(len(x), dotStretch)
		done, whole := k.dot(&x[0], &y[0], n, start(above), start(above-belowBits), &s)
		if done > 0 {
			s.flush(a, whole)
			x, y, handed = x[done:], y[done:], 1
		}
		if done == n {
			continue
		}
		n = min(len(x), dotBlock)
		if best := largest(x[:n], y[:n]); best != above {
			above = best
			continue
		}
		n = min(len(x), handed*dotBlock)
		a.addIntegerProducts(&t, x[:n], y[:n])
		x, y = x[n:], y[n:]
		handed = min(2*handed, maxHanded)
	}
	t.release(a)
}
