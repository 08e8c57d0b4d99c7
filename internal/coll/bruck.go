package coll

// bruckAllgather: in round k each member sends all blocks that it has, up to 2^k, to the member
// 2^k before it. Blocks lie in scratch in member order, beginning with the own one, and are
// rotated into place at the end.
func (b *builder) bruckAllgather() {
	o := b.cut(b.Rank)
	work := b.tmp(o.total())
	b.copy(o.of(work, 0), b.own(In))
	for d := 1; d < b.Size; d <<= 1 {
		n := min(d, b.Size-d)
		b.exchange(b.before(b.Rank, d), o.span(work, 0, n), (b.Rank+d)%b.Size, o.span(work, d, d+n))
	}
	real := b.cut(0)
	b.copy(real.span(all(Out), b.Rank, b.Size), o.span(work, 0, b.Size-b.Rank))
	b.copy(real.span(all(Out), 0, b.Rank), o.span(work, b.Size-b.Rank, b.Size))
}

// bruckAlltoall: block i is for the member i after this one. In round k all blocks with bit k in
// their number go to the member 2^k after, in one message. In the end block i is the one from the
// member i before.
func (b *builder) bruckAlltoall() {
	o := b.cutBy(nil, 0)
	work := b.tmp(o.total())
	b.copy(o.span(work, 0, b.Size-b.Rank), o.span(all(In), b.Rank, b.Size))
	b.copy(o.span(work, b.Size-b.Rank, b.Size), o.span(all(In), 0, b.Rank))
	if b.Size > 1 {
		half := o[(b.Size+1)/2]
		give, got := b.tmp(half), b.tmp(half)
		for bit := 1; bit < b.Size; bit <<= 1 {
			n := b.packed(bit, func(at int, run Ref) { b.copy(Ref{give.Buf, give.Off + at, run.Len}, run) }, o, work)
			b.exchange((b.Rank+bit)%b.Size, Ref{give.Buf, give.Off, n}, b.before(b.Rank, bit), Ref{got.Buf, got.Off, n})
			b.packed(bit, func(at int, run Ref) { b.copy(run, Ref{got.Buf, got.Off + at, run.Len}) }, o, work)
		}
	}
	for i := range b.Size {
		b.copy(o.of(all(Out), b.before(b.Rank, i)), o.of(work, i))
	}
}

// packed calls each with the runs of blocks that have the bit in their numbers, and
// where in a message they lie. It returns the length of the message.
func (b *builder) packed(bit int, each func(at int, run Ref), o blocks, work Ref) int {
	at := 0
	for i := bit; i < b.Size; i += 2 * bit {
		run := o.span(work, i, min(i+bit, b.Size))
		each(at, run)
		at += run.Len
	}
	return at
}
