package impi

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/collop"
)

// Collectives with foreign processes follow the protocol (IMPI 0.0, chapter 4) as LAM/MPI 7.1.4
// implements it: each client uses its own means inside, and one process of each client, its master,
// talks to the other clients. The master is the client's lowest rank, except in the root's client,
// where it is the root itself.

// Tags of messages between masters (IMPI 0.0, chapter 4). Those of reductions travel in the
// point-to-point context, because LAM/MPI does not switch to the collective context there.
const (
	tagBarrier = 110
	tagBcast   = 120
	tagReduce  = 190
)

// protocolHas says whether a collective can be done with foreign processes: LAM/MPI has these.
func protocolHas(kind coll.Kind) bool {
	switch kind {
	case coll.Barrier, coll.Broadcast, coll.Reduce, coll.Allreduce:
		return true
	}
	return false
}

// byProtocol says whether collectives follow the protocol. Only the world can have foreign members.
func (c *Comm) byProtocol() bool { return c.cid == worldCID && c.job.protocol }

// clients says which processes belong together.
type clients struct {
	masters []int // lowest rank of each client, ascending
	of      []int // client of each rank, counted as in masters
	own     int   // client of this process
	within  *Comm // of its processes
	root    []int // rank within its client, of each rank
}

// clientsOf returns the clients of the members of a communicator.
func (c *Comm) clientsOf() *clients {
	if c.calls.clients != nil {
		return c.calls.clients
	}
	l := &clients{of: make([]int, len(c.ranks)), root: make([]int, len(c.ranks))}
	members := map[int][]int32{}
	last := -1
	for i, rank := range c.ranks {
		client := c.job.roster.hosts[c.e.hostOf[rank]].client
		if client != last { // the processes of a client follow each other
			l.masters = append(l.masters, i)
			last = client
		}
		l.of[i] = len(l.masters) - 1
		l.root[i] = len(members[client])
		members[client] = append(members[client], rank)
	}
	l.own = l.of[c.me]
	number := c.job.roster.hosts[c.e.me].client
	l.within = c.job.newComm(c.p, members[number], clientCIDs+2*uint64(number))
	l.within.calls.outer = c
	c.calls.clients = l
	return l
}

// protocolCall is a collective of the protocol that is in progress.
type protocolCall struct {
	others
	*Comm
	*clients
	ctx  context.Context
	kind coll.Kind
	r    *request // that is waited for
}

// runProtocol carries out an operation as the protocol does it.
func (c *Comm) runProtocol(ctx context.Context, o *collop.Spec) error {
	x := &protocolCall{Comm: c, clients: c.clientsOf(), ctx: ctx, kind: o.Kind}
	switch o.Kind {
	case coll.Barrier:
		return x.barrier()
	case coll.Broadcast:
		return x.broadcast(o.Dst, o.Root)
	case coll.Reduce:
		return x.reduce(o, o.Dst, o.Root)
	}
	// Allreduce (LAM/MPI: lam_ssi_coll_lam_basic_allreduce).
	if err := x.reduce(o, o.Dst, 0); err != nil {
		return err
	}
	return x.broadcast(o.Dst, 0)
}

// local carries out an operation among the processes of this client.
func (x *protocolCall) local(o collop.Spec) error {
	if len(x.within.ranks) == 1 && o.Kind != coll.Reduce {
		return nil
	}
	return x.within.runPlan(x.ctx, &o)
}

// linear says whether masters talk to the root alone.
func (x *protocolCall) linear() bool { return len(x.masters) <= x.job.roster.settings.MaxLinear }

// dimension is the number of bits of the number of a master.
func (x *protocolCall) dimension() int { return bits.Len(uint(len(x.masters) - 1)) }

// speaks says whether this process takes part between clients, in a collective with a root.
func (x *protocolCall) speaks(root int) bool {
	if x.of[root] == x.own {
		return x.me == root
	}
	return x.masters[x.own] == x.me
}

// barrier: all have arrived when the root of the tree, or rank 0, has heard from every master.
func (x *protocolCall) barrier() error {
	meet := collop.Spec{Kind: coll.Barrier, Rule: collop.Moved}
	if err := x.local(meet); err != nil {
		return err
	}
	if x.masters[x.own] == x.me {
		if err := x.masterBarrier(); err != nil {
			return err
		}
	}
	return x.local(meet)
}

func (x *protocolCall) masterBarrier() error {
	n, me := len(x.masters), x.own
	var children []int // lowest bit first
	parent := 0
	if x.linear() {
		for i := 1; i < n && me == 0; i++ {
			children = append(children, i)
		}
	} else {
		high := bits.Len(uint(me)) // bit above the highest
		for i := high; i < x.dimension(); i++ {
			if child := me | 1<<i; child < n {
				children = append(children, child)
			}
		}
		if me > 0 {
			parent = me &^ (1 << (high - 1))
		}
	}
	heard := slices.Clone(children)
	if !x.linear() {
		slices.Reverse(heard)
	}
	for _, child := range heard {
		if err := x.receive(x.coll, x.masters[child], tagBarrier, nil); err != nil {
			return err
		}
	}
	if me > 0 {
		if err := x.send(x.coll, x.masters[parent], tagBarrier, nil); err != nil {
			return err
		}
		if err := x.receive(x.coll, x.masters[parent], tagBarrier, nil); err != nil {
			return err
		}
	}
	for _, child := range children {
		if err := x.send(x.coll, x.masters[child], tagBarrier, nil); err != nil {
			return err
		}
	}
	return nil
}

func (x *protocolCall) broadcast(buf []byte, root int) error {
	if x.speaks(root) {
		if err := x.masterBroadcast(buf, root); err != nil {
			return err
		}
	}
	from := x.root[root]
	if x.of[root] != x.own {
		from = 0
	}
	return x.local(collop.Spec{Kind: coll.Broadcast, Root: from, Elem: 1, Count: len(buf), Dst: buf, Rule: collop.Moved})
}

func (x *protocolCall) masterBroadcast(buf []byte, root int) error {
	n, first := len(x.masters), x.of[root]
	v := (x.own - first + n) % n // number of this master, counted from the root's
	if x.linear() {
		if v > 0 {
			return x.receive(x.coll, root, tagBcast, buf)
		}
		for i, master := range x.masters {
			if i != first {
				if err := x.send(x.coll, master, tagBcast, buf); err != nil {
					return err
				}
			}
		}
		return nil
	}
	high := bits.Len(uint(v))
	if v > 0 {
		if err := x.receive(x.coll, x.speaker(v&^(1<<(high-1)), root), tagBcast, buf); err != nil {
			return err
		}
	}
	for i := high; i < x.dimension(); i++ {
		if child := v | 1<<i; child < n {
			if err := x.send(x.coll, x.speaker(child, root), tagBcast, buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// speaker is the rank of a master by its number counted from the root's.
func (x *protocolCall) speaker(v, root int) int {
	if v == 0 {
		return root
	}
	return x.masters[(v+x.of[root])%len(x.masters)]
}

// reduce combines Src of all into dst of the root.
func (x *protocolCall) reduce(o *collop.Spec, dst []byte, root int) error {
	if o.Rule.Ordered {
		return x.reduceInOrder(o, dst, root)
	}
	to, acc := x.root[root], dst
	if x.of[root] != x.own {
		to = 0
	}
	if x.speaks(root) && x.me != root {
		acc = make([]byte, len(o.Src))
	}
	err := x.local(collop.Spec{Kind: coll.Reduce, Root: to, Elem: o.Elem, Count: o.Count, Dst: acc, Src: o.Src, Rule: o.Rule})
	if err != nil || !x.speaks(root) {
		return err
	}
	return x.masterReduce(o, acc, root)
}

func (x *protocolCall) masterReduce(o *collop.Spec, acc []byte, root int) error {
	n, first := len(x.masters), x.of[root]
	v := (x.own - first + n) % n
	combine, tmp := x.combine(o.Rule), make([]byte, len(acc))
	take := func(from int) error {
		if err := x.receive(x.match, from, tagReduce, tmp); err != nil {
			return err
		}
		combine(acc, tmp, acc)
		return nil
	}
	if x.linear() {
		if v > 0 {
			return x.send(x.match, root, tagReduce, acc)
		}
		for i, master := range x.masters {
			if i != first {
				if err := take(master); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for i := range x.dimension() {
		if v&(1<<i) != 0 {
			return x.send(x.match, x.speaker(v&^(1<<i), root), tagReduce, acc)
		}
		if child := v | 1<<i; child < n {
			if err := take(x.speaker(child, root)); err != nil {
				return err
			}
		}
	}
	return nil
}

// reduceInOrder: the root receives from each process in turn, from the last to the first.
func (x *protocolCall) reduceInOrder(o *collop.Spec, dst []byte, root int) error {
	if x.me != root {
		return x.send(x.match, root, tagReduce, o.Src)
	}
	combine, tmp := x.combine(o.Rule), make([]byte, len(o.Src))
	acc := make([]byte, len(o.Src)) // dst may be Src
	for i := len(x.ranks) - 1; i >= 0; i-- {
		from := o.Src
		if i != root {
			from = tmp
			if err := x.receive(x.match, i, tagReduce, tmp); err != nil {
				return err
			}
		}
		if i == len(x.ranks)-1 {
			copy(acc, from)
		} else {
			combine(acc, from, acc)
		}
	}
	copy(dst, acc)
	return nil
}

// send sends to a member and waits.
func (x *protocolCall) send(m *matcher, to, tag int, b []byte) error {
	r, err := x.startSend(m, b, nil, to, tag, false)
	if err != nil {
		return err
	}
	x.r = r
	return x.wait(to)
}

// receive receives a message of that length from a member and waits.
func (x *protocolCall) receive(m *matcher, from, tag int, b []byte) error {
	r, err := x.startReceive(m, b, nil, from, tag)
	if err != nil {
		return err
	}
	x.r = r
	return x.wait(from)
}

// over says whether there is nothing left to wait for.
func (x *protocolCall) over() bool { return x.r.state == done || x.toldOfFault() }

// wait waits for the message with a member.
func (x *protocolCall) wait(rank int) error {
	err := await(x.ctx, x.e, x)
	r := x.r
	x.r = nil
	if r.state != done {
		x.abandon(r)
		if err == nil {
			return x.failed()
		}
		return collError(x.kind, -1, err)
	}
	err = r.err
	if n := r.length; r.kind == receiving && n != r.total && (err == nil || errors.Is(err, ErrTruncated)) {
		err = fmt.Errorf("%w: message of %d bytes instead of %d", ErrMismatch, n, r.total)
	}
	x.e.release(r)
	if err != nil {
		return collError(x.kind, rank, err)
	}
	return nil
}
