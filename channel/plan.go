package channel

import (
	"context"
	"errors"
	"slices"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/shared"
	"github.com/sluice-hpc/sluice/internal/collop"
)

// addressOf is where a slice begins.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// alone says whether an operation involves only the memory of this host.
func (g *Group) alone(o *collop.Spec) bool {
	return g.place.Single() && shared.Can(o.Kind, o.Unit(), o.Uneven, len(g.local))
}

// planHost plans the operation of a group of one host.
func (c *Collective) planHost() error {
	g, o := c.group, &c.op
	if err := o.Check(g.me, g.Size()); err != nil {
		return err
	}
	c.sig = o.Sign(g.Size(), coll.Auto)
	c.stages = c.single[:1]
	s := &c.single[0]
	s.op = &c.host[0]
	s.c = shared.Call{Kind: o.Kind, Signature: uint64(c.sig), Root: o.Root, Dst: o.Dst, Src: o.Src,
		Block: o.Count * o.Elem, Uneven: o.Uneven, Elem: o.Unit(), Combine: o.Rule.Combine, Fold: o.Rule.Fold}
	s.c.Blocks = c.counted[0].keep(&o.Counts, o.Elem)
	s.c.From = c.counted[1].keep(&o.From, o.Elem)
	return nil
}

// counted is room for counts of blocks and where these are, which is used again.
type counted struct {
	counts []int
	spans  []shared.Span
}

// keep replaces counts, which the program may change, by a copy, and returns the blocks; nil if there are none.
func (r *counted) keep(counts *[]int, elem int) []shared.Span {
	if *counts == nil {
		return nil
	}
	r.counts, r.spans = append(r.counts[:0], *counts...), r.spans[:0]
	*counts = r.counts
	off := 0
	for _, n := range r.counts {
		r.spans = append(r.spans, shared.Span{Off: off, Len: n * elem})
		off += n * elem
	}
	return r.spans
}

// plan declares what an operation needs.
func (c *Collective) plan(o collop.Spec) error {
	g := c.group
	c.op = o
	if g.alone(&c.op) {
		return c.planHost()
	}
	if err := c.op.Check(g.me, g.Size()); err != nil {
		return err
	}
	c.sig = c.op.Sign(g.Size(), coll.Auto)
	err := c.planBetween()
	if err != nil {
		c.free()
	}
	return err
}

// planBetween plans an operation of a group of several hosts.
func (c *Collective) planBetween() error {
	if c.group.twoLevels(&c.op) {
		return c.planLevels()
	}
	return c.planFlat()
}

// planFlat plans messages between all members.
func (c *Collective) planFlat() error {
	g, o := c.group, &c.op
	members := make([]int, g.Size())
	for i := range members {
		members[i] = i
	}
	s := o.Shape(g.me, g.Size())
	return c.between(members, s, o.Dst, o.Src)
}

// between adds a stage of messages between some members.
func (c *Collective) between(members []int, s coll.Shape, dst, src []byte) error {
	g := c.group
	a := g.node.opt.coll.Choose(&s)
	s.Segment = g.node.opt.coll.Segment
	schedule, err := coll.Build(a, &s)
	if err != nil {
		return err
	}
	scratch, err := c.alloc(coll.ScratchSize(schedule))
	if err != nil {
		return err
	}
	run, err := coll.NewRun(&betweenCarrier{c, members}, schedule, src, dst, scratch, c.op.Rule.Combine)
	if err != nil {
		return err
	}
	c.stages = append(c.stages, stage{run: run, sig: c.op.Sign(g.Size(), a), members: members})
	return nil
}

// alloc returns memory that is freed with the collective.
func (c *Collective) alloc(n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	m, err := c.group.node.Alloc(n)
	if err != nil {
		return nil, err
	}
	c.memory = append(c.memory, m)
	return m.buf, nil // Bytes may be nil already: a node that is being closed frees it when the call is over
}

// keptCall is an operation of Run that is kept declared, over memory of its own.
type keptCall struct {
	c        *Collective
	dst, src []byte
	used     uint64
}

// bytes is the memory that the call takes.
func (k *keptCall) bytes() (n int) {
	for _, m := range k.c.memory {
		n += len(m.buf)
	}
	return n
}

// Bounds on the operations kept for Run. Members need not keep the same ones: messages match in
// the order of their starts, whichever handles they belong to.
const (
	keptCalls = 64
	keptTotal = 32 << 20
	keptBytes = 4 << 20 // of one operation; a longer one is declared over the user's memory and not kept
)

// runKept runs an operation between hosts.
func (g *Group) runKept(ctx context.Context, o *collop.Spec) error {
	op := o.Kind.String()
	if f := g.fault.Load(); f != nil { // kept operations may be in progress
		return groupError(op, *f)
	}
	if err := o.Check(g.me, g.Size()); err != nil {
		return groupError(op, err)
	}
	if len(o.Dst)+len(o.Src) > keptBytes || o.Rule.Op == collop.UserOp {
		c := &Collective{group: g}
		if err := c.plan(*o); err != nil {
			return groupError(op, err)
		}
		err := c.carryOut(ctx)
		if f := g.fault.Load(); f != nil {
			g.mu.Lock()
			g.members[c] = struct{}{} // its messages may be in flight until the group is closed
			g.mu.Unlock()
			return err
		}
		return errors.Join(err, c.free())
	}
	k, err := g.keep(o)
	if err != nil {
		return groupError(op, err)
	}
	gives := o.Kind == coll.Broadcast && g.me == o.Root
	if gives {
		copy(k.dst, o.Dst)
	}
	copy(k.src, o.Src)
	if err := k.c.carryOut(ctx); err != nil {
		return err
	}
	switch { // do not copy a dst that the operation does not write
	case gives, (o.Kind == coll.Reduce || o.Kind == coll.Gather) && g.me != o.Root, o.Kind == coll.Exscan && g.me == 0:
	default:
		copy(o.Dst, k.dst)
	}
	return nil
}

// keep returns the operation over memory of its own, and plans it if it has not been called
// recently.
func (g *Group) keep(o *collop.Spec) (*keptCall, error) {
	g.keyRoom = o.AppendKey(g.keyRoom[:0])
	key := g.keyRoom
	g.age++
	if k := g.kept[string(key)]; k != nil {
		k.used = g.age
		return k, nil
	}
	if err := g.dropKept(keptCalls-1, keptTotal-len(o.Dst)-len(o.Src)); err != nil {
		return nil, err
	}
	k := &keptCall{c: &Collective{group: g}, used: g.age}
	mem, err := k.c.alloc(len(o.Dst) + len(o.Src))
	if err != nil {
		return nil, err
	}
	k.dst, k.src = mem[:len(o.Dst):len(o.Dst)], mem[len(o.Dst):]
	own := *o
	own.Dst, own.Src, own.Counts, own.From = k.dst, k.src, slices.Clone(o.Counts), slices.Clone(o.From)
	if err := k.c.plan(own); err != nil {
		return nil, err
	}
	g.kept[string(key)] = k
	g.keptSize += k.bytes()
	if err := g.dropKept(keptCalls, keptTotal); err != nil { // counts its scratch memory too
		return nil, err
	}
	return k, nil
}

// dropKept drops the least recently used calls until at most calls are left, with at most bytes
// of memory. The last one stays.
func (g *Group) dropKept(calls, bytes int) error {
	for len(g.kept) > calls || len(g.kept) > 1 && g.keptSize > bytes {
		oldest := ""
		for name, k := range g.kept {
			if oldest == "" || k.used < g.kept[oldest].used {
				oldest = name
			}
		}
		k := g.kept[oldest]
		delete(g.kept, oldest)
		g.keptSize -= k.bytes()
		if err := k.c.free(); err != nil {
			return err
		}
	}
	return nil
}
