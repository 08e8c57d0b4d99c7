// Package philox is the counter-based random number generator Philox4x32-10: a bijection of
// counters, chosen by a key. The number for a site and step of a lattice is the same on every
// node, and independent of earlier numbers.
//
// J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, Parallel random numbers: as
// easy as 1, 2, 3, SC11 (2011), doi:10.1145/2063384.2063405.
package philox

import (
	"math"
	"math/bits"
)

// From section 4.3 of the paper: two odd multipliers, and the increments of the keys (the golden
// ratio, and the square root of 3 less 1, times 2^32).
const (
	multiplier0, multiplier1 = 0xD2511F53, 0xCD9E8D57
	weyl0, weyl1             = 0x9E3779B9, 0xBB67AE85

	rounds = 10
)

// Block returns the four random numbers of a counter under a key.
func Block(counter [4]uint32, key [2]uint32) [4]uint32 {
	c, k := counter, key
	for range rounds {
		h0, l0 := bits.Mul32(multiplier0, c[0])
		h1, l1 := bits.Mul32(multiplier1, c[2])
		c = [4]uint32{h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0}
		k[0] += weyl0
		k[1] += weyl1
	}
	return c
}

// Stream has the random numbers of one place and step: those of all counters that contain three
// given words. The zero value is the first stream of key 0. A Stream belongs to one goroutine at a
// time; copies are independent. No method allocates.
type Stream struct {
	key     [2]uint32
	counter [4]uint32
	block   [4]uint32
	used    int // words of block; 4 or none is left
	begun   bool
}

// New returns the stream of a seed and of three numbers, whose meaning is up to the caller.
func New(seed uint64, a, b, c uint32) Stream {
	return Stream{key: [2]uint32{uint32(seed), uint32(seed >> 32)}, counter: [4]uint32{0, a, b, c}}
}

// Uint64 returns the next number, uniform over all values. After 2^33 numbers a stream begins
// again.
func (s *Stream) Uint64() uint64 {
	if !s.begun || s.used == 4 {
		s.block = Block(s.counter, s.key)
		s.counter[0]++
		s.used, s.begun = 0, true
	}
	x := uint64(s.block[s.used])<<32 | uint64(s.block[s.used+1])
	s.used += 2
	return x
}

// Float64 returns the next number, uniform in (0, 1], a multiple of 2^-53.
func (s *Stream) Float64() float64 { return float64(s.Uint64()>>11+1) * 0x1p-53 }

// Normal returns the next two numbers of the normal distribution of mean 0 and
// variance 1. (G. E. P. Box and M. E. Muller, Ann. Math. Stat. 29 (1958) 610)
func (s *Stream) Normal() (float64, float64) {
	r := math.Sqrt(-2 * math.Log(s.Float64()))
	sin, cos := math.Sincos(2 * math.Pi * s.Float64())
	return r * cos, r * sin
}
