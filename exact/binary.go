package exact

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrEncoding reports bytes that AppendBinary cannot have written.
var ErrEncoding = errors.New("exact: invalid encoding")

const (
	encodingVersion = 1
	encodedNegative = 0x80
	encodedHeader   = 4
)

// MaxEncoded is the most bytes that [Accumulator.AppendBinary] appends.
const MaxEncoded = encodedHeader + 4*limbs

// AppendBinary appends an encoding of the sum, for files and messages, to b and returns the result;
// the error is always nil. The length depends on the sum. It implements [encoding.BinaryAppender].
// Every sum has exactly one encoding, whatever the order of its terms, within the range that
// [Accumulator.Merge] describes:
//
//	byte 0       1, the version
//	byte 1       bits 0 to 4: a term is NaN, +Inf, -Inf; all are -0; one is not -0
//	             bit 7: the finite part of the sum is negative
//	byte 2       s, which counts 32 bits; 0 if n is
//	byte 3       n, the number of limbs; 0 if the finite part is zero
//	4n bytes     its magnitude / 2^(32s-2150), an integer, big-endian; neither the
//	             first nor the last 4 bytes are all zero
func (a *Accumulator) AppendBinary(b []byte) ([]byte, error) {
	a.settle()
	f := byte(a.flags.proper())
	low := a.lowest()
	if low == limbs {
		return append(b, encodingVersion, f, 0, 0), nil
	}
	if a.limb[topLimb] < 0 {
		f |= encodedNegative
	}
	high := a.highest(low)
	b = append(b, encodingVersion, f, byte(low), byte(high-low+1))
	for i := high; i >= low; i-- {
		b = binary.BigEndian.AppendUint32(b, uint32(a.digit(i, low)))
	}
	return b, nil
}

// MarshalBinary returns the encoding of [Accumulator.AppendBinary]. It implements
// [encoding.BinaryMarshaler].
func (a *Accumulator) MarshalBinary() ([]byte, error) { return a.AppendBinary(nil) }

// UnmarshalBinary sets a to the sum that AppendBinary has encoded in b, which it does not keep. For
// anything else it returns [ErrEncoding] and leaves a unchanged. It implements [encoding.BinaryUnmarshaler].
func (a *Accumulator) UnmarshalBinary(b []byte) error {
	if len(b) < encodedHeader {
		return fmt.Errorf("%w: %d bytes", ErrEncoding, len(b))
	}
	f, negative := flags(b[1]&^encodedNegative), b[1]&encodedNegative != 0
	low, n := int(b[2]), int(b[3])
	digits := b[encodedHeader:]
	switch {
	case b[0] != encodingVersion:
		return fmt.Errorf("%w: unknown version %d", ErrEncoding, b[0])
	case f >= 1<<flagCount || !f.possible() || f&flagNegZero != 0 && f != flagNegZero:
		return fmt.Errorf("%w: invalid flags %#02x", ErrEncoding, b[1])
	case len(digits) != 4*n:
		return fmt.Errorf("%w: %d bytes for %d limbs", ErrEncoding, len(b), n)
	case n == 0 && (negative || low != 0):
		return fmt.Errorf("%w: a zero sum has sign %t and scale %d", ErrEncoding, negative, low)
	case n == 0:
		*a = Accumulator{flags: f}
		return nil
	case low+n > limbs:
		return fmt.Errorf("%w: limbs %d to %d are out of range", ErrEncoding, low, low+n-1)
	case f&flagOther == 0:
		return fmt.Errorf("%w: the sum is not zero but has no terms", ErrEncoding)
	}
	var sum Accumulator
	for i := range n {
		v := int64(binary.BigEndian.Uint32(digits[4*i:]))
		if v == 0 && (i == 0 || i == n-1) {
			return fmt.Errorf("%w: the outermost limb %d is zero", ErrEncoding, low+n-1-i)
		}
		if negative {
			v = -v
		}
		sum.limb[low+n-1-i] = v
	}
	sum.carry()
	sum.flags |= f
	if sum.limb == [limbs]int64{} {
		return fmt.Errorf("%w: the sum is beyond 2^2136", ErrEncoding)
	}
	*a = sum
	return nil
}
