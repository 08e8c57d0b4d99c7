package endpoint

import (
	"fmt"
	"math"
)

// Part is count blocks of so many bytes, each stride bytes after the start of the one before
// it, the first at an offset in one of several pieces of memory.
type Part struct {
	Piece                        int // index of the piece of memory
	Offset, Block, Count, Stride int // bytes, but for Count; a stride may be negative
}

// Local is the layout of bytes in memory of this process: parts of pieces, in the order in
// which their bytes are moved.
type Local struct {
	Pieces [][]byte
	Parts  []Part
}

// Region is memory that a process has exposed, as the others reach it.
type Region struct {
	Key    uint32
	Addr   uint64
	Length uint64
}

// Remote is the layout of bytes in memory that the peer has exposed.
type Remote struct {
	Pieces []Region
	Parts  []Part
}

// Length checks that all blocks lie in their pieces, and returns how many bytes they are.
// The error wraps [ErrRange] and names the part.
func (l *Local) Length() (int, error) {
	return length(l.Parts, len(l.Pieces), func(i int) uint64 { return uint64(len(l.Pieces[i])) })
}

// Length is that of [Local.Length].
func (l *Remote) Length() (int, error) {
	return length(l.Parts, len(l.Pieces), func(i int) uint64 { return l.Pieces[i].Length })
}

func length(parts []Part, pieces int, size func(int) uint64) (total int, err error) {
	for i, p := range parts {
		wrong := func() (int, error) {
			return 0, fmt.Errorf("%w: part %d: %d blocks of %d bytes, stride %d, at %d of piece %d of %d", ErrRange, i, p.Count, p.Block, p.Stride, p.Offset, p.Piece, pieces)
		}
		if p.Piece < 0 || p.Piece >= pieces || p.Block <= 0 || p.Count <= 0 || p.Offset < 0 {
			return wrong()
		}
		room := size(p.Piece)
		if room > math.MaxInt || p.Block > int(room) || p.Offset > int(room)-p.Block {
			return wrong()
		}
		// The last block lies where the first does or in the room beside it, so that the
		// product cannot overflow.
		if steps := p.Count - 1; steps > 0 {
			beside := int(room) - p.Block - p.Offset
			if p.Stride < 0 {
				beside = p.Offset
			}
			if p.Stride == math.MinInt || max(p.Stride, -p.Stride) > beside/steps {
				return wrong()
			}
		}
		if p.Count > (math.MaxInt-total)/p.Block {
			return wrong()
		}
		total += p.Count * p.Block
	}
	return total, nil
}
