package main

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/sluice-hpc/sluice/channel"
)

// CorruptError says that received bytes are not those that were sent.
type CorruptError struct {
	Op     string
	Bytes  int // of the message
	Offset int // of the first wrong byte; outside the message if a byte around it was overwritten
	Got    byte
	Want   byte
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s of %d bytes: byte %d is %#02x, must be %#02x", e.Op, e.Bytes, e.Offset, e.Got, e.Want)
}

// guard is the number of bytes after a message that must not change.
const guard = 64

// guardByte fills receive buffers before a message.
const guardByte = 0xee

// patternWord returns 8 bytes of the pattern of a seed: the output function of
// splitmix64 (Steele, Lea, Flood 2014), so that no shift or swap of a block
// gives the same bytes.
func patternWord(seed uint64, i int) uint64 {
	z := seed + uint64(i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

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

// patternByte returns byte i of the pattern of a seed.
func patternByte(seed uint64, i int) byte { return byte(patternWord(seed, i/8) >> (i % 8 * 8)) }

// compareBytes panics, through must, at the first wrong byte of a message of so many.
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

// seedFor makes different patterns for different ranks, sizes and operations.
func seedFor(rank, bytes int, op string) uint64 {
	seed := uint64(rank)<<56 ^ uint64(bytes)<<8
	for _, c := range []byte(op) {
		seed = seed*31 + uint64(c)
	}
	return seed
}

// extent is the layout of a message in its memory: one piece, or blocks with gaps of the same
// length.
type extent struct {
	bytes int // of the message
	block int // bytes of its blocks; 0: one piece
}

// span returns the size of its memory, without the guard.
func (s extent) span() int {
	if s.block == 0 {
		return s.bytes
	}
	return 2 * s.bytes
}

// layout returns the layout of the message in buf, which has at least its span.
func (s extent) layout(buf []byte) channel.Layout {
	if s.block == 0 {
		return channel.Contiguous(buf[:s.bytes])
	}
	return channel.Strided(buf[:s.span()], 0, s.block, s.bytes/s.block, 2*s.block)
}

// fill writes the pattern of seed into the blocks of buf, a span and its guard.
func (s extent) fill(buf []byte, seed uint64) {
	if s.block == 0 {
		fillPattern(buf[:s.bytes], seed)
		return
	}
	packed := make([]byte, s.bytes)
	fillPattern(packed, seed)
	fillGuard(buf)
	for at := 0; at < s.bytes; at += s.block {
		copy(buf[2*at:], packed[at:at+s.block])
	}
}

// check verifies that the blocks of buf have the pattern of seed, and that all other bytes are as
// fillGuard left them.
func (s extent) check(op string, buf []byte, seed uint64) error {
	if s.block == 0 {
		return checkPattern(op, buf, s.bytes, seed)
	}
	packed := make([]byte, s.bytes, s.bytes+guard)
	between := bytes.Repeat([]byte{guardByte}, s.block)
	for at := 0; at < s.bytes; at += s.block {
		copy(packed[at:], buf[2*at:2*at+s.block])
		if room := buf[2*at+s.block:][:s.block]; !bytes.Equal(room, between) {
			k := 0
			for room[k] == guardByte {
				k++
			}
			return &CorruptError{Op: op, Bytes: s.bytes, Offset: 2*at + s.block + k, Got: room[k], Want: guardByte}
		}
	}
	return checkPattern(op, append(packed, buf[s.span():][:guard]...), s.bytes, seed)
}
