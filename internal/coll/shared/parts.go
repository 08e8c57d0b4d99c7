package shared

import (
	"encoding/binary"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// lengthSize is what stands before each block, its length, where blocks differ and
// not everybody knows them.
const lengthSize = 8

// step is how much of a vector, or of each block, is in one piece.
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

// stride is how far the blocks of what is blockwise lie apart in a piece of which
// each has step bytes.
func (o *Op) stride(step int) int {
	if o.call.Uneven {
		return step + lengthSize
	}
	return step
}

// give writes to dst what the member gives: of a vector, or of each block, step bytes
// from off on.
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

// take computes what the member wants from the parts of all: of a vector, or of each
// block, step bytes from off on.
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

// takeBlock takes what is in a piece of the block s from member i.
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
