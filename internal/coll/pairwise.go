package coll

// pairwiseReduceScatter: each sends every other member its part of that one's block,
// and combines what comes for its own. Where the order of ranks counts it is kept
// until all is there.
func (b *builder) pairwiseReduceScatter() {
	o := b.cut(0)
	mine, out := o.of(all(In), b.Rank), b.own(Out)
	if b.Size == 1 {
		b.copy(out, mine)
		return
	}
	var slot Ref
	if !b.Ordered {
		slot = b.tmp(out.Len)
	}
	values := make([]Ref, b.Size)
	values[b.Rank] = mine
	acc := mine
	for d := 1; d < b.Size; d++ {
		from, to := b.before(b.Rank, d), (b.Rank+d)%b.Size
		if b.Ordered {
			slot = b.tmp(out.Len)
			values[from] = slot
		}
		b.exchange(to, o.of(all(In), to), from, slot)
		if !b.Ordered {
			b.combine(out, acc, slot)
			acc = out
		}
	}
	if !b.Ordered {
		return
	}
	acc = values[0]
	for m := 1; m < b.Size; m++ {
		dst := values[0] // scratch, as long as the own part is not in it
		if m >= b.Rank {
			dst = out
		}
		b.combine(dst, acc, values[m])
		acc = dst
	}
}
