package coll

// halve is the reduce-scatter by recursive halving among a power of two of numbers: of the vector
// at in, cut into o, number i gets block i reduced, at the block's place in work. Partners
// exchange halves of what they still have, and receive into slot.
func (b *builder) halve(me, power int, o blocks, in, work, slot Ref, member func(number int) int) {
	from, to := 0, power
	acc := in
	for mask := power / 2; mask > 0; mask >>= 1 {
		mid := from + mask
		giveFrom, giveTo := mid, to
		if me&mask == 0 {
			to = mid
		} else {
			giveFrom, giveTo = from, mid
			from = mid
		}
		partner := member(me ^ mask)
		keep := o.span(work, from, to)
		got := Ref{slot.Buf, slot.Off, keep.Len}
		b.exchange(partner, o.span(acc, giveFrom, giveTo), partner, got)
		b.combine(keep, o.span(acc, from, to), got)
		acc = work
	}
}

// half is the largest number of bytes that halve receives at a time.
func half(o blocks, power int) int {
	return max(o[power/2], o.total()-o[power/2])
}

// rabenseifnerAllreduce halves, then gathers by recursive doubling.
func (b *builder) rabenseifnerAllreduce() {
	in, out := b.vector(In), b.vector(Out)
	if b.Size == 1 {
		b.copy(out, in)
		return
	}
	f := newFold(b.Size)
	if f.out(b.Rank) {
		b.send(b.Rank-1, in)
		b.next()
		b.receive(b.Rank-1, out)
		return
	}
	o := even(b.Count, f.power, b.Elem)
	slot, acc := b.foldInto(f, b.Rank, o, in, out, func(m int) int { return m })
	b.halve(f.number(b.Rank), f.power, o, acc, out, slot, f.member)
	b.doubleBlocks(f.number(b.Rank), f.power, o, f.member)
	if f.stands(b.Rank) {
		b.next()
		b.send(b.Rank+1, out)
	}
}

// foldInto receives the vector of the member that v stands for, if there is one, and combines it
// into work. It returns the scratch to receive into, and the place of the own vector now. Actual
// maps a number such as v to a rank.
func (b *builder) foldInto(f fold, v int, o blocks, in, work Ref, actual func(v int) int) (slot, acc Ref) {
	if !f.stands(v) {
		return b.tmp(half(o, f.power)), in
	}
	slot = b.tmp(in.Len)
	b.receive(actual(v+1), slot)
	b.combine(work, in, slot)
	return slot, work
}

// rabenseifnerReduce halves, then gathers up a binomial tree. Members are numbered
// from the root, which therefore remains when they are reduced to a power of two.
func (b *builder) rabenseifnerReduce() {
	in, work := b.vector(In), b.vector(Out)
	if b.Size == 1 {
		b.copy(work, in)
		return
	}
	f := newFold(b.Size)
	v := b.virtual(b.Rank, b.Root)
	actual := func(v int) int { return b.actual(v, b.Root) }
	if f.out(v) {
		b.send(actual(v-1), in)
		return
	}
	if v != 0 {
		work = b.tmp(in.Len)
	}
	member := func(number int) int { return actual(f.member(number)) }
	o := even(b.Count, f.power, b.Elem)
	slot, acc := b.foldInto(f, v, o, in, work, actual)
	me := f.number(v)
	b.halve(me, f.power, o, acc, work, slot, member)
	for mask := 1; mask < f.power; mask <<= 1 {
		b.next()
		if me&mask != 0 {
			b.send(member(me-mask), o.span(work, me, me+mask))
			return
		}
		b.receive(member(me+mask), o.span(work, me+mask, me+2*mask))
	}
}

// halvingReduceScatter halves the blocks of the members that remain when they are reduced to a
// power of two, each with the block of the member that it stands for.
func (b *builder) halvingReduceScatter() {
	blocks := b.cut(0)
	if b.Size == 1 {
		b.copy(b.own(Out), b.own(In))
		return
	}
	f := newFold(b.Size)
	in := Ref{In, 0, blocks.total()}
	if f.out(b.Rank) {
		b.send(b.Rank-1, in)
		b.next()
		b.receive(b.Rank-1, b.own(Out))
		return
	}
	o := make([]int, f.power+1)
	for i := range f.power {
		o[i] = blocks[f.member(i)]
	}
	o[f.power] = blocks.total()
	work := b.tmp(in.Len)
	slot, acc := b.foldInto(f, b.Rank, o, in, work, func(m int) int { return m })
	b.halve(f.number(b.Rank), f.power, o, acc, work, slot, f.member)
	if f.stands(b.Rank) {
		b.next()
		b.send(b.Rank+1, blocks.of(work, b.Rank+1))
	}
	b.copy(b.own(Out), blocks.of(work, b.Rank))
}
