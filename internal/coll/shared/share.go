package shared

import (
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/layout"
)

// shareMin is the length from which the members divide the work of a reduction that all of them
// need, although that takes a second line.
const shareMin = 4 << 10

// A step of an operation in which all members have published their input: in the slot of the
// operation, or in a buffer.

// stage returns the lines and the data of member i in this step. Pieces that are shorter than a buffer go to other
// lines of it in turn: these have left the caches of their readers until they are written again, and need not be
// fetched from there.
func (o *Op) stage(i int) (lines *pair, data []byte) {
	t := o.team
	if o.piece != 0 {
		b := o.piece % buffers
		at := int(o.piece/buffers%uint64(t.buffer/o.room)) * o.room
		return &t.segments[i].pieces[b], t.segments[i].buffer(b, t.buffer)[at:][:o.room]
	}
	return t.line(i, o.number), t.data(i, o.number)[:]
}

// stageAll sets the parts of a computation to what all members have published in this step.
func (o *Op) stageAll() {
	for i := range o.team.size {
		_, o.team.parts[i] = o.stage(i)
	}
}

// stageNumber is the number in the lines of this step.
func (o *Op) stageNumber() uint64 {
	if o.piece != 0 {
		return o.piece
	}
	return o.number
}

// share computes this member's share of the result from the inputs of all, and publishes it.
func (o *Op) share() phase {
	t, c := o.team, o.call
	lines, data := o.stage(t.me)
	src := c.Src[o.off:][:o.pieceLen()]
	t.parts[t.me] = src
	s := o.shareOf(t.me, len(src))
	if c.Kind == coll.Scan || c.Kind == coll.Exscan {
		for i := range t.outs {
			t.outs[i] = o.prefixIn(data, i, s)
		}
		o.foldPrefixes(t.outs, t.parts, s, 0)
	} else {
		o.fold(s.in(data), t.parts, s)
	}
	lines.down.publish(c.Signature, stamp(o.stageNumber(), o.before), 0, 0)
	t.carrier.Wake()
	o.at = 0
	return phaseShare
}

// prefixIn is where the share s of the result of member i is in a buffer.
func (o *Op) prefixIn(buffer []byte, i int, s Span) []byte {
	return buffer[len(buffer)/2+i*s.Len:][:s.Len:s.Len]
}

// takeShares takes the shares of all members as they arrive, its own first.
func (o *Op) takeShares() phase {
	t, c := o.team, o.call
	n := o.pieceLen()
	for ; o.at < t.size && (c.Kind != coll.Reduce || t.me == c.Root) && (c.Kind != coll.Exscan || t.me > 0); o.at++ {
		i := t.me + o.at
		if i >= t.size {
			i -= t.size
		}
		lines, data := o.stage(i)
		if _, ok := lines.down.read(o.stageNumber()); !ok {
			return phaseShare
		}
		s := o.shareOf(i, n)
		from := data[s.Off:]
		if c.Kind == coll.Scan || c.Kind == coll.Exscan {
			from = o.prefixIn(data, t.me, s)
		}
		o.copyOut(s.in(c.Dst[o.off:]), from)
	}
	if o.piece != 0 {
		return o.pieceTaken()
	}
	return phaseIdle
}

// shareOf is the share of member i of n bytes: whole elements.
func (o *Op) shareOf(i, n int) Span {
	e := max(o.call.Elem, 1)
	count := n / e
	from, to := count*i/o.team.size, count*(i+1)/o.team.size
	return Span{from * e, (to - from) * e}
}

// fold reduces a span of parts into dst, in member order. Dst may be part of one of them.
func (o *Op) fold(dst []byte, parts [][]byte, s Span) {
	if s.Len == 0 {
		return
	}
	combine := o.call.Combine
	e := max(o.call.Elem, 1)
	step := max(1, foldBlock/e) * e
	for off := 0; off < s.Len; off += step {
		n := min(step, s.Len-off)
		at := s.Off + off
		if len(parts) == 1 {
			layout.Copy(dst[off:off+n], parts[0][at:at+n])
			continue
		}
		if fold := o.call.Fold; fold != nil && len(parts) > 2 {
			views := o.team.views[:len(parts)]
			for i, p := range parts {
				views[i] = p[at : at+n : at+n]
			}
			fold(dst[off:off+n:off+n], views)
			continue
		}
		acc := dst[off : off+n]
		if len(parts) > 2 {
			acc = o.team.acc[:n]
		}
		combine(acc, parts[0][at:at+n:at+n], parts[1][at:at+n:at+n])
		for _, p := range parts[2:] {
			combine(acc, acc, p[at:at+n:at+n])
		}
		if len(parts) > 2 {
			copy(dst[off:], acc)
		}
	}
}

// foldBlock is the number of bytes reduced at a time, which stay in the first-level cache.
const foldBlock = 4 << 10
