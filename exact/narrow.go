package exact

import "fmt"

// FlagWords is how many words of a narrow form precede those of the sum.
const FlagWords = flagCount

// Span returns the lowest and the highest word of the sum, as Words writes it, that a narrow form must
// hold; the highest is less than the lowest if the sum is zero.
func (a *Accumulator) Span() (lowest, highest int) {
	a.settle()
	low := a.lowest()
	if low == limbs {
		return limbs, -1
	}
	return low, a.highest(low)
}

// NarrowWords writes part of what Words writes: first the [FlagWords] words that count accumulators, then
// the words of the sum from word low on, as many as dst has room for. The last one has the sign, and is
// from -2^32 to 2^32-1. As with Words, the elementwise sum for up to [MaxMerged] accumulators, all with the
// same low and length, represents the merged ones, for [Accumulator.SetNarrowWords].
//
// It reports whether the sum has nothing beside these words. If it has, the words of the sum are 0, for a
// message that says so to others; those that count accumulators are as ever. NarrowWords panics unless dst
// has room for at least two words of the sum, and all of these exist.
func (a *Accumulator) NarrowWords(dst []int64, low int) bool {
	flags, part := narrow(dst, low)
	quick := a.narrowLimbs(part, low)
	if !quick {
		a.settle() // the sum may be infinite
	}
	f := a.flags.proper()
	for i := range flags {
		flags[i] = int64(f >> i & 1)
	}
	if quick {
		return true
	}
	if !a.fits(low, low+len(part)-1) {
		clear(part)
		return false
	}
	copy(part, a.limb[low:])
	if a.limb[topLimb] < 0 && low+len(part) < limbs {
		part[len(part)-1] -= 1 << limbBits
	}
	return true
}

// narrowLimbs writes the words of a sum of which all other limbs are zero, whatever its form; false if it has
// others, or the last word would be too large.
func (a *Accumulator) narrowLimbs(part []int64, low int) bool {
	if !zero(a.limb[:low]) || !zero(a.limb[low+len(part):]) || low+len(part) == limbs {
		return false
	}
	c := int64(0)
	for i, v := range a.limb[low:][:len(part)] {
		v += c
		part[i], c = v&limbMask, v>>limbBits
	}
	last := &part[len(part)-1]
	*last |= c << limbBits
	return c == 0 || c == -1
}

// zero says whether all limbs are.
func zero(limb []int64) bool {
	var a, b, c, d int64
	for ; len(limb) >= 4; limb = limb[4:] {
		a, b, c, d = a|limb[0], b|limb[1], c|limb[2], d|limb[3]
	}
	for _, v := range limb {
		a |= v
	}
	return a|b|c|d == 0
}

// narrow returns the parts of a narrow form.
func narrow(words []int64, low int) (flags *[flagCount]int64, part []int64) {
	if n := len(words) - flagCount; n < 2 || low < 0 || low > limbs-n {
		panic(fmt.Sprintf("exact: a narrow form of %d words from word %d on", n, low))
	}
	return (*[flagCount]int64)(words), words[flagCount:]
}

// fits says whether a sum in proper form has nothing below limb low, and only its sign above limb high.
func (a *Accumulator) fits(low, high int) bool {
	if !zero(a.limb[:low]) {
		return false
	}
	some, sign := int64(0), a.limb[topLimb]>>63
	for i := high + 1; i < topLimb; i++ {
		some |= a.limb[i] ^ sign&limbMask
	}
	if high < topLimb {
		some |= a.limb[topLimb] ^ sign
	}
	return some == 0
}

// SetNarrowWords sets a to the sum whose narrow words, from word low on, are src: those of one accumulator, or
// the elementwise sum of those of several. For words that cannot be that it returns [ErrWords] and leaves a
// unchanged. It panics as NarrowWords does.
func (a *Accumulator) SetNarrowWords(src []int64, low int) error {
	counts, part := narrow(src, low)
	f, err := wordFlags(counts)
	if err != nil {
		return err
	}
	high := low + len(part) - 1
	some := part[len(part)-1]
	for i, v := range part[:len(part)-1] {
		if v < 0 || v > MaxMerged*limbMask {
			return fmt.Errorf("%w: word %d is %d, out of range", ErrWords, low+i, v)
		}
		some |= v
	}
	const top = MaxMerged * topLimit
	if v := part[len(part)-1]; v > MaxMerged*limbMask || high == topLimb && (v < -top || v >= top) {
		return fmt.Errorf("%w: word %d is %d, out of range", ErrWords, high, v)
	}
	if some != 0 && f&flagOther == 0 {
		return fmt.Errorf("%w: the sum is not zero but has no terms", ErrWords)
	}
	*a = Accumulator{flags: f}
	c := int64(0) // less than 2^31 below the last word
	for i, v := range part {
		v += c // at least -2^63: only the last word is negative, and no carry is
		if low+i == topLimb {
			a.limb[topLimb] = v
			a.saturate()
			return nil
		}
		a.limb[low+i], c = v&limbMask, v>>limbBits
	}
	for i := high + 1; i < topLimb && c != 0; i++ {
		a.limb[i], c = c&limbMask, c>>limbBits
	}
	a.limb[topLimb] = c
	a.saturate()
	return nil
}
