package shared

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// ErrWithdrawn: a member has cancelled the operation; the error with which it failed is on its
// way.
var ErrWithdrawn = errors.New("operation cancelled by another member")

// ErrLater: memory of a member is not accessible here yet.
var ErrLater = errors.New("memory of another member is on its way")

// collectLong continues when all members have offered.
func (o *Op) collectLong() (phase, error) {
	t, c := o.team, o.call
	if err := o.checkOffers(); err != nil {
		return o.phase, err
	}
	direct := o.reach && o.size > 0 && !(c.Uneven && c.Kind != coll.Gather)
	if direct {
		return o.direct()
	}
	o.offered = false // the others see the same
	if n := o.fits(DataSize); o.size <= n {
		o.stageAll()
		return phaseIdle, o.take(t.parts, 0, n)
	}
	o.piece = t.piece
	t.piece += uint64(o.pieces())
	return phaseRoom, nil
}

// checkOffers compares the lengths of offers with the expected ones, as far as the signature does
// not cover them.
func (o *Op) checkOffers() error {
	t, c := o.team, o.call
	if !c.Uneven || c.Kind != coll.Gather || t.me != c.Root {
		return nil
	}
	for i := range t.size {
		if own := t.line(i, o.number).up.offered().own; own != c.span(i).Len {
			return &MismatchError{Member: i, Ours: c.Signature, Theirs: c.Signature, Len: c.span(i).Len, Other: own}
		}
	}
	return nil
}

// direct does this member's share of the work in the memory of all members, as soon as it is
// accessible.
func (o *Op) direct() (phase, error) {
	t, c := o.team, o.call
	down := &t.line(t.me, o.number).down.word
	before := *down
	if !o.working() {
		return o.phase, ErrWithdrawn
	}
	err := o.work()
	if errors.Is(err, ErrLater) {
		atomic.StoreUint64(down, before)
		return o.phase, nil
	}
	o.worked(err == nil)
	if err != nil {
		return o.phase, err
	}
	o.at = 0
	switch c.Kind {
	case coll.Broadcast, coll.Scatter:
		if t.me != c.Root {
			return phaseIdle, nil
		}
	case coll.Gather:
		if (t.me == c.Root) == c.Uneven {
			return phaseIdle, nil
		}
	}
	return phaseEnd, nil
}

// view is the memory that a member has offered, which must have n bytes.
func (o *Op) view(i int, dst bool, n int) ([]byte, error) {
	t := o.team
	own := o.call.Src
	f := t.line(i, o.number).up.offered()
	m := f.src
	if dst {
		own, m = o.call.Dst, f.dst
	}
	switch {
	case i == t.me:
		return own, nil
	case m.len != n:
		return nil, fmt.Errorf("%w: member %d offers %d bytes, want %d", ErrProtocol, i, m.len, n)
	case n == 0:
		return nil, nil
	}
	return t.carrier.View(i, m.key, m.addr, n)
}

// viewAll sets views of the memory that all members have offered, n bytes each.
func (o *Op) viewAll(views [][]byte, dst bool, n int) (err error) {
	for i := range views {
		if views[i], err = o.view(i, dst, n); err != nil {
			return err
		}
	}
	return nil
}

// work moves and reduces from memory to memory.
func (o *Op) work() (err error) {
	t, c := o.team, o.call
	srcs, dsts := t.parts, t.outs
	switch c.Kind {
	case coll.Broadcast:
		if t.me != c.Root {
			var b []byte
			if b, err = o.view(c.Root, true, len(c.Dst)); err == nil {
				layout.Copy(c.Dst, b)
			}
		}
	case coll.Reduce:
		if err = o.viewAll(srcs, false, len(c.Src)); err == nil {
			if dsts[0], err = o.view(c.Root, true, len(c.Src)); err == nil {
				s := o.shareOf(t.me, len(c.Src))
				o.fold(s.in(dsts[0]), srcs, s)
			}
		}
	case coll.Allreduce:
		if err = errors.Join(o.viewAll(srcs, false, len(c.Src)), o.viewAll(dsts, true, len(c.Src))); err == nil {
			o.foldToAll(dsts, srcs, o.shareOf(t.me, len(c.Src)))
		}
	case coll.Scan, coll.Exscan:
		if err = errors.Join(o.viewAll(srcs, false, len(c.Src)), o.viewAll(dsts, true, len(c.Src))); err == nil {
			s := o.shareOf(t.me, len(c.Src))
			o.foldPrefixes(dsts, srcs, s, s.Off)
		}
	case coll.ReduceScatter:
		if err = o.viewAll(srcs, false, len(c.Src)); err == nil {
			o.fold(c.Dst, srcs, c.span(t.me))
		}
	case coll.Gather:
		if c.Uneven {
			return o.pullAll()
		}
		var b []byte
		if b, err = o.view(c.Root, true, c.total(t.size)); err == nil {
			copyBlock(c.span(t.me).in(b), c.Src)
		}
	case coll.Scatter:
		var b []byte
		if b, err = o.view(c.Root, false, c.total(t.size)); err == nil {
			copyBlock(c.Dst, c.span(t.me).in(b))
		}
	case coll.Allgather:
		return o.pullAll()
	case coll.Alltoall:
		if err = o.viewAll(srcs, false, len(c.Src)); err == nil {
			for k := range t.size {
				i := (t.me + k) % t.size
				copyBlock(c.span(i).in(c.Dst), srcs[i][t.me*c.Block:])
			}
		}
	}
	return err
}

// copyBlock copies unless both are the same memory.
func copyBlock(dst, src []byte) {
	if len(dst) > 0 && &dst[0] != &src[0] {
		layout.Copy(dst, src)
	}
}

// pullAll copies the blocks of all members to their places here.
func (o *Op) pullAll() error {
	t, c := o.team, o.call
	if c.Kind == coll.Gather && t.me != c.Root {
		return nil
	}
	for k := range t.size {
		i := (t.me + k) % t.size
		s := c.span(i)
		b, err := o.view(i, false, s.Len)
		if err != nil {
			return err
		}
		copyBlock(s.in(c.Dst), b)
	}
	return nil
}

// foldToAll reduces a share, and writes it to all.
func (o *Op) foldToAll(dsts, srcs [][]byte, s Span) {
	t := o.team
	e := max(o.call.Elem, 1)
	step := max(1, foldBlock/e) * e
	for off := 0; off < s.Len; off += step {
		b := Span{s.Off + off, min(step, s.Len-off)}
		own := b.in(dsts[t.me])
		o.fold(own, srcs, b)
		for k := 1; k < t.size; k++ {
			layout.Copy(b.in(dsts[(t.me+k)%t.size]), own)
		}
	}
}

// foldPrefixes reduces a share for all members, each of which needs another number of parts. The
// results are at an offset of dsts.
func (o *Op) foldPrefixes(dsts, srcs [][]byte, s Span, at int) {
	c := o.call
	e := max(c.Elem, 1)
	step := max(1, foldBlock/e) * e
	for off := 0; off < s.Len; off += step {
		b := Span{s.Off + off, min(step, s.Len-off)}
		to := Span{at + off, b.Len}
		acc, saved := o.team.acc[:b.Len], o.team.saved[:b.Len]
		for i := range srcs {
			src := b.in(srcs[i])
			copy(saved, src) // the result may overwrite it
			if c.Kind == coll.Exscan && i > 0 {
				layout.Copy(to.in(dsts[i]), acc)
			}
			if i == 0 {
				copy(acc, saved)
			} else {
				c.Combine(acc, acc, saved)
			}
			if c.Kind == coll.Scan {
				layout.Copy(to.in(dsts[i]), acc)
			}
		}
	}
}

// givePiece publishes a piece when its buffer is free, because all have taken the previous piece.
// Operations take turns.
func (o *Op) givePiece() (phase, error) {
	t, c := o.team, o.call
	n := o.piece + 1
	if t.taken != o.piece {
		return phaseRoom, nil
	}
	for i := 0; n > buffers && i < t.size; i++ {
		if i != t.me && atomic.LoadUint64(&t.segments[i].taken) < n-buffers {
			return phaseRoom, nil
		}
	}
	o.piece = n
	o.at = 0
	lines, data := o.stage(t.me)
	o.give(data, o.off, o.step)
	lines.up.publish(c.Signature, stamp(n, 0), 0, 0)
	t.carrier.Wake()
	return phasePiece, nil
}

// takePieces takes the pieces of the others when all the needed ones have been published.
func (o *Op) takePieces() (phase, error) {
	t, c := o.team, o.call
	from, to := c.needs(t.me, t.size)
	if o.shared {
		from, to = 0, t.size
	}
	for ; o.at < to-from; o.at++ {
		lines, _ := o.stage(from + o.at)
		if _, ok := lines.up.read(o.piece); !ok {
			return phasePiece, nil
		}
		if lines.up.signature != c.Signature {
			return o.phase, fmt.Errorf("%w: member %d published a piece of another call", ErrProtocol, from+o.at)
		}
	}
	o.stageAll()
	if o.shared {
		return o.share(), nil
	}
	if err := o.take(t.parts, o.off, o.step); err != nil {
		return o.phase, err
	}
	return o.pieceTaken(), nil
}

// pieceLen is the number of bytes of the vector in the piece.
func (o *Op) pieceLen() int { return min(o.step, len(o.call.Src)-o.off) }

// pieceTaken lets the others reuse the buffer.
func (o *Op) pieceTaken() phase {
	t := o.team
	t.taken = o.piece
	wait.StoreRelease64(&t.mine.taken, o.piece)
	t.carrier.Wake()
	if o.off += o.step; o.off >= o.size {
		return phaseIdle
	}
	return phaseRoom
}
