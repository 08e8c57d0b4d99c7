package exact

import (
	"errors"
	"fmt"
)

const (
	// Words is the number of int64 that a sum consists of when it is merged by addition:
	// 1112 bytes.
	Words = limbs + flagCount

	// MaxMerged is the largest number of accumulators whose words may be added.
	MaxMerged = 1 << 31
)

// ErrWords is the error of words that are not the sum of words of accumulators.
var ErrWords = errors.New("exact: invalid words")

// Words writes the sum to dst in a form that merges by addition: the elementwise
// int64 sum of the words of up to [MaxMerged] accumulators, in any order and
// grouping, is the words, for [Accumulator.SetWords], of all of them merged. No
// element overflows on the way. A collective operation that adds int64 so adds exact
// sums.
//
// Word i, for i below 134, weighs 2^(32i-2150); it is from 0 to 2^32-1, the last of
// them from -2^30 to 2^30-1. The other five are counts, 0 or 1 here, of the
// accumulators that have as a term NaN, +Inf, -Inf, nothing but -0, and
// something else than -0, in this order. Equal sums, in this sense, have equal words.
func (a *Accumulator) Words(dst *[Words]int64) {
	a.settle()
	copy(dst[:limbs], a.limb[:])
	f := a.flags.proper()
	for i := range flagCount {
		dst[limbs+i] = int64(f >> i & 1)
	}
}

// proper returns the flags as they are written: whether a sum that has had another
// term has also had -0 depends on how the terms came, and means nothing.
func (f flags) proper() flags {
	if f&flagOther != 0 {
		return f &^ flagNegZero
	}
	return f
}

// SetWords makes a the sum whose words are src: those of one accumulator, or the
// elementwise sum of those of several. They are checked: words that no sum of at most
// [MaxMerged] accumulators has are [ErrWords], and a stays as it was. Bits that
// were changed within these bounds nothing can tell.
func (a *Accumulator) SetWords(src *[Words]int64) error {
	f, err := wordFlags((*[flagCount]int64)(src[limbs:]))
	if err != nil {
		return err
	}
	set := false
	for i, v := range src[:topLimb] {
		if v < 0 || v > MaxMerged*limbMask {
			return fmt.Errorf("%w: word %d is %d", ErrWords, i, v)
		}
		set = set || v != 0
	}
	const top = MaxMerged * topLimit
	if v := src[topLimb]; v < -top || v >= top {
		return fmt.Errorf("%w: word %d is %d", ErrWords, topLimb, v)
	}
	if set = set || src[topLimb] != 0; set && f&flagOther == 0 {
		return fmt.Errorf("%w: a sum without terms", ErrWords)
	}
	// A word is at most 2^63-2^31, and the carry is less than 2^31.
	copy(a.limb[:], src[:limbs])
	a.flags = f
	a.carry()
	return nil
}

// wordFlags returns the flags of which counts are given.
func wordFlags(count *[flagCount]int64) (f flags, err error) {
	for i, n := range count {
		if n < 0 || n > MaxMerged {
			return 0, fmt.Errorf("%w: word %d is %d", ErrWords, limbs+i, n)
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

// possible says whether there are terms that have such flags.
func (f flags) possible() bool {
	return f&flagOther != 0 || f&(flagNaN|flagPosInf|flagNegInf) == 0
}
