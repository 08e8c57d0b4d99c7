package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// CorruptError says that received bytes are not those that were sent.
type CorruptError struct {
	Op     string
	Bytes  int // of the message
	Offset int // of the first wrong byte; outside the message where a neighbour was written
	Got    byte
	Want   byte
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s of %d bytes: byte %d is %#02x, must be %#02x", e.Op, e.Bytes, e.Offset, e.Got, e.Want)
}

// guard is the number of bytes behind a message that must stay as they were.
const guard = 64

// guardByte is what receive buffers hold before a message.
const guardByte = 0xee

// patternWord is 8 bytes of the pattern of a seed: the output function of
// splitmix64 (Steele, Lea, Flood 2014), so that no shift or swap of a block
// gives the same bytes.
func patternWord(seed uint64, i int) uint64 {
	z := seed + uint64(i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fillPattern writes the pattern of seed into b.
func fillPattern(b []byte, seed uint64) {
	i := 0
	for ; len(b) >= 8; i++ {
		binary.LittleEndian.PutUint64(b, patternWord(seed, i))
		b = b[8:]
	}
	var last [8]byte
	binary.LittleEndian.PutUint64(last[:], patternWord(seed, i))
	copy(b, last[:])
}

// fillGuard makes a receive buffer ready for [checkPattern].
func fillGuard(b []byte) {
	for i := range b {
		b[i] = guardByte
	}
}

// checkPattern verifies that the first n bytes of b are the pattern of seed and
// that the rest is as fillGuard left it.
func checkPattern(op string, b []byte, n int, seed uint64) error {
	var want [8]byte
	for i := 0; i < n; i += 8 {
		word := patternWord(seed, i/8)
		if n-i >= 8 && binary.LittleEndian.Uint64(b[i:]) == word {
			continue
		}
		binary.LittleEndian.PutUint64(want[:], word)
		for k := 0; k < 8 && i+k < n; k++ {
			if b[i+k] != want[k] {
				return &CorruptError{Op: op, Bytes: n, Offset: i + k, Got: b[i+k], Want: want[k]}
			}
		}
	}
	for i := n; i < len(b); i++ {
		if b[i] != guardByte {
			return &CorruptError{Op: op, Bytes: n, Offset: i, Got: b[i], Want: guardByte}
		}
	}
	return nil
}

// patternByte is byte i of the pattern of a seed.
func patternByte(seed uint64, i int) byte { return byte(patternWord(seed, i/8) >> (i % 8 * 8)) }

// compareBytes finds the first byte that is not as it must be, of a message of so many.
func compareBytes(op string, got, want []byte, n int) {
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for got[at] == want[at] {
		at++
	}
	must(&CorruptError{Op: op, Bytes: n, Offset: at, Got: got[at], Want: want[at]})
}

// seedFor tells the patterns of different ranks, sizes and operations apart.
func seedFor(rank, bytes int, op string) uint64 {
	seed := uint64(rank)<<56 ^ uint64(bytes)<<8
	for _, c := range []byte(op) {
		seed = seed*31 + uint64(c)
	}
	return seed
}
