package impi

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/collop"
)

// collectives is the state of a communicator's collectives.
type collectives struct {
	inside  bool             // a goroutine is in one
	begun   uint32           // so far
	plans   map[string]*plan // of those that have been called before
	age     uint64           // of plans
	keyRoom []byte

	notice  *request // a receive of the notice that another member has failed
	told    []byte   // its memory
	fault   error    // why there are no more collectives
	outer   *Comm    // communicator whose collectives this one's are part of
	clients *clients // of the protocol's own collectives
	ours    *Comm
}

// Run runs a collective of all members of the communicator (MPI_Bcast and the like), given as an
// operation of package channel, such as
//
//	err := comm.Run(ctx, channel.Allreduce(channel.Sum, dst, src))
//
// All members call the same operations in the same order. Run returns when the operation is
// complete at this member. Messages of collectives never match those of Isend and Irecv. Only one
// goroutine at a time may be in a collective of a communicator. The operation's function that
// combines elements may run while other goroutines use the job; it must not call collectives of
// this communicator.
//
// With a foreign member, the operations available are [channel.Barrier], [channel.Broadcast],
// [channel.Reduce] and [channel.Allreduce], done as the protocol does them (see the package
// comment). Elements then travel as they lie in memory.
//
// Errors: [ErrInvalid], in which case nothing has been done; [ErrActive] for a second goroutine;
// [ErrForeign]. After any other error the communicator has no more collectives: the other members
// are notified, and every later collective returns that error at every member. It is [ErrMismatch]
// (a member has called a different operation), [ErrPeerDied], [ErrPeerLeft], [ErrTimeout] or the
// error of ctx, and it names the rank. The memory of the operation must then be left alone until
// the job is closed, because messages may still be in flight. Members that wait for each other in
// different collectives, or with different roots, may never find out: give ctx a deadline.
func (c *Comm) Run(ctx context.Context, o channel.Operation) error {
	c.e.lock.Lock()
	defer c.e.lock.Unlock()
	return c.run(ctx, collop.Of(&o))
}

// run is Run. The caller holds the lock.
func (c *Comm) run(ctx context.Context, o *collop.Spec) error {
	if err := c.enter(o.Kind.String()); err != nil {
		return err
	}
	defer c.leave()
	if err := o.Check(c.me, len(c.ranks)); err != nil {
		return collError(o.Kind, -1, err)
	}
	if c.byProtocol() {
		if !protocolHas(o.Kind) {
			return collError(o.Kind, -1, ErrForeign)
		}
		return c.fail(c.runProtocol(ctx, o))
	}
	return c.fail(c.runPlan(ctx, o))
}

// enter begins a collective; leave ends it.
func (c *Comm) enter(op string) error {
	k := &c.calls
	switch {
	case c.freed, c.e.closing:
		return jobError(op, ErrClosed)
	case k.inside:
		return jobError(op, fmt.Errorf("%w: another goroutine is in a collective of the communicator", ErrActive))
	case c.toldOfFault():
		return k.fault
	}
	k.inside = true
	return nil
}

func (c *Comm) leave() { c.calls.inside = false }

// collError is an error of a collective, attributed to a member unless rank is -1.
func collError(kind coll.Kind, rank int, err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	return &Error{Op: kind.String(), Rank: rank, Tag: -1, Err: err}
}

// runPlan carries out an operation by the schedules of package coll.
func (c *Comm) runPlan(ctx context.Context, o *collop.Spec) error {
	if len(o.Dst)+len(o.Src) > keptBytes || o.Rule.Op == collop.UserOp {
		p, err := c.makePlan(o)
		if err != nil {
			return collError(o.Kind, -1, err)
		}
		err = p.carryOut(ctx)
		p.close()
		return err
	}
	p, err := c.keep(o)
	if err != nil {
		return collError(o.Kind, -1, err)
	}
	gives := o.Kind == coll.Broadcast && c.me == o.Root
	if gives {
		copy(p.dst, o.Dst)
	}
	copy(p.src, o.Src)
	if err := p.carryOut(ctx); err != nil {
		p.close()
		return err
	}
	switch { // what is not written stays as it is
	case gives, (o.Kind == coll.Reduce || o.Kind == coll.Gather) && c.me != o.Root, o.Kind == coll.Exscan && c.me == 0:
	default:
		copy(o.Dst, p.dst)
	}
	return nil
}

// plan is a schedule with its messages, to be carried out again and again.
type plan struct {
	others
	c        *Comm
	kind     coll.Kind
	run      *coll.Run
	sig      coll.Signature
	header   coll.Header // of this call
	dst, src []byte      // the plan's own memory, if it is kept
	used     uint64
	done     bool
	err      error // when it is done
}

// Bounds of what is kept.
const (
	keptPlans = 64
	keptBytes = 64 << 10 // of one operation; a longer one works in the memory of the user
)

// keep returns a plan over memory of its own, made if it has not been called lately.
func (c *Comm) keep(o *collop.Spec) (*plan, error) {
	k := &c.calls
	k.keyRoom = o.AppendKey(k.keyRoom[:0])
	k.age++
	if p := k.plans[string(k.keyRoom)]; p != nil {
		p.used = k.age
		return p, nil
	}
	if len(k.plans) >= keptPlans {
		oldest := ""
		for name, p := range k.plans {
			if oldest == "" || p.used < k.plans[oldest].used {
				oldest = name
			}
		}
		delete(k.plans, oldest)
	}
	memory := make([]byte, len(o.Dst)+len(o.Src))
	own := *o
	own.Dst, own.Src = memory[:len(o.Dst):len(o.Dst)], memory[len(o.Dst):]
	p, err := c.makePlan(&own)
	if err != nil {
		return nil, err
	}
	p.dst, p.src, p.used = own.Dst, own.Src, k.age
	if k.plans == nil {
		k.plans = make(map[string]*plan)
	}
	k.plans[string(k.keyRoom)] = p
	return p, nil
}

// makePlan plans an operation over its memory.
func (c *Comm) makePlan(o *collop.Spec) (*plan, error) {
	shape := o.Shape(c.me, len(c.ranks))
	settings := &c.job.roster.settings
	a := settings.Choose(&shape)
	shape.Segment = settings.Segment
	schedule, err := coll.Build(a, &shape)
	if err != nil {
		return nil, err
	}
	p := &plan{c: c, kind: o.Kind, sig: o.Sign(len(c.ranks), a)}
	scratch := make([]byte, coll.ScratchSize(schedule))
	p.run, err = coll.NewRun(courier{p}, schedule, o.Src, o.Dst, scratch, c.combine(o.Rule))
	return p, err
}

// combineHeld is the most bytes that are combined without releasing the lock.
const combineHeld = 4 << 10

// combine returns the rule's combining function for callers that hold the lock. It releases the
// lock for long operations and for functions of the program, so that others need not wait.
func (c *Comm) combine(r *collop.Rule) func(dst, a, b []byte) {
	if r.Combine == nil {
		return nil
	}
	return func(dst, a, b []byte) {
		if len(dst) > combineHeld || r.Op == collop.UserOp {
			c.e.lock.Unlock()
			defer c.e.lock.Lock()
		}
		r.Combine(dst, a, b)
	}
}

// carryOut runs the plan once.
func (p *plan) carryOut(ctx context.Context) error {
	c := p.c
	c.calls.begun++
	p.header = coll.Header{Sequence: c.calls.begun, Signature: p.sig}
	p.done, p.err = false, nil
	if err := p.run.Start(p.header); err != nil {
		p.done, p.err = true, err
	} else if err := await(ctx, c.e, p); err != nil {
		return collError(p.kind, -1, err)
	}
	switch {
	case !p.done:
		return c.failed()
	case p.err != nil:
		return p.failure(p.err)
	}
	return nil
}

// close releases the messages of a plan.
func (p *plan) close() { _ = p.run.Close() } // parcels have no errors

// over advances the plan.
func (p *plan) over() bool {
	if !p.done {
		p.done, p.err = p.run.Step()
	}
	return p.done || p.c.toldOfFault()
}

// failure translates an error of the run into terms of the user.
func (p *plan) failure(err error) error {
	c := p.c
	if m := (*coll.MismatchError)(nil); errors.As(err, &m) {
		if m.Failed && c.toldOfFault() { // the failed member has sent its reason before
			return c.failed()
		}
		if m.Failed {
			return collError(p.kind, m.From, errMember)
		}
		return collError(p.kind, m.From, fmt.Errorf("%w: %s", ErrMismatch, m.Difference(collop.Names, fmt.Sprintf("rank %d", p.c.me), fmt.Sprintf("rank %d", m.From))))
	}
	if e := (*coll.PeerError)(nil); errors.As(err, &e) {
		return collError(p.kind, e.Peer, e.Err)
	}
	return collError(p.kind, -1, err)
}

// courier declares the messages of a plan.
type courier struct{ p *plan }

// DeclareSend declares a message to a member.
func (c courier) DeclareSend(to int, parts ...[]byte) (coll.Message, error) {
	return newParcel(c.p, sending, to, parts), nil
}

// DeclareReceive declares a message from a member.
func (c courier) DeclareReceive(from int, parts ...[]byte) (coll.Message, error) {
	return newParcel(c.p, receiving, from, parts), nil
}

// parcel is a message of a plan. Those between two members have one tag, so that they
// meet in the order in which they are started.
type parcel struct {
	p     *plan
	kind  requestKind
	peer  int
	parts [][]byte // the first is the header
	total uint64
	r     *request // while it is active
}

func newParcel(p *plan, kind requestKind, peer int, parts [][]byte) *parcel {
	m := &parcel{p: p, kind: kind, peer: peer, parts: parts}
	for _, b := range parts {
		m.total += uint64(len(b))
	}
	return m
}

// Tags in the collective context of communicators whose members are all ours.
const (
	tagPlan  = 1
	tagFault = 2
)

// Start starts the message. The caller holds the lock.
func (m *parcel) Start() (err error) {
	if c := m.p.c; m.kind == sending {
		m.r, err = c.startSend(c.coll, nil, m.parts, m.peer, tagPlan, false)
	} else {
		m.r, err = c.startReceive(c.coll, nil, m.parts, m.peer, tagPlan)
	}
	return err
}

// Test says whether the message is over. The caller holds the lock.
func (m *parcel) Test() (bool, error) {
	if m.r.state != done {
		return false, nil
	}
	c, err, n := m.p.c, m.r.err, m.r.length
	c.e.release(m.r)
	m.r = nil
	if m.kind == receiving && n != m.total && (err == nil || errors.Is(err, ErrTruncated)) {
		if err = m.odd(n); err == nil {
			return true, nil
		}
	}
	if err != nil { // notify all members before the run fails those that receive from this one
		err = collError(m.p.kind, m.peer, err)
		c.fail(err)
	}
	return true, err
}

// odd is the error for a message of unexpected length; nil if its header tells more.
func (m *parcel) odd(n uint64) error {
	if n >= coll.HeaderSize {
		if got, err := coll.ParseHeader(m.parts[0]); err == nil && got != m.p.header {
			return nil
		}
	}
	return fmt.Errorf("%w: message of %d bytes instead of %d", ErrMismatch, n, m.total)
}

// Close releases a message that is still active: a receive that has matched nothing at once, any
// other when it completes. The caller holds the lock.
func (m *parcel) Close() error {
	if m.r != nil {
		m.p.c.abandon(m.r)
		m.r = nil
	}
	return nil
}

// abandon releases a request that is not waited for any more.
func (c *Comm) abandon(r *request) {
	switch {
	case r.state == done:
		c.e.release(r)
	case r.state == queued && r.kind == receiving:
		r.list.remove(r)
		c.e.release(r)
	default:
		r.detached = true
	}
}
