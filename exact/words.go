package exact

import (
	"errors"
	"fmt"
)

const (
	// Words is the number of int64 in the form of a sum that merges by addition: 1112 bytes.
	Words = limbs + flagCount

	// MaxMerged is the largest number of accumulators whose words may be added.
	MaxMerged = 1 << 31
)

// ErrWords reports words that are not a sum of the words of accumulators.
var ErrWords = errors.New("exact: invalid words")

// Words writes the sum to dst in a form that merges by addition: the elementwise int64 sum of the
// words of up to [MaxMerged] accumulators, in any order and grouping, represents the merged
// accumulators and can be passed to [Accumulator.SetWords]. No element overflows on the way, so a
// collective operation that adds int64 values adds exact sums.
//
// Word i, for i below 134, weighs 2^(32i-2150); it is from 0 to 2^32-1, the last of these from
// -2^30 to 2^30-1. The other five words count accumulators, each 0 or 1 here: those with a NaN
// term, a +Inf term, a -Inf term, only -0 terms, and a term other than -0, in this order. Sums that
// are equal in this sense have equal words, whatever the order of their terms, within the range that
// [Accumulator.Merge] describes. Sums of words are compared with that range by SetWords only.
func (a *Accumulator) Words(dst *[Words]int64) {
	a.settle()
	copy(dst[:limbs], a.limb[:])
	f := a.flags.proper()
	for i := range flagCount {
		dst[limbs+i] = int64(f >> i & 1)
	}
}

// proper returns the flags as they are written. Whether a sum with other terms also had a -0 term
// depends on how the terms came, and means nothing.
func (f flags) proper() flags {
	if f&flagOther != 0 {
		return f &^ flagNegZero
	}
	return f
}

// SetWords sets a to the sum whose words are src: those of one accumulator, or the elementwise sum
// of those of several. For words that cannot be the sum of at most [MaxMerged] accumulators it
// returns [ErrWords] and leaves a unchanged. It cannot detect corrupted words that are within these
// bounds.
func (a *Accumulator) SetWords(src *[Words]int64) error {
	f, err := wordFlags((*[flagCount]int64)(src[limbs:]))
	if err != nil {
		return err
	}
	set := false
	for i, v := range src[:topLimb] {
		if v < 0 || v > MaxMerged*limbMask {
			return fmt.Errorf("%w: word %d is %d, out of range", ErrWords, i, v)
		}
		set = set || v != 0
	}
	const top = MaxMerged * topLimit
	if v := src[topLimb]; v < -top || v >= top {
		return fmt.Errorf("%w: word %d is %d, out of range", ErrWords, topLimb, v)
	}
	if set = set || src[topLimb] != 0; set && f&flagOther == 0 {
		return fmt.Errorf("%w: the sum is not zero but has no terms", ErrWords)
	}
	// A word is at most 2^63-2^31, and the carry is less than 2^31.
	copy(a.limb[:], src[:limbs])
	a.flags = f
	a.carry()
	return nil
}

// wordFlags returns the flags for the given counts.
func wordFlags(count *[flagCount]int64) (f flags, err error) {
	for i, n := range count {
		if n < 0 || n > MaxMerged {
			return 0, fmt.Errorf("%w: word %d is %d, out of range", ErrWords, limbs+i, n)
		}
		if n != 0 {
			f |= 1 << i
		}
	}
	if !f.possible() {
		return 0, fmt.Errorf("%w: an infinity or NaN without terms", ErrWords)
	}
	return f.proper(), nil
}

// possible says whether any set of terms has these flags.
func (f flags) possible() bool {
	return f&flagOther != 0 || f&(flagNaN|flagPosInf|flagNegInf) == 0
}
