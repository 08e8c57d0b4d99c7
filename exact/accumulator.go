package exact

import "math"

// A finite float64 is m·2^(e-1075), with m of 53 bits and e from 1 to 2046; a
// product of two is m·2^(e-2150), with m of 106 bits and e from 2 to 4092 (IEEE
// 754-2019, 3.6). In units of 2^-2150 every term is an integer.
const (
	unitExp  = -2150 // binary exponent of the unit
	mantBits = 52
	mantMask = 1<<mantBits - 1
	expMask  = 0x7ff
	expInf   = 0x7ff // exponent field of infinities and NaNs
	termBias = 1075  // from the exponent field of a term to the position of its last bit
	signBit  = 1 << 63

	limbBits = 32
	limbMask = 1<<limbBits - 1

	// The largest product ends below bit 4198, in limb 131. Two more limbs hold the carries of 2^88
	// such products.
	limbs   = 134
	topLimb = limbs - 1
	// A sum in proper form is at least -topLimit and less than topLimit in its top limb.
	topLimit = 1 << 30

	// One addition adds less than 2^52 to a limb: a mantissa without its last bit. A limb in proper
	// form is less than 2^32 and takes a carry of less than 2^32, so it is still less than 2^63
	// after 2047 additions.
	maxAdds = 1<<11 - 1
)

// flags records what matters about the terms besides their finite sum. All flags merge by or.
type flags uint8

const (
	flagNaN     flags = 1 << iota // a term is NaN
	flagPosInf                    // a term is +Inf
	flagNegInf                    // a term is -Inf
	flagNegZero                   // a term is -0; meaningless together with flagOther
	flagOther                     // a term is something other than -0
	flagCount   = iota
)

// Accumulator is an exact sum of float64 values and of products of two. The zero value is the sum
// of no terms and ready for use.
//
// It is a fixed-point number that ranges from the square of the smallest subnormal number to the
// carries of 2^88 squares of the largest number, so a sum of as many terms is never rounded and does
// not overflow on the way. [Accumulator.Merge] says what is beyond that. It takes 1088 bytes, contains
// no pointers, and may be copied by assignment. Equal sums need not be equal by ==, which compares
// carries, too.
//
// No method allocates, except those that return or append bytes, or an error, and no sum of a slice, unless
// the pools have no memory for it. An Accumulator must not be used by two goroutines at a time,
// not even for reading: Round, Span, Words, NarrowWords, AppendBinary and MarshalBinary propagate
// carries in place. Give each goroutine its own, and Merge them.
type Accumulator struct {
	limb  [limbs]int64 // limb i weighs 2^(32i-2150)
	adds  int          // additions since the limbs were in proper form
	flags flags
}

// Reset empties a: it becomes the sum of no terms.
func (a *Accumulator) Reset() { *a = Accumulator{} }

// Add adds x, exactly.
func (a *Accumulator) Add(x float64) { a.add(math.Float64bits(x)) }

func (a *Accumulator) add(b uint64) {
	e, m := b>>mantBits&expMask, b&mantMask
	switch {
	case e-1 < expInf-1:
		m |= 1 << mantBits
	case e == expInf:
		a.addNonFinite(b)
		return
	case b == signBit:
		a.flags |= flagNegZero
		return
	default:
		e = 1
	}
	a.flags |= flagOther
	if a.adds == maxAdds {
		a.carry()
	}
	a.adds++
	sign := int64(b) >> 63
	p := e + termBias
	i, s := p/limbBits, p%limbBits
	a.limb[i] += int64(m<<s&limbMask) ^ sign - sign
	a.limb[i+1] += int64(m>>((limbBits-s)&63)) ^ sign - sign
}

// addNonFinite adds a NaN or an infinity.
func (a *Accumulator) addNonFinite(b uint64) {
	a.flags |= flagOther
	switch {
	case b&mantMask != 0:
		a.flags |= flagNaN
	case b < signBit:
		a.flags |= flagPosInf
	default:
		a.flags |= flagNegInf
	}
}

// addWide adds ±(hi·2^64+lo)·2^p units; sign is 0 or -1. Each limb gets less than 2^32.
func (a *Accumulator) addWide(p, hi, lo uint64, sign int64) {
	if a.adds == maxAdds {
		a.carry()
	}
	a.adds++
	i, s := p/limbBits, p%limbBits
	v0, v1, v2 := lo<<s, hi<<s|lo>>(64-s), hi>>(64-s)
	limb := a.limb[i : i+5 : i+5]
	limb[0] += int64(v0&limbMask) ^ sign - sign
	limb[1] += int64(v0>>limbBits) ^ sign - sign
	limb[2] += int64(v1&limbMask) ^ sign - sign
	limb[3] += int64(v1>>limbBits) ^ sign - sign
	limb[4] += int64(v2) ^ sign - sign
}

// Merge adds all terms of b to a. b does not change; it may be a itself, whose sum is then doubled.
//
// The finite part of a sum is limited to ±2^2136. It takes more than 2^88 terms, repeated doubling by
// Merge, or words and encodings that so many terms have, to go beyond that. The sum is then infinite from
// the next time on that carries are propagated, which Round and the others do, and additions now and
// then; the finite part is lost. Only there the order of terms, of merging and of these calls matters: a
// sum that comes back into the range is finite, infinite or NaN, and infinite sums of the same terms may
// differ in their words and encodings.
func (a *Accumulator) Merge(b *Accumulator) {
	if a.adds+b.adds+1 > maxAdds {
		a.carry()
		if a.adds+b.adds+1 > maxAdds {
			proper := *b
			proper.carry()
			b = &proper
		}
	}
	for i := range a.limb {
		a.limb[i] += b.limb[i]
	}
	a.adds += b.adds + 1
	a.flags |= b.flags
}

// carry brings a into proper form: all limbs except the top one are from 0 to 2^32-1. Every sum has
// exactly one such form.
func (a *Accumulator) carry() {
	c := int64(0)
	for i := range a.limb[:topLimb] {
		v := a.limb[i] + c
		a.limb[i] = v & limbMask
		c = v >> limbBits
	}
	a.limb[topLimb] += c
	a.adds = 0
	a.saturate()
}

// settle brings a into proper form if it is not.
func (a *Accumulator) settle() {
	if a.adds != 0 {
		a.carry()
	}
}

// saturate makes a sum that is out of range infinite.
func (a *Accumulator) saturate() {
	switch top := a.limb[topLimb]; {
	case top >= topLimit:
		a.flags |= flagPosInf
	case top < -topLimit:
		a.flags |= flagNegInf
	default:
		return
	}
	a.limb = [limbs]int64{}
}

// lowest returns the index of the lowest nonzero limb of a sum in proper form; limbs if all are
// zero.
func (a *Accumulator) lowest() int {
	for i, v := range a.limb {
		if v != 0 {
			return i
		}
	}
	return limbs
}

// digit returns limb i of the magnitude of a sum in proper form whose lowest nonzero limb is low.
func (a *Accumulator) digit(i, low int) uint64 {
	v := a.limb[i]
	if a.limb[topLimb] < 0 {
		switch {
		case i > low:
			v = ^v
		case i == low:
			v = -v
		}
	}
	return uint64(v) & limbMask
}

// highest returns the index of the highest nonzero limb of the magnitude of a nonzero sum in proper
// form whose lowest nonzero limb is low.
func (a *Accumulator) highest(low int) int {
	i := topLimb
	for a.digit(i, low) == 0 {
		i--
	}
	return i
}
