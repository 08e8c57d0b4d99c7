package coll

// before is the member d places before this number on the ring.
func (b *builder) before(number, d int) int { return ((number-d)%b.Size + b.Size) % b.Size }

// ringBlocks is the allgather round a ring: number i has block i in Out.
func (b *builder) ringBlocks(me int, o blocks, member func(number int) int) {
	for i := range b.Size - 1 {
		b.exchange(member((me+1)%b.Size), o.of(all(Out), b.before(me, i)), member(b.before(me, 1)), o.of(all(Out), b.before(me, i+1)))
	}
}

func (b *builder) ringAllgather() {
	o := b.cut(0)
	b.copy(o.of(all(Out), b.Rank), b.own(In))
	b.ringBlocks(b.Rank, o, func(number int) int { return number })
}

// ringAllreduce passes each block around the ring twice: first every member combines its part, then
// all get the result. A block is combined by one chain of members only, so all get the same bits.
// It works in place: a block of In is read before that of Out is written, and each is combined
// once.
func (b *builder) ringAllreduce() {
	in, out := b.vector(In), b.vector(Out)
	if b.Size == 1 {
		b.copy(out, in)
		return
	}
	o := even(b.Count, b.Size, b.Elem)
	slot := b.tmp(o.longest())
	given := in
	for i := range b.Size - 1 {
		got := o.of(out, b.before(b.Rank, i+2))
		room := Ref{slot.Buf, slot.Off, got.Len}
		b.exchange((b.Rank+1)%b.Size, o.of(given, b.before(b.Rank, i+1)), b.before(b.Rank, 1), room)
		b.combine(got, room, o.of(in, b.before(b.Rank, i+2)))
		given = out
	}
	b.ringBlocks(b.Rank, o, func(number int) int { return number })
}

// ringReduceScatter passes the block of each member around the ring, ending at that member.
func (b *builder) ringReduceScatter() {
	o := b.cut(0)
	if b.Size == 1 {
		b.copy(b.own(Out), b.own(In))
		return
	}
	slot, acc := b.tmp(o.longest()), b.tmp(o.longest())
	give := o.of(all(In), b.before(b.Rank, 1))
	for i := range b.Size - 1 {
		mine := o.of(all(In), b.before(b.Rank, i+2))
		got := Ref{slot.Buf, slot.Off, mine.Len}
		b.exchange((b.Rank+1)%b.Size, give, b.before(b.Rank, 1), got)
		if give = (Ref{acc.Buf, acc.Off, mine.Len}); i == b.Size-2 {
			give = b.own(Out)
		}
		b.combine(give, got, mine)
	}
}

// scatterAllgather cuts the vector into a block for each member, scatters them down
// a binomial tree, and gathers them: by recursive doubling among a power of two of
// members, else around a ring. Both number members from the root.
func (b *builder) scatterAllgather() {
	o := even(b.Count, b.Size, b.Elem)
	v := b.virtual(b.Rank, b.Root)
	low := b.lowBit(v)
	if v != 0 {
		from, to := b.subtree(v)
		b.receive(b.actual(v-low, b.Root), o.span(all(Out), from, to))
		b.next()
	}
	for bit := low >> 1; bit > 0; bit >>= 1 {
		if v+bit < b.Size {
			from, to := b.subtree(v + bit)
			b.send(b.actual(v+bit, b.Root), o.span(all(Out), from, to))
		}
	}
	member := func(v int) int { return b.actual(v, b.Root) }
	if b.Size&(b.Size-1) == 0 {
		b.doubleBlocks(v, b.Size, o, member)
		return
	}
	b.ringBlocks(v, o, member)
}
