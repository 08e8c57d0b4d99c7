package shared

import "sync/atomic"

// The branches of the tree are consecutive members, so that it combines in member order: member 0
// reads 1 to 7, then 8, 16, 24 and so on, each of which has read the seven that follow it.

// child is the at-th member that member me reads in a tree of size members; not ok if there is none.
func child(me, size, at int) (i int, ok bool) {
	for stride := 1; stride < size; stride *= Radix {
		if me%(stride*Radix) != 0 {
			return 0, false
		}
		n := min(Radix-1, (size-1-me)/stride)
		if at < n {
			return me + (at+1)*stride, true
		}
		at -= n
	}
	return 0, false
}

// startTree begins a combination along the tree with the input of the member.
func (o *Op) startTree() {
	o.at = 0
	copy(o.partial(), o.call.Src)
}

// partial is the result that the member has combined so far, in the slot's data.
func (o *Op) partial() []byte { return o.team.data(o.team.me, o.number)[:len(o.call.Src)] }

// branch combines what the members below have published, as it arrives, and publishes the result for
// the one above.
func (o *Op) branch() (phase, error) {
	t, c := o.team, o.call
	acc := o.partial()
	for {
		i, ok := child(t.me, t.size, o.at)
		if !ok {
			break
		}
		_, ok, err := t.up(o, i)
		if err != nil || !ok {
			return phaseTree, err
		}
		if len(acc) > 0 {
			c.Combine(acc, acc, t.published(&t.line(i, o.number).up, i, o.number, len(acc)))
		}
		o.at++
	}
	flags := uint8(0)
	lines := t.line(t.me, o.number)
	l := &lines.up
	if t.me == 0 { // this is the result
		lines.up.publish(c.Signature, o.stamp(), 0, t.lag(o.number))
		l = &lines.down
	}
	if len(acc) <= Inline {
		flags = flagInline
		copy(l.payload[:], acc)
	}
	l.publish(c.Signature, o.stamp(), flags, t.lag(o.number))
	t.carrier.Wake()
	return phaseRoot, nil
}

// published is the data published by a line of a member, n bytes.
func (t *Team) published(l *line, i int, number uint64, n int) []byte {
	if n <= Inline {
		return l.payload[:n]
	}
	return t.data(i, number)[:n]
}

// takeTreeResult takes the result from the root of the tree.
func (o *Op) takeTreeResult() (phase, error) {
	t, c := o.team, o.call
	l := &t.line(0, o.number).down
	w := atomic.LoadUint64(&l.word)
	if !says(w, o.number) {
		return phaseRoot, nil
	}
	if l.signature != c.Signature || uint16(w>>16) != o.before {
		return o.phase, o.mismatch(0, l.signature)
	}
	if len(c.Src) > 0 {
		copy(c.Dst, t.published(l, 0, o.number, len(c.Src)))
	}
	return phaseIdle, nil
}
