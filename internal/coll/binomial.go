package coll

// The binomial tree is over virtual numbers, which count from the root. The parent of v is v
// without its lowest bit, so the subtree of v is v up to, but not including, v + lowest bit.

// lowBit is the lowest bit of v; for the root, the smallest power of two that is not below the
// number of members.
func (b *builder) lowBit(v int) int {
	if v == 0 {
		return 1 << ceilLog2(b.Size)
	}
	return v & -v
}

// binomialBroadcast sends down the tree, the largest subtree first.
func (b *builder) binomialBroadcast(root int, data Ref) {
	v := b.virtual(b.Rank, root)
	low := b.lowBit(v)
	if v != 0 {
		b.next()
		b.receive(b.actual(v-low, root), data)
	}
	b.next()
	for bit := low >> 1; bit > 0; bit >>= 1 {
		if v+bit < b.Size {
			b.send(b.actual(v+bit, root), data)
		}
	}
}

// binomialReduce combines up the tree, the smallest subtree first, so that a member
// always combines consecutive members. An ordered reduction uses the tree of member 0, which
// passes the result to the root. Only the root has a result.
func (b *builder) binomialReduce(root int, in, result Ref) {
	top := root
	if b.Ordered {
		top = 0
	}
	v := b.virtual(b.Rank, top)
	acc, dst := in, result
	var slot Ref
	b.next()
	for bit := 1; bit < b.lowBit(v) && v+bit < b.Size; bit <<= 1 {
		if bit == 1 {
			slot = b.tmp(in.Len)
			if b.Rank != root || top != root {
				dst = b.tmp(in.Len)
			}
		}
		b.next()
		b.receive(b.actual(v+bit, top), slot)
		b.combine(dst, acc, slot)
		acc = dst
	}
	if v != 0 {
		b.next()
		b.send(b.actual(v-b.lowBit(v), top), acc)
	}
	b.next()
	switch {
	case top == root && v == 0:
		b.copy(result, acc)
	case top == root:
	case v == 0:
		b.send(root, acc)
	case b.Rank == root:
		b.receive(top, result)
	}
}

// subtree is the virtual numbers of the members below v, without the last.
func (b *builder) subtree(v int) (from, to int) { return v, min(v+b.lowBit(v), b.Size) }

// atRoot is where the blocks of the members from, ... to (virtual) lie in the root's
// buffer; in two pieces if they pass the last member.
func (b *builder) atRoot(buf Buffer, o blocks, from, to int) []Ref {
	from, to = from+b.Root, to+b.Root
	switch {
	case from >= b.Size:
		return []Ref{o.span(all(buf), from-b.Size, to-b.Size)}
	case to > b.Size:
		return []Ref{o.span(all(buf), from, b.Size), o.span(all(buf), 0, to-b.Size)}
	}
	return []Ref{o.span(all(buf), from, to)}
}

// binomialGather collects up the tree. A member keeps the blocks below it in the
// order of virtual numbers.
func (b *builder) binomialGather() {
	v := b.virtual(b.Rank, b.Root)
	o := b.cut(b.Root)
	if v == 0 {
		b.binomialGatherRoot(o)
		return
	}
	low := b.lowBit(v)
	parent := b.actual(v-low, b.Root)
	from, to := b.subtree(v)
	if to == from+1 {
		b.send(parent, b.own(In))
		return
	}
	kept := b.tmp(o[to] - o[from])
	base := Ref{kept.Buf, kept.Off - o[from], 0}
	for bit := 1; bit < low && v+bit < b.Size; bit <<= 1 {
		f, t := b.subtree(v + bit)
		b.receive(b.actual(v+bit, b.Root), o.span(base, f, t))
	}
	b.copy(o.of(base, v), b.own(In))
	b.next()
	b.send(parent, kept)
}

func (b *builder) binomialGatherRoot(o blocks) {
	real := b.cut(0)
	var dst, src []Ref
	for bit := 1; bit < b.Size; bit <<= 1 {
		f, t := b.subtree(bit)
		pieces := b.atRoot(Out, real, f, t)
		if len(pieces) == 1 {
			b.receive(b.actual(bit, b.Root), pieces[0])
			continue
		}
		whole := b.tmp(o[t] - o[f])
		b.receive(b.actual(bit, b.Root), whole)
		dst = append(dst, pieces...)
		src = append(src, Ref{Tmp, whole.Off, pieces[0].Len}, Ref{Tmp, whole.Off + pieces[0].Len, pieces[1].Len})
	}
	for i := range dst {
		b.copy(dst[i], src[i])
	}
	b.copy(real.of(all(Out), b.Rank), b.own(In))
}

// binomialScatter sends down the tree, the largest subtree first.
func (b *builder) binomialScatter() {
	v := b.virtual(b.Rank, b.Root)
	o := b.cut(b.Root)
	if v == 0 {
		b.binomialScatterRoot(o)
		return
	}
	low := b.lowBit(v)
	parent := b.actual(v-low, b.Root)
	from, to := b.subtree(v)
	if to == from+1 {
		b.receive(parent, b.own(Out))
		return
	}
	kept := b.tmp(o[to] - o[from])
	base := Ref{kept.Buf, kept.Off - o[from], 0}
	b.receive(parent, kept)
	b.next()
	for bit := low >> 1; bit > 0; bit >>= 1 {
		if v+bit < b.Size {
			f, t := b.subtree(v + bit)
			b.send(b.actual(v+bit, b.Root), o.span(base, f, t))
		}
	}
	b.copy(b.own(Out), o.of(base, v))
}

func (b *builder) binomialScatterRoot(o blocks) {
	real := b.cut(0)
	type part struct {
		to int
		r  Ref
	}
	var parts []part
	for bit := b.lowBit(0) >> 1; bit > 0; bit >>= 1 {
		if bit >= b.Size {
			continue
		}
		f, t := b.subtree(bit)
		pieces := b.atRoot(In, real, f, t)
		whole := pieces[0]
		if len(pieces) == 2 {
			whole = b.tmp(o[t] - o[f])
			b.copy(Ref{Tmp, whole.Off, pieces[0].Len}, pieces[0])
			b.copy(Ref{Tmp, whole.Off + pieces[0].Len, pieces[1].Len}, pieces[1])
		}
		parts = append(parts, part{b.actual(bit, b.Root), whole})
	}
	b.next()
	for _, p := range parts {
		b.send(p.to, p.r)
	}
	b.copy(b.own(Out), real.of(all(In), b.Rank))
}
