package coll

// linearBroadcast: the root sends to each member, in the order of ranks.
func (b *builder) linearBroadcast(root int, data Ref) {
	b.next()
	if b.Rank != root {
		b.receive(root, data)
		return
	}
	for m := range b.Size {
		if m != root {
			b.room(1)
			b.send(m, data)
		}
	}
}

// linearScratch bounds the scratch, in bytes, for vectors that the root receives at a time; it
// holds at least one.
const linearScratch = 256 << 10

// linearReduce: the root receives from each member and combines in the order of
// ranks. Only the root has a result.
func (b *builder) linearReduce(root int, in, result Ref) {
	b.next()
	if b.Rank != root {
		b.send(root, in)
		return
	}
	if b.Size == 1 {
		b.copy(result, in)
		return
	}
	slots := make([]Ref, min(max(linearScratch/max(in.Len, 1), 1), MaxRound, b.Size-1))
	for i := range slots {
		slots[i] = b.tmp(in.Len)
	}
	// Parts before the root's are combined separately: in place, the result overlaps the
	// root's part.
	var before Ref
	if root > 0 {
		before = b.tmp(in.Len)
	}
	var acc Ref
	for first, last := 0, 0; first < b.Size; first = last {
		b.next()
		values := make([]Ref, 0, len(slots)+2)
		for used := 0; last < b.Size && (last == root || used < len(slots)); last++ {
			value := in
			if last != root {
				value = slots[used]
				if used++; last == 0 {
					value = before
				}
				b.receive(last, value)
			}
			values = append(values, value)
		}
		for i, value := range values {
			switch m := first + i; {
			case m == 0:
				acc = value
			case m < root:
				b.combine(before, acc, value)
			default:
				b.combine(result, acc, value)
				acc = result
			}
		}
	}
}

// linearGather: the root receives from each member.
func (b *builder) linearGather() {
	if b.Rank != b.Root {
		b.send(b.Root, b.own(In))
		return
	}
	o := b.cut(0)
	for m := range b.Size {
		if m != b.Root {
			b.room(1)
			b.receive(m, o.of(all(Out), m))
		}
	}
	b.copy(o.of(all(Out), b.Rank), b.own(In))
}

// linearScatter: the root sends to each member its block of those at data.
func (b *builder) linearScatter(root int, data Ref) {
	b.next()
	if b.Rank != root {
		b.receive(root, b.own(Out))
		return
	}
	o := b.cut(0)
	for m := range b.Size {
		if m != root {
			b.room(1)
			b.send(m, o.of(data, m))
		}
	}
	b.copy(b.own(Out), o.of(data, b.Rank))
}

// linearReduceScatter reduces at member 0, which then scatters.
func (b *builder) linearReduceScatter() {
	n := b.cut(0).total()
	var result Ref
	if b.Rank == 0 {
		result = b.tmp(n)
	}
	b.linearReduce(0, Ref{In, 0, n}, result)
	b.linearScatter(0, result)
}

// linearAllgather: each member sends its block to every other.
func (b *builder) linearAllgather() {
	o := b.cut(0)
	for d := 1; d < b.Size; d++ {
		from, to := (b.Rank-d+b.Size)%b.Size, (b.Rank+d)%b.Size
		b.room(2)
		b.receive(from, o.of(all(Out), from))
		b.send(to, b.own(In))
	}
	b.copy(o.of(all(Out), b.Rank), b.own(In))
}

// directAlltoall: each member exchanges with all others, at distance 1, 2, ..., atATime of them in
// a round. At each distance, all members exchange with different partners.
func (b *builder) directAlltoall(atATime int) {
	send, recv := b.cutBy(b.SendCounts, 0), b.cutBy(b.RecvCounts, 0)
	for d := 1; d < b.Size; d++ {
		from, to := (b.Rank-d+b.Size)%b.Size, (b.Rank+d)%b.Size
		if b.messages == 2*atATime {
			b.next()
		}
		b.receive(from, recv.of(all(Out), from))
		b.send(to, send.of(all(In), to))
	}
	b.copy(recv.of(all(Out), b.Rank), send.of(all(In), b.Rank))
}

// linearScan: each member combines the result from the member before with its part, and passes it
// on.
func (b *builder) linearScan() {
	in, out := b.vector(In), b.vector(Out)
	last := b.Rank == b.Size-1
	acc := in
	var before Ref
	if b.Rank > 0 {
		before = b.tmp(in.Len)
		b.receive(b.Rank-1, before)
		switch {
		case b.Kind == Scan:
			acc = out
		case !last:
			acc = b.tmp(in.Len)
		}
		if b.Kind == Scan || !last {
			b.combine(acc, before, in)
		}
	}
	b.next()
	if !last {
		b.send(b.Rank+1, acc)
	}
	switch {
	case b.Kind == Scan:
		b.copy(out, acc)
	case b.Rank > 0:
		b.copy(out, before)
	}
}
