package channel

import (
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/shared"
	"github.com/sluice-hpc/sluice/internal/collop"
)

// hierarchy plans a two-level operation: within each host, then between one member of each host,
// its master, then within each host again.
type hierarchy struct {
	*Collective
	place   *coll.Placement
	masters []int // by host
	host    int   // this one
	master  int   // of this host, by its number on the host
	mine    bool  // this member is the master
	ops     int   // within the host, so far
	spans   []shared.Span
}

// twoLevels says whether the operation has such a plan. All-to-all has none, nor has an ordered
// reduction if the ranks of a host are not consecutive.
func (g *Group) twoLevels(o *collop.Spec) bool {
	p := g.place
	switch {
	case p.Flat(), p.Single(), o.Uneven, o.Kind == coll.Alltoall:
		return false
	case o.Rule.Ordered && !p.Contiguous(), (o.Kind == coll.Scan || o.Kind == coll.Exscan) && !p.Contiguous():
		return false
	}
	return shared.Can(o.Kind, o.Unit(), false, p.Largest())
}

func (c *Collective) planLevels() error {
	g, o := c.group, &c.op
	root := -1
	if o.Kind.Rooted() {
		root = o.Root
	}
	l := &hierarchy{Collective: c, place: g.place, masters: g.place.Masters(root), host: g.place.Host(g.me)}
	l.master = l.place.Index(l.masters[l.host])
	l.mine = l.masters[l.host] == g.me
	switch o.Kind {
	case coll.Barrier:
		l.within(coll.Reduce, nil, nil)
		return l.finish(l.across(coll.Barrier, 0, nil, nil, nil), nil)
	case coll.Broadcast:
		return l.finish(l.across(coll.Broadcast, len(o.Dst), nil, o.Dst, nil), o.Dst)
	case coll.Reduce:
		return l.reduce()
	case coll.Allreduce:
		part := l.partial(o.Dst)
		l.within(coll.Reduce, l.ifMine(o.Dst), o.Src)
		return l.finish(l.across(coll.Allreduce, len(o.Src), nil, o.Dst, part), o.Dst)
	case coll.ReduceScatter:
		return l.reduceScatter()
	case coll.Scan, coll.Exscan:
		return l.scan()
	case coll.Gather:
		return l.gather()
	case coll.Scatter:
		return l.scatter()
	}
	return l.allgather()
}

// within adds a stage within the host.
func (l *hierarchy) within(kind coll.Kind, dst, src []byte) {
	if len(l.group.local) == 1 {
		return
	}
	o := &l.op
	call := shared.Call{Kind: kind, Signature: uint64(l.sig), Root: l.master, Dst: dst, Src: src, Elem: o.Unit(), Combine: o.Rule.Combine, Fold: o.Rule.Fold}
	if kind == coll.Gather || kind == coll.Scatter {
		call.Blocks, call.Elem = l.spans, 1
	}
	l.stages = append(l.stages, stage{op: &l.Collective.host[l.ops], c: call})
	l.ops++
}

// across adds a stage between the masters: of a vector of n bytes, or of blocks of
// these lengths.
func (l *hierarchy) across(kind coll.Kind, n int, blocks []int, dst, src []byte) error {
	if !l.mine {
		return nil
	}
	o := &l.op
	s := coll.Shape{Kind: kind, Rank: l.host, Size: l.place.Hosts(), Elem: o.Unit(), Ordered: o.Rule.Ordered}
	s.Count = n / s.Elem
	if o.Kind.Rooted() {
		s.Root = l.place.Host(o.Root)
	}
	if blocks != nil {
		s.Agreed = true
		for _, b := range blocks {
			s.Counts = append(s.Counts, b/s.Elem)
		}
	}
	return l.between(l.masters, s, dst, src)
}

// finish adds the broadcast of b from the master to its host.
func (l *hierarchy) finish(err error, b []byte) error {
	if err == nil {
		l.within(coll.Broadcast, b, nil)
	}
	return err
}

// then adds a step at this member.
func (l *hierarchy) then(do func()) { l.stages = append(l.stages, stage{local: do}) }

// ifMine is b at the master, nil elsewhere.
func (l *hierarchy) ifMine(b []byte) []byte {
	if l.mine {
		return b
	}
	return nil
}

// partial is where the master finds the result of its host: b, or its own src if it is alone
// there.
func (l *hierarchy) partial(b []byte) []byte {
	if len(l.group.local) == 1 {
		return l.op.Src
	}
	return b
}

func (l *hierarchy) reduce() error {
	o := &l.op
	atRoot := l.group.me == o.Root
	var part []byte
	switch {
	case len(l.group.local) == 1:
		part = o.Src
	case atRoot:
		part = o.Dst
	case l.mine:
		var err error
		if part, err = l.alloc(len(o.Src)); err != nil {
			return err
		}
	}
	l.within(coll.Reduce, part, o.Src)
	var dst []byte
	if atRoot {
		dst = o.Dst
	}
	return l.across(coll.Reduce, len(o.Src), nil, dst, part)
}

// lengths are the bytes of each member's block in the order of members, and of each
// host's; it sets the spans of the members of this host.
func (l *hierarchy) lengths() (members, hosts []int) {
	o := &l.op
	members, hosts = make([]int, l.place.Size()), make([]int, l.place.Hosts())
	for m := range members {
		if members[m] = o.Count * o.Elem; o.Counts != nil {
			members[m] = o.Counts[m] * o.Elem
		}
		hosts[l.place.Host(m)] += members[m]
	}
	at := 0
	l.spans = nil
	for _, m := range l.place.Members(l.host) {
		l.spans = append(l.spans, shared.Span{Off: at, Len: members[m]})
		at += members[m]
	}
	return members, hosts
}

// byHost is memory for the blocks of all members, host after host: all itself if the members
// are in that order.
func (l *hierarchy) byHost(all []byte) ([]byte, error) {
	if l.place.Contiguous() {
		return all, nil
	}
	return l.alloc(len(all))
}

// reorder copies the blocks of all members from the order of members to that of hosts,
// or back.
func (l *hierarchy) reorder(dst, src []byte, members []int, toHosts bool) {
	at := make([]int, len(members)+1) // in the order of members
	for m, n := range members {
		at[m+1] = at[m] + n
	}
	off := 0
	for h := range l.place.Hosts() {
		for _, m := range l.place.Members(h) {
			if n := members[m]; toHosts {
				copy(dst[off:off+n], src[at[m]:])
			} else {
				copy(dst[at[m]:at[m]+n], src[off:])
			}
			off += members[m]
		}
	}
}

// sumOf is the sum of the first n.
func sumOf(list []int, n int) (sum int) {
	for _, v := range list[:n] {
		sum += v
	}
	return sum
}

func (l *hierarchy) allgather() error {
	o := &l.op
	members, hosts := l.lengths()
	off := sumOf(hosts, l.host)
	var all, block []byte
	if l.mine {
		var err error
		if all, err = l.byHost(o.Dst); err != nil {
			return err
		}
		block = all[off : off+hosts[l.host]]
	}
	l.within(coll.Gather, block, o.Src)
	if len(l.group.local) == 1 {
		block = o.Src
	}
	if err := l.across(coll.Allgather, 0, hosts, all, block); err != nil {
		return err
	}
	if l.mine && !l.place.Contiguous() {
		l.then(func() { l.reorder(o.Dst, all, members, false) })
	}
	return l.finish(nil, o.Dst)
}

func (l *hierarchy) gather() (err error) {
	o := &l.op
	members, hosts := l.lengths()
	var all, block []byte
	switch {
	case l.group.me == o.Root:
		if all, err = l.byHost(o.Dst); err != nil {
			return err
		}
		off := sumOf(hosts, l.host)
		block = all[off : off+hosts[l.host]]
	case l.mine && len(l.group.local) > 1:
		if block, err = l.alloc(hosts[l.host]); err != nil {
			return err
		}
	}
	l.within(coll.Gather, block, o.Src)
	if len(l.group.local) == 1 {
		block = o.Src
	}
	if err := l.across(coll.Gather, 0, hosts, all, block); err != nil {
		return err
	}
	if l.group.me == o.Root && !l.place.Contiguous() {
		l.then(func() { l.reorder(o.Dst, all, members, false) })
	}
	return nil
}

func (l *hierarchy) scatter() (err error) {
	o := &l.op
	members, hosts := l.lengths()
	var all, block []byte
	switch {
	case l.group.me == o.Root:
		if all, err = l.byHost(o.Src); err != nil {
			return err
		}
		if !l.place.Contiguous() {
			l.then(func() { l.reorder(all, o.Src, members, true) })
		}
		off := sumOf(hosts, l.host)
		block = all[off : off+hosts[l.host]]
	case l.mine && len(l.group.local) > 1:
		if block, err = l.alloc(hosts[l.host]); err != nil {
			return err
		}
	}
	alone := len(l.group.local) == 1
	if alone && l.group.me != o.Root {
		block = o.Dst
	}
	if err := l.across(coll.Scatter, 0, hosts, block, all); err != nil {
		return err
	}
	if alone && l.group.me == o.Root {
		l.then(func() { copy(o.Dst, block) })
	}
	l.within(coll.Scatter, o.Dst, block)
	return nil
}

func (l *hierarchy) reduceScatter() (err error) {
	o := &l.op
	members, hosts := l.lengths()
	alone := len(l.group.local) == 1
	part, block := l.partial(nil), o.Dst
	if l.mine && !alone {
		if part, err = l.alloc(len(o.Src)); err == nil {
			block, err = l.alloc(hosts[l.host])
		}
		if err != nil {
			return err
		}
	}
	l.within(coll.Reduce, l.ifMine(part), o.Src)
	if l.mine && !l.place.Contiguous() {
		all, err := l.alloc(len(o.Src))
		if err != nil {
			return err
		}
		from := part
		l.then(func() { l.reorder(all, from, members, true) })
		part = all
	}
	if err := l.across(coll.ReduceScatter, len(o.Dst), hosts, block, part); err != nil {
		return err
	}
	l.within(coll.Scatter, o.Dst, l.ifMine(block))
	return nil
}

// scan combines the result of the preceding hosts with the prefixes of this host's members.
func (l *hierarchy) scan() (err error) {
	o, g := &l.op, l.group
	prefix, err := l.alloc(len(o.Src))
	if err != nil {
		return err
	}
	part := l.partial(nil)
	if l.mine && len(g.local) > 1 {
		if part, err = l.alloc(len(o.Src)); err != nil {
			return err
		}
	}
	l.within(coll.Reduce, l.ifMine(part), o.Src) // before src is gone
	l.within(o.Kind, o.Dst, o.Src)
	if err := l.across(coll.Exscan, len(o.Src), nil, prefix, part); err != nil {
		return err
	}
	l.within(coll.Broadcast, prefix, nil)
	alone, first, exclusive := len(g.local) == 1, l.place.Index(g.me) == 0, o.Kind == coll.Exscan
	l.then(func() {
		switch {
		case l.host == 0 && alone && !exclusive:
			copy(o.Dst, o.Src)
		case l.host == 0:
		case exclusive && first:
			copy(o.Dst, prefix)
		case alone:
			o.Rule.Combine(o.Dst, prefix, o.Src)
		default:
			o.Rule.Combine(o.Dst, prefix, o.Dst)
		}
	})
	return nil
}
