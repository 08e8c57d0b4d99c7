package main

import (
	"bytes"

	"github.com/sluice-hpc/sluice/channel"
)

// extent is how the bytes of a message lie in its memory: in one piece, or in blocks with
// as much room behind each as it is long.
type extent struct {
	bytes int // of the message
	block int // that it is made of; 0: one piece
}

// span is the memory that it takes, its guard left out.
func (s extent) span() int {
	if s.block == 0 {
		return s.bytes
	}
	return 2 * s.bytes
}

// layout is the message in buf, which is a span or more.
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

// check verifies that the blocks of buf have the pattern of seed, and that all else in it
// is as fillGuard left it.
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
