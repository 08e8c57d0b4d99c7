package coll

// maxSegments bounds the messages that are declared for a vector. With so many, the time of one
// segment hardly matters, so longer vectors have longer segments.
const maxSegments = 256

// segments cuts the vector into pieces of about b.Segment bytes, at least one.
func (b *builder) segments() blocks {
	bytes := b.Segment
	if bytes == 0 {
		bytes = DefaultSegment
	}
	each := max(bytes/b.Elem, (b.Count+maxSegments-1)/maxSegments, 1)
	return even(b.Count, max((b.Count+each-1)/each, 1), b.Elem)
}

// chain passes segments on: in each round it receives one, into the place that receive returns,
// and sends the one before, which local has processed.
func (b *builder) chain(from, to, segments int, receive, send func(i int) Ref, local func(i int)) {
	for i := range segments + 1 {
		b.next()
		if i < segments && from >= 0 {
			b.receive(from, receive(i))
		}
		if i > 0 && to >= 0 {
			b.send(to, send(i-1))
		}
		if i < segments {
			local(i)
		}
	}
}

// chainBroadcast passes segments from the root to the member after it, and so on.
func (b *builder) chainBroadcast(root int) {
	o := b.segments()
	segment := func(i int) Ref { return o.of(all(Out), i) }
	v := b.virtual(b.Rank, root)
	from, to := -1, -1
	if v > 0 {
		from = b.actual(v-1, root)
	}
	if v < b.Size-1 {
		to = b.actual(v+1, root)
	}
	b.chain(from, to, len(o)-1, segment, segment, func(int) {})
}

// chainReduce passes segments towards the root, from the member cyclically before it on
// downwards, and combines them on the way. In an ordered reduction the chain ends at member 0,
// which passes the result to the root.
func (b *builder) chainReduce(root int) {
	o := b.segments()
	top := root
	if b.Ordered {
		top = 0
	}
	v := b.virtual(b.Rank, top)
	from, to := -1, -1
	if v < b.Size-1 {
		from = b.actual(v+1, top)
	}
	if v > 0 {
		to = b.actual(v-1, top)
	}
	in, result := b.vector(In), b.vector(Out)
	slot, acc := Ref{}, func(i int) Ref { return o.of(in, i) }
	if from >= 0 {
		slot = b.tmp(o.longest())
		switch {
		case v > 0:
			one := b.tmp(o.longest())
			acc = func(i int) Ref { return Ref{one.Buf, one.Off, o[i+1] - o[i]} }
		case top != root:
			result = b.tmp(in.Len)
			fallthrough
		default:
			acc = func(i int) Ref { return o.of(result, i) }
		}
	}
	got := func(i int) Ref { return Ref{slot.Buf, slot.Off, o[i+1] - o[i]} }
	b.chain(from, to, len(o)-1, got, acc, func(i int) {
		switch {
		case from >= 0:
			b.combine(acc(i), o.of(in, i), got(i))
		case b.Size == 1:
			b.copy(o.of(result, i), o.of(in, i))
		}
	})
	if top != root {
		b.next()
		switch b.Rank {
		case top:
			b.send(root, result)
		case root:
			b.receive(top, result)
		}
	}
}

// chainScan is the linear scan by segments.
func (b *builder) chainScan() {
	o := b.segments()
	in, out := b.vector(In), b.vector(Out)
	from, to := b.Rank-1, b.Rank+1
	if to == b.Size {
		to = -1
	}
	var slot, one Ref
	if from >= 0 {
		slot = b.tmp(o.longest())
		if b.Kind == Exscan && to >= 0 {
			one = b.tmp(o.longest())
		}
	}
	with := func(i int) Ref {
		switch {
		case from < 0:
			return o.of(in, i)
		case b.Kind == Exscan:
			return Ref{one.Buf, one.Off, o[i+1] - o[i]}
		}
		return o.of(out, i)
	}
	got := func(i int) Ref { return Ref{slot.Buf, slot.Off, o[i+1] - o[i]} }
	b.chain(from, to, len(o)-1, got, with, func(i int) {
		switch {
		case from < 0 && b.Kind == Scan:
			b.copy(o.of(out, i), o.of(in, i))
		case from < 0:
		case b.Kind == Scan:
			b.combine(with(i), got(i), o.of(in, i))
		default:
			if to >= 0 {
				b.combine(with(i), got(i), o.of(in, i))
			}
			b.copy(o.of(out, i), got(i))
		}
	})
}
