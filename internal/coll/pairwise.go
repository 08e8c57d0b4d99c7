package coll

// pairwiseReduceScatter: each member sends every other its part of the other's block, and combines
// the parts that it receives for its own. An ordered reduction keeps them until all have arrived.
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
		dst := values[0] // scratch until the own part is in it
		if m >= b.Rank {
			dst = out
		}
		b.combine(dst, acc, values[m])
		acc = dst
	}
}
