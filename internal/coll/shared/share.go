package shared

// shareMin is the length from which the members divide the work of a reduction that all of them
// need, although that takes a second line.
const shareMin = 4 << 10

// share computes this member's share of the result, overwriting that part of its input.
func (o *Op) share() (phase, error) {
	t, c := o.team, o.call
	s := o.shareOf(t.me, len(c.Src))
	o.fold(s.in(t.data(t.me, o.number)[:]), t.parts, s)
	t.line(t.me, o.number).down.publish(c.Signature, o.stamp(), 0, 0)
	t.carrier.Wake()
	o.at = 0
	return phaseShare, nil
}

// shareOf is the share of member i of n bytes: whole elements.
func (o *Op) shareOf(i, n int) Span {
	e := max(o.call.Elem, 1)
	count := n / e
	from, to := count*i/o.team.size, count*(i+1)/o.team.size
	return Span{from * e, (to - from) * e}
}

// fold reduces a span of parts into dst, in member order. Dst may be part of one of them.
func (o *Op) fold(dst []byte, parts [][]byte, s Span) {
	if s.Len == 0 {
		return
	}
	combine := o.call.Combine
	e := max(o.call.Elem, 1)
	step := max(1, foldBlock/e) * e
	for off := 0; off < s.Len; off += step {
		n := min(step, s.Len-off)
		at := s.Off + off
		if len(parts) == 1 {
			copy(dst[off:off+n], parts[0][at:at+n])
			continue
		}
		if fold := o.call.Fold; fold != nil && len(parts) > 2 {
			views := o.team.views[:len(parts)]
			for i, p := range parts {
				views[i] = p[at : at+n : at+n]
			}
			fold(dst[off:off+n:off+n], views)
			continue
		}
		acc := dst[off : off+n]
		if len(parts) > 2 {
			acc = o.team.acc[:n]
		}
		combine(acc, parts[0][at:at+n:at+n], parts[1][at:at+n:at+n])
		for _, p := range parts[2:] {
			combine(acc, acc, p[at:at+n:at+n])
		}
		if len(parts) > 2 {
			copy(dst[off:], acc)
		}
	}
}

// foldBlock is the number of bytes reduced at a time, which stay in the first-level cache.
const foldBlock = 4 << 10

// gatherShares takes the shares of the others as they arrive.
func (o *Op) gatherShares() (phase, error) {
	t, c := o.team, o.call
	for o.at < t.size-1 {
		i := o.member(o.at)
		if _, ok := t.line(i, o.number).down.read(o.number); !ok {
			return phaseShare, nil
		}
		s := o.shareOf(i, len(c.Src))
		copy(s.in(c.Dst), s.in(t.data(i, o.number)[:]))
		o.at++
	}
	s := o.shareOf(t.me, len(c.Src))
	copy(s.in(c.Dst), s.in(t.data(t.me, o.number)[:]))
	return phaseIdle, nil
}
