package exact

import (
	"math"
	"math/bits"
)

// canonicalNaN is the NaN of every sum that is not a number: quiet, positive, payload 0.
const canonicalNaN = 0x7ff8000000000000

// Round returns the float64 nearest to the sum of all terms; in a tie, the one whose last bit is 0
// (IEEE 754-2019, 4.3.1). The result may be subnormal. A sum whose magnitude rounds beyond
// [math.MaxFloat64] is infinite.
//
// Exceptions are those of a sum in IEEE 754 arithmetic, in any order:
//
//   - With a NaN among the terms, infinities of both signs, or a product of zero
//     and infinity: NaN, always with the bits 0x7ff8000000000000.
//   - Otherwise, with an infinity among them: that infinity.
//   - Without terms: +0.
//   - With terms that are all -0: -0. If one is not, a sum that is zero is +0. An
//     empty part of a sum therefore changes nothing.
//   - A sum that is not zero but rounds to zero, as sums of products may, keeps
//     its sign.
//
// More terms may be added after Round.
func (a *Accumulator) Round() float64 {
	a.settle()
	switch a.flags & (flagNaN | flagPosInf | flagNegInf) {
	case 0:
	case flagPosInf:
		return math.Inf(1)
	case flagNegInf:
		return math.Inf(-1)
	default:
		return math.Float64frombits(canonicalNaN)
	}
	low := a.lowest()
	if low == limbs {
		if a.flags&(flagNegZero|flagOther) == flagNegZero {
			return math.Copysign(0, -1)
		}
		return 0
	}
	r := a.magnitude(low)
	if a.limb[topLimb] < 0 {
		r |= signBit
	}
	return math.Float64frombits(r)
}

// magnitude returns the bits of the rounded magnitude of a nonzero sum in proper form whose lowest
// nonzero limb is low.
func (a *Accumulator) magnitude(low int) uint64 {
	high := a.highest(low)
	// m is the first 64 bits, the first of which is 1; sticky says whether there are
	// more bits behind them. The sum is m·2^(e-63).
	var digit [3]uint64
	for i := range digit {
		if high-i >= 0 {
			digit[i] = a.digit(high-i, low)
		}
	}
	zeros := bits.LeadingZeros32(uint32(digit[0]))
	m := (digit[0]<<limbBits|digit[1])<<zeros | digit[2]>>(limbBits-zeros)
	sticky := low < high-2 || digit[2]<<zeros&limbMask != 0
	e := limbBits*high + limbBits - 1 - zeros + unitExp

	const minExp, maxExp = -1022, 1023
	if e > maxExp {
		return expInf << mantBits
	}
	shift := 63 - mantBits
	if e < minExp {
		shift += minExp - e
		e = minExp - 1
	}
	if shift > 64 {
		return 0
	}
	q := m >> shift
	rest := m << (64 - shift) // against one half, which is 1<<63
	if rest > signBit || rest == signBit && (sticky || q&1 != 0) {
		q++
	}
	// A normal q has its implicit bit, which adds 1 to the exponent field; and so does
	// a q that was rounded up to the next power of two.
	if e < minExp {
		return q
	}
	return uint64(e-minExp)<<mantBits + q
}
