package coll

// disseminate: in round k each member signals to the member 2^k after it, and waits for the one
// 2^k before. After ceil(log2 n) rounds every member has heard of every other.
func (b *builder) disseminate() {
	for d := 1; d < b.Size; d <<= 1 {
		b.exchange((b.Rank+d)%b.Size, Ref{}, (b.Rank-d+b.Size)%b.Size, Ref{})
	}
}

// fold reduces the members to a power of two: of the first 2·rest, each odd one gives its vector
// to the one before it, and waits for the result. These are neighbours, so that each remaining
// member stands for consecutive ones. The remaining members are renumbered.
type fold struct{ power, rest int }

func newFold(size int) fold {
	power := 1 << log2(size)
	return fold{power, size - power}
}

// out says whether the member has given its vector away.
func (f fold) out(member int) bool { return member < 2*f.rest && member&1 == 1 }

// stands says whether the member also stands for the next.
func (f fold) stands(member int) bool { return member < 2*f.rest && member&1 == 0 }

// number is the new number of a remaining member, and member its inverse.
func (f fold) number(member int) int {
	if member < 2*f.rest {
		return member / 2
	}
	return member - f.rest
}

func (f fold) member(number int) int {
	if number < f.rest {
		return 2 * number
	}
	return number + f.rest
}

// doublingAllreduce: at each distance both partners combine the same two values in the same order,
// lower ranks first. So both get the same bits, in rank order.
func (b *builder) doublingAllreduce() {
	in, out := b.vector(In), b.vector(Out)
	f := newFold(b.Size)
	if f.out(b.Rank) {
		b.send(b.Rank-1, in)
		b.next()
		b.receive(b.Rank-1, out)
		return
	}
	acc := in
	var slot Ref
	if b.Size > 1 {
		slot = b.tmp(in.Len)
	}
	if f.stands(b.Rank) {
		b.receive(b.Rank+1, slot)
		b.combine(out, in, slot)
		acc = out
	}
	me := f.number(b.Rank)
	for mask := 1; mask < f.power; mask <<= 1 {
		partner := f.member(me ^ mask)
		b.exchange(partner, acc, partner, slot)
		if me&mask == 0 {
			b.combine(out, acc, slot)
		} else {
			b.combine(out, slot, acc)
		}
		acc = out
	}
	b.copy(out, acc)
	if f.stands(b.Rank) {
		b.next()
		b.send(b.Rank+1, out)
	}
}

// doublingScan: after round k a member has combined the 2^(k+1) members up to
// itself. Hillis and Steele, Data Parallel Algorithms, 1986. In Exscan the result is combined
// separately, without the own part.
func (b *builder) doublingScan() {
	in, out := b.vector(In), b.vector(Out)
	exclusive := b.Kind == Exscan
	acc := in
	var slot, with Ref
	if b.Rank > 0 {
		slot = b.tmp(in.Len)
		if with = out; exclusive {
			with = b.tmp(in.Len)
		}
	}
	for d := 1; d < b.Size; d <<= 1 {
		b.next()
		if b.Rank >= d {
			b.receive(b.Rank-d, slot)
		}
		if b.Rank+d < b.Size {
			b.send(b.Rank+d, acc)
		}
		if b.Rank < d {
			continue
		}
		if !exclusive || b.Rank+2*d < b.Size { // another member needs it
			b.combine(with, slot, acc)
			acc = with
		}
		switch {
		case exclusive && d == 1:
			b.copy(out, slot)
		case exclusive:
			b.combine(out, slot, out)
		}
	}
	if !exclusive {
		b.copy(out, acc)
	}
}

// doublingAllgather: at distance 2^k partners exchange the 2^k blocks that they have.
func (b *builder) doublingAllgather() {
	o := b.cut(0)
	b.copy(o.of(all(Out), b.Rank), b.own(In))
	b.doubleBlocks(b.Rank, b.Size, o, func(number int) int { return number })
}

// doubleBlocks is the allgather by recursive doubling among a power of two of
// numbers: number i has block i in Out.
func (b *builder) doubleBlocks(me, power int, o blocks, member func(number int) int) {
	for mask := 1; mask < power; mask <<= 1 {
		partner := member(me ^ mask)
		mine := me &^ (mask - 1)
		theirs := mine ^ mask
		b.exchange(partner, o.span(all(Out), mine, mine+mask), partner, o.span(all(Out), theirs, theirs+mask))
	}
}
