package shared

import (
	"encoding/binary"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// lengthSize is the size of the length that precedes each block, if blocks differ and not every
// member knows them.
const lengthSize = 8

// step is the number of bytes of a vector, or of each block, in one piece.
func (o *Op) step() int {
	c := o.call
	room := DataSize
	if blockwise(c.Kind) {
		room /= o.team.size
		if c.Uneven {
			room -= lengthSize
		}
	}
	e := max(c.Elem, 1)
	return room / e * e
}

// stride is the distance between the blocks of a blockwise call in a piece that holds step bytes of
// each.
func (o *Op) stride(step int) int {
	if o.call.Uneven {
		return step + lengthSize
	}
	return step
}

// give writes the input of the member to dst: step bytes of the vector, or of each block, from off
// on.
func (o *Op) give(dst []byte, off, step int) {
	t, c := o.team, o.call
	if !blockwise(c.Kind) {
		if p := c.part(t.me); off < len(p) {
			copy(dst, p[off:min(off+step, len(p))])
		}
		return
	}
	if c.Kind == coll.Scatter && t.me != c.Root {
		return
	}
	stride := o.stride(step)
	for i := range t.size {
		b, at := c.gives(t.me, i), dst[i*stride:]
		if c.Uneven {
			binary.NativeEndian.PutUint64(at, uint64(len(b)))
			at = at[lengthSize:]
		}
		if off < len(b) {
			copy(at, b[off:min(off+step, len(b))])
		}
	}
}

// take computes the result of the member from the parts of all: step bytes of the vector, or of each
// block, from off on.
func (o *Op) take(parts [][]byte, off, step int) error {
	t, c := o.team, o.call
	switch c.Kind {
	case coll.Broadcast:
		if t.me != c.Root && off < len(c.Dst) {
			copy(c.Dst[off:min(off+step, len(c.Dst))], parts[c.Root])
		}
	case coll.Reduce, coll.Allreduce, coll.Scan, coll.Exscan:
		from, to := c.needs(t.me, t.size)
		s := Span{0, len(c.Dst)}.piece(off, step)
		if from < to && s.Len > 0 {
			o.fold(s.in(c.Dst), parts[from:to], Span{0, s.Len})
		}
	case coll.Gather, coll.Allgather:
		if from, to := c.needs(t.me, t.size); from == to {
			return nil
		}
		for i := range t.size {
			s := c.span(i).piece(off, step)
			copy(s.in(c.Dst), parts[i])
		}
	case coll.ReduceScatter:
		s := Span{0, len(c.Dst)}.piece(off, step)
		o.fold(s.in(c.Dst), parts, Span{t.me * o.stride(step), s.Len})
	case coll.Scatter:
		if t.me == c.Root {
			copy(c.Dst[min(off, len(c.Dst)):min(off+step, len(c.Dst))], c.gives(t.me, t.me)[min(off, len(c.Dst)):])
			return nil
		}
		return o.takeBlock(c.Root, Span{0, len(c.Dst)}, parts[c.Root], off, step)
	case coll.Alltoall:
		for i := range t.size {
			if err := o.takeBlock(i, c.span(i), parts[i], off, step); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeBlock takes the bytes of the block s from member i that are in a piece.
func (o *Op) takeBlock(i int, s Span, part []byte, off, step int) error {
	part = part[o.team.me*o.stride(step):]
	if o.call.Uneven {
		if n := binary.NativeEndian.Uint64(part); n != uint64(s.Len) {
			return &MismatchError{Member: i, Ours: o.call.Signature, Theirs: o.call.Signature, Len: s.Len, Other: int(n)}
		}
		part = part[lengthSize:]
	}
	s = s.piece(off, step)
	copy(s.in(o.call.Dst), part)
	return nil
}
