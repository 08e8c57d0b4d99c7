package main

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/sluice-hpc/sluice/verbs"
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

// seedFor tells the patterns of different ranks, sizes and operations apart.
func seedFor(rank, bytes int, op string) uint64 {
	seed := uint64(rank)<<56 ^ uint64(bytes)<<8
	for _, c := range []byte(op) {
		seed = seed*31 + uint64(c)
	}
	return seed
}

// verify moves one message each way and looks at every byte of it and at its
// neighbours. Both ranks call it; both fail if one finds something wrong.
func (p *pair) verify(ctx context.Context, op operation, bytes, inline int) error {
	sent, received := p.send.Bytes(), p.recv.Bytes()[:max(bytes, atomicBytes)+guard]
	if op.atomic {
		clear(sent[:atomicBytes])
		clear(received)
	} else {
		fillPattern(sent[:bytes], seedFor(p.rank, bytes, op.name))
		fillGuard(received)
	}
	if _, err := share(ctx, p.job, struct{}{}, nil); err != nil {
		return err
	}
	if err := p.moveOne(op, bytes, inline); err != nil {
		return err
	}
	// Our send is complete, so the peer has it; from here on we have the peer's.
	if _, err := share(ctx, p.job, struct{}{}, nil); err != nil {
		return err
	}
	var err error
	if op.atomic {
		err = checkAtomic(op.name, sent, received)
	} else {
		err = checkPattern(op.name, received, bytes, seedFor(1-p.rank, bytes, op.name))
	}
	_, err = share(ctx, p.job, struct{}{}, err)
	return err
}

// moveOne sends one message, and takes one where the operation tells of it.
func (p *pair) moveOne(op operation, bytes, inline int) error {
	l := newLatency(p, op, bytes, inline, 1)
	l.signalled[0].Swap = 1
	if op.opcode == verbs.OpAtomicCmpAndSwp {
		l.signalled[0].CompareAdd = 0
	}
	if err := l.postOne(l.signalled); err != nil {
		return err
	}
	if err := l.await(l.sendCQ); err != nil {
		return err
	}
	if !op.recv {
		return nil
	}
	if err := l.await(l.recvCQ); err != nil {
		return err
	}
	if got := int(l.wc[0].ByteLen); got != bytes {
		return fmt.Errorf("%s of %d bytes arrived as %d", op.name, bytes, got)
	}
	return l.postRecvs(l.recvs[:1])
}

// checkAtomic verifies that the word, once 0, was made 1, and that the one who
// did it was told 0.
func checkAtomic(name string, old, word []byte) error {
	for _, c := range []struct {
		b    []byte
		want uint64
	}{{old, 0}, {word, 1}} {
		var want [atomicBytes]byte
		binary.NativeEndian.PutUint64(want[:], c.want)
		for i := range want {
			if c.b[i] != want[i] {
				return &CorruptError{Op: name, Bytes: atomicBytes, Offset: i, Got: c.b[i], Want: want[i]}
			}
		}
	}
	return nil
}
