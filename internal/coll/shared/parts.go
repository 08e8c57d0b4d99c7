package shared

import (
	"encoding/binary"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/layout"
)

// lengthSize is the size of the length that precedes each block, if blocks differ and not every
// member knows them.
const lengthSize = 8

// fits is the number of bytes of a vector, or of each block, that fit into n bytes.
func (o *Op) fits(n int) int {
	c := o.call
	if blockwise(c.Kind) {
		n /= o.team.size
		if c.Uneven {
			n -= lengthSize
		}
	}
	e := max(c.Elem, 1)
	return n / e * e
}

// pieces divides a long operation into pieces of about the same size, and returns their number.
func (o *Op) pieces() int {
	t, c := o.team, o.call
	room := o.fits(t.buffer)
	e := max(c.Elem, 1)
	switch c.Kind {
	case coll.Reduce, coll.Allreduce:
		o.shared = true
	case coll.Scan, coll.Exscan: // the results of all members follow the input
		if n := t.buffer / 2 / e / t.size * t.size * e; n > 0 {
			o.shared, room = true, n
		}
	case coll.Broadcast, coll.Gather, coll.Scatter: // some give and others take: both at once
		room = min(room, max(o.fits(DataSize), o.size/(buffers+1)/e*e))
	}
	count := (o.size + room - 1) / room
	o.step = min(room, ((o.size+count-1)/count+e-1)/e*e)
	switch o.room = o.step; {
	case blockwise(c.Kind):
		o.room = t.size * o.stride(o.step)
	case o.shared && (c.Kind == coll.Scan || c.Kind == coll.Exscan):
		o.room = t.buffer
	}
	o.room = min((o.room+127)&^127, t.buffer) // whole pairs of lines
	return (o.size + o.step - 1) / o.step
}

// stride is the distance between the blocks of a blockwise call in a piece that holds step bytes of
// each.
func (o *Op) stride(step int) int {
	if o.call.Uneven {
		return step + lengthSize
	}
	return step
}

// give writes what the others read of the input of the member to dst: step bytes of the vector, or of
// each block, from off on.
func (o *Op) give(dst []byte, off, step int) {
	t, c := o.team, o.call
	if !blockwise(c.Kind) {
		p := c.part(t.me)
		if off >= len(p) || c.Kind == coll.Gather && t.me == c.Root { // which has it
			return
		}
		p = p[off:min(off+step, len(p))]
		if o.shared {
			own := o.shareOf(t.me, len(p))
			layout.Copy(dst, p[:own.Off])
			layout.Copy(dst[own.Off+own.Len:], p[own.Off+own.Len:])
			return
		}
		layout.Copy(dst, p)
		return
	}
	if c.Kind == coll.Scatter && t.me != c.Root {
		return
	}
	stride := o.stride(step)
	for i := range t.size {
		if i == t.me {
			continue
		}
		b, at := c.gives(t.me, i), dst[i*stride:]
		if c.Uneven {
			binary.NativeEndian.PutUint64(at, uint64(len(b)))
			at = at[lengthSize:]
		}
		if off < len(b) {
			layout.Copy(at, b[off:min(off+step, len(b))])
		}
	}
}

// take computes the result of the member from the parts of the others and its own memory: step bytes
// of the vector, or of each block, from off on.
func (o *Op) take(parts [][]byte, off, step int) error {
	t, c := o.team, o.call
	switch c.Kind {
	case coll.Broadcast:
		if t.me != c.Root && off < len(c.Dst) {
			o.copyOut(c.Dst[off:min(off+step, len(c.Dst))], parts[c.Root])
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
			if s := c.span(i).piece(off, step); i != t.me {
				o.copyOut(s.in(c.Dst), parts[i])
			} else if o.piece == 0 || c.Kind == coll.Allgather {
				copyBlock(s.in(c.Dst), c.Src[min(off, len(c.Src)):])
			}
		}
	case coll.ReduceScatter:
		s := Span{0, len(c.Dst)}.piece(off, step)
		for i := range t.size {
			t.outs[i] = parts[i][t.me*o.stride(step):]
		}
		t.outs[t.me] = c.gives(t.me, t.me)[min(off, len(c.Dst)):]
		o.fold(s.in(c.Dst), t.outs, Span{0, s.Len})
	case coll.Scatter:
		return o.takeBlock(c.Root, parts[c.Root], off, step)
	case coll.Alltoall:
		for k := range t.size { // its own first
			i := (t.me + k) % t.size
			if err := o.takeBlock(i, parts[i], off, step); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeBlock takes the bytes of the block from member i that are in a piece, or its own.
func (o *Op) takeBlock(i int, part []byte, off, step int) error {
	t, c := o.team, o.call
	s := c.got(i)
	if i == t.me {
		b := c.gives(i, i)
		if err := o.alike(i, s.Len, uint64(len(b))); err != nil {
			return err
		}
		copyBlock(s.piece(off, step).in(c.Dst), b[min(off, len(b)):])
		return nil
	}
	part = part[t.me*o.stride(step):]
	if c.Uneven {
		if err := o.alike(i, s.Len, binary.NativeEndian.Uint64(part)); err != nil {
			return err
		}
		part = part[lengthSize:]
	}
	s = s.piece(off, step)
	o.copyOut(s.in(c.Dst), part)
	return nil
}

// alike returns an error unless member i has as many bytes for the data between it and this one.
func (o *Op) alike(i, ours int, theirs uint64) error {
	if theirs == uint64(ours) {
		return nil
	}
	return &MismatchError{Member: i, Ours: o.call.Signature, Theirs: o.call.Signature, Len: ours, Other: int(theirs)}
}
