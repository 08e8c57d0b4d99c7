package exact

import (
	"math"
	"unsafe"
)

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

	// Among so many terms a difference of exponents is looked for that a kernel has no room for.
	samples  = 8
	sumWidth = 26
	dotWidth = 40
	// What it has room for, most often.
	dotRoom = 30

	// From so many blocks of products on, which are different, a table is worth emptying; measured.
	wideTable = 4

	// What the kernels for limbs and for exponents take at once.
	limbBatch   = 8
	extentBatch = 4

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

// terms is a sum of slices, one after the other. What it has of them is not in the accumulator before
// finish, which is costly: it is for a whole sum.
type terms struct {
	k      kernels
	state  sumState
	t      *bins
	empty  bool // no terms are in state
	whole  bool // as the kernel has said of state
	wide   int  // so many of the next terms are not for the kernel
	handed int  // blocks that are not, the next time that it hands one back
}

// start makes a sum of no terms.
func (s *terms) start(k kernels) { s.k, s.empty, s.whole, s.handed = k, true, true, 1 }

// add adds x: what is not exact in a kernel, as integers.
func (s *terms) add(a *Accumulator, x []float64) {
	a.noteTerms(x)
	if s.k == plain {
		a.addIntegers(&s.t, x)
		return
	}
	if s.empty && s.wide == 0 && tooWide(x) {
		s.refuse(maxHanded)
	}
	for len(x) > 0 {
		if s.wide > 0 {
			n := min(len(x), s.wide)
			a.addWideTerms(s.k, &s.t, x[:n])
			x = x[n:]
			s.wide -= n
			continue
		}
		n := min(len(x), sumStretch)
		var done int
		done, s.whole = s.k.sum(&x[0], n, &s.state)
		x = x[done:]
		switch {
		case done == n:
			s.empty, s.handed = false, 1
		case done > 0 || !s.empty:
			s.state.flush(a, s.whole) // the next block may be too small for these chains only
			s.state = sumState{}
			if s.empty = true; done > 0 {
				s.handed = 1
			}
		default:
			s.refuse(s.handed)
		}
	}
}

// refuse keeps so many blocks from the kernel, and twice as many the next time.
func (s *terms) refuse(blocks int) { s.wide, s.handed = blocks*sumBlock, min(2*blocks, maxHanded) }

// finish adds to a what is not there yet.
func (s *terms) finish(a *Accumulator) {
	if !s.empty {
		s.state.flush(a, s.whole)
	}
	s.t.release(a)
}

// tooWide looks at some terms, and says whether the chains have no room for their exponents.
func tooWide(x []float64) bool {
	low, high := uint64(expInf), uint64(0)
	for i := 0; i < len(x); i += max(len(x)/samples, 1) {
		if e := math.Float64bits(x[i]) >> mantBits & expMask; e != 0 {
			low, high = min(low, e), max(high, e)
		}
	}
	return high > low+sumWidth
}

// addWideTerms adds x by running sums of several levels where these have room. Otherwise it adds x to the
// limbs, or, if it is long, by the table *t, which it takes from the pool: it costs less for each term,
// and more to empty.
func (a *Accumulator) addWideTerms(k kernels, t **bins, x []float64) {
	if len(x) >= termLevelsFrom {
		x = a.addLevels(k, x, nil)
	}
	if len(x) == 0 {
		return
	}
	if *t == nil && len(x) < maxHanded*sumBlock {
		a.addLimbs(k, x)
	} else {
		a.addIntegers(t, x)
	}
}

// addLimbs adds x to the limbs.
func (a *Accumulator) addLimbs(k kernels, x []float64) {
	for len(x) > 0 {
		if a.adds == maxAdds {
			a.carry()
		}
		n := min(len(x), maxAdds-a.adds)
		done := k.limbs(&x[0], n, &a.limb)
		a.adds += done
		x = x[done:]
		// What is left is no multiple of what the kernel takes, or not finite.
		n = min(len(x), limbBatch)
		for _, v := range x[:n] {
			a.add(math.Float64bits(v))
		}
		x = x[n:]
	}
}

// dotState is what a kernel has of an inner product: chains, a register each, and after those of the widest
// registers their sums.
type dotState [dotWords]float64

const (
	dotChains = 12
	dotTotals = 4
	dotWords  = dotChains*8 + dotTotals
)

func (s *dotState) flush(a *Accumulator, k kernels, whole bool) {
	if whole {
		a.addAll(s[dotChains*8:])
	} else {
		a.addAll(s[:dotChains*k.lanes()])
	}
}

const (
	// The running sum above begins at 1.5·2^k, where products are to be less than 2^(k-roomBits): 512 of
	// them leave it between 2^k and 2^(k+1), and the kernel sees if they do not. The error of a
	// product is then at most 2^(k-54), whatever the product: 516 of these leave the running sum below,
	// which begins at 1.5·2^(k-belowBits), between the powers of two, too.
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

// guess looks at some products, and leaves room for the others; it says by how much their exponents differ.
func guess(x, y []float64) (k, width int) {
	low, high := 2*expInf, 0
	n := min(len(x), dotBlock)
	for i := 0; i < n; i += max(n/samples, 1) {
		e := exponents(x[i], y[i])
		if high = max(high, e); x[i] != 0 && y[i] != 0 {
			low = min(low, e)
		}
	}
	return aboveFor(high + 2), high - low
}

// scattered says whether so few products, whose exponents differ by so much, are best added one by one.
func scattered(n, width int) bool {
	if n < gridFrom {
		return width > levelsWidth
	}
	return width > gridWidth && n < productBinsFrom
}

// products is a sum of products, as terms is one of terms.
type products struct {
	memory  [dotWords + 7]float64
	place   int // in memory, where state begins
	t       *productTable
	above   int // k, where the running sum above begins
	room    int // of so many products, of those of a stretch
	wide    int // so many of the next products are not for the kernel
	handed  int // blocks that are not, the next time that it hands one back
	k       kernels
	guessed bool // above has been
	empty   bool // no products are in state
	whole   bool // as the kernel has said of state
}

// start makes a sum of no products.
func (s *products) start(k kernels) {
	s.k, s.t, s.guessed, s.room, s.empty, s.wide, s.handed = k, nil, false, dotStretch, true, 0, 1
	s.place = int(-uintptr(unsafe.Pointer(&s.memory)) % 64 / 8)
}

// begin takes a guess.
func (s *products) begin(above, width int) {
	s.above, s.guessed = above, true
	if width > dotWidth {
		s.refuse(maxHanded)
	}
}

// state is what the kernel has. It begins a line of the cache: a register that lies across two takes longer.
func (s *products) state() *dotState { return (*dotState)(s.memory[s.place:][:dotWords]) }

// add adds the products of x and y: what is not exact in a kernel, as integers.
func (s *products) add(a *Accumulator, x, y []float64) {
	a.noteProducts(x, y)
	if s.k == plain {
		a.addIntegerProducts(&s.t, x, y)
		return
	}
	if !s.guessed && len(x) > 0 {
		s.begin(guess(x, y))
	}
	for len(x) > 0 {
		if s.wide > 0 {
			n := min(len(x), s.wide)
			a.addWideProducts(s.k, &s.t, x[:n], y[:n])
			x, y = x[n:], y[n:]
			s.wide -= n
			continue
		}
		n := min(len(x), s.room)
		var done int
		done, s.whole = s.k.dot(&x[0], &y[0], n, s.empty, start(s.above), start(s.above-belowBits), s.state())
		x, y = x[done:], y[done:]
		s.empty = s.empty && done == 0
		if s.room -= done; done == n {
			if s.room == 0 { // a part of it may be chance
				s.flush(a)
				s.handed = 1
			}
			continue
		}
		s.flush(a)
		n = min(len(x), dotBlock)
		low, high := s.k.extent(x[:n], y[:n], 1)
		if best := aboveFor(high); best != s.above && high <= low+dotRoom {
			s.above = best
			continue
		}
		s.refuse(s.handed)
	}
}

// refuse keeps so many blocks from the kernel, and twice as many the next time.
func (s *products) refuse(blocks int) { s.wide, s.handed = blocks*dotBlock, min(2*blocks, maxHanded) }

// flush adds to a what is in state, and begins anew.
func (s *products) flush(a *Accumulator) {
	if !s.empty {
		s.state().flush(a, s.k, s.whole)
		s.empty = true
	}
	s.room = dotStretch
}

// finish adds to a what is not there yet.
func (s *products) finish(a *Accumulator) {
	if !s.empty {
		s.state().flush(a, s.k, s.whole)
	}
	s.t.release(a)
}

// addWideProducts adds the products of x and y by running sums of several levels where these have
// room; otherwise one by one, or, if they are many, by the table *t, which it takes from the pool.
func (a *Accumulator) addWideProducts(k kernels, t **productTable, x, y []float64) {
	x = a.addLevels(k, x, y)
	if y = y[len(y)-len(x):]; len(x) == 0 {
		return
	}
	if *t != nil || len(x) >= wideTable*dotBlock {
		a.addIntegerProducts(t, x, y)
		return
	}
	for i, v := range x {
		a.addProduct(math.Float64bits(v), math.Float64bits(y[i]))
	}
}
