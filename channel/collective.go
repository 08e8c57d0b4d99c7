package channel

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/shared"
	"github.com/sluice-hpc/sluice/internal/collop"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Collective is an operation of a group that is declared once and started many times
// (like MPI_Allreduce_init). Only one goroutine at a time may use it: the one that runs
// the group's other collectives.
type Collective struct {
	group     *Group
	op        collop.Spec
	sig       coll.Signature // of op, whatever the algorithm
	stages    []stage
	at        int  // stage
	begun     bool // the stage has been started
	active    bool
	tests     uint   // by the user
	number    uint64 // of the start, in the group
	announced int64  // ns: when the call was last announced, or the wait was first seen to be long
	again     int64  // ns until it is announced again
	err       error  // of this start
	outcome   error  // of a wait that is over
	host      [3]shared.Op
	single    [1]stage
	memory    []*Memory
	handles   []*Handle // messages between hosts
	counted   [2]counted
}

// stage is a part of a collective: within the host, between hosts, or a copy here.
type stage struct {
	op  *shared.Op
	c   shared.Call
	run *coll.Run
	sig coll.Signature

	members []int // of the group, which run connects

	local func() // a step at this member
}

// Declare declares an operation so that it can be started many times: memory is
// registered, and messages between hosts are declared, once. All members declare the
// same operations in the same order; the call does not communicate with them. The
// caller owns the Collective and must close it. The memory of the operation stays the
// caller's and must not be touched between Start and completion.
//
// Errors: [ErrInvalid] for an invalid operation, [ErrActive], [ErrClosed], and those of
// [Node.DeclareSend].
func (g *Group) Declare(o Operation) (*Collective, error) {
	spec := collop.Of(&o)
	if err := g.enter("declare ", spec.Kind); err != nil {
		return nil, err
	}
	defer g.exit()
	c := &Collective{group: g}
	if err := c.plan(*spec); err != nil {
		return nil, groupError("declare "+spec.Kind.String(), err)
	}
	g.mu.Lock()
	g.members[c] = struct{}{}
	g.mu.Unlock()
	return c, nil
}

// Start begins the operation without waiting for other members. Several collectives of
// a group may be in progress at once; all members start them in the same order. Test
// and Wait of any collective of the group make progress on all of them.
//
// Errors: [ErrActive], [ErrClosed], or the error with which the group has failed.
func (c *Collective) Start() error {
	g := c.group
	if err := g.enter("start ", c.op.Kind); err != nil {
		return err
	}
	err := c.start()
	g.exit()
	if err != nil {
		return groupError("start "+c.op.Kind.String(), err)
	}
	return nil
}

func (c *Collective) start() error {
	g := c.group
	switch {
	case c.active:
		return errActive
	case c.stages == nil:
		return ErrClosed
	}
	if f := g.fault.Load(); f != nil {
		return *f
	}
	c.active, c.begun, c.at, c.err = true, false, 0, nil
	g.started++
	c.number = g.started
	c.announced, c.again = 0, int64(announceAfter)
	g.record(c)
	if len(g.active) == 0 && len(c.stages) == 1 && c.stages[0].op != nil {
		over, err := g.team.Begin(c.stages[0].op, &c.stages[0].c)
		if over {
			c.active = false
			return nil
		}
		c.begun = true
		g.active = append(g.active, c)
		if err != nil {
			g.failNow(g.teamError(err)) // the operation returns it
		}
		return nil
	}
	g.active = append(g.active, c)
	for i := range c.stages {
		if s := &c.stages[i]; s.op != nil {
			g.team.Enqueue(s.op, &s.c)
		}
	}
	g.advance() // the operation returns an error
	return nil
}

// Test reports whether the operation is complete, and makes progress if it is not. When
// it returns true the collective is idle again, and the error is that of this start. An
// idle collective is always complete. After an error the content of dst is undefined.
//
// Errors: [ErrPeerDied], [ErrPeerLeft], [ErrUnreachable], [ErrMismatch] (a member
// called a different collective), [ErrAborted], [ErrClosed], or the error with which
// another member failed. The error names the rank.
func (c *Collective) Test() (bool, error) {
	g := c.group
	if err := g.enter("test ", c.op.Kind); err != nil {
		return true, err
	}
	done, err := c.test()
	if c.tests++; !done && c.tests%looks == 0 { // what Wait does: the user may only test
		g.node.drive()
		g.look()
		c.announce()
		done, err = c.test()
	}
	g.exit()
	if !done {
		g.node.policy.Tested()
	}
	return done, err
}

func (c *Collective) test() (bool, error) {
	if c.active {
		c.group.advance()
	}
	if c.active {
		return false, nil
	}
	err := c.err
	c.err = nil
	return true, err
}

// Wait blocks until the operation is complete and returns the error that Test would. It
// returns at once if the collective is idle.
func (c *Collective) Wait() error { return c.WaitContext(context.Background()) }

// WaitContext is Wait, bounded by ctx. If ctx ends first, WaitContext returns [ErrTimeout] for a
// deadline, else the error of ctx, and the operation continues.
func (c *Collective) WaitContext(ctx context.Context) error {
	g := c.group
	if err := g.enter("wait ", c.op.Kind); err != nil {
		return err
	}
	err := c.await(ctx)
	g.exit()
	return err
}

// Run performs an operation and returns when it is complete at this rank. Errors are
// those of [Group.Declare] and [Collective.Test]. If ctx ends first, the operation
// fails at all members, here with [ErrTimeout] or the error of ctx.
//
// In a group on one host Run allocates and declares nothing; it remembers the last call, and the last eight
// over up to 64 KiB, whose memory is not collected before it has forgotten them. Between hosts, the group
// keeps up to 64 recent operations declared over buffers of its own (at most 32 MiB),
// so Run costs one copy more than a declared operation.
func (g *Group) Run(ctx context.Context, o Operation) error {
	spec := collop.Of(&o)
	if err := g.enter("", spec.Kind); err != nil {
		return err
	}
	err := g.runCall(ctx, spec)
	g.exit()
	return err
}

func (g *Group) runCall(ctx context.Context, o *collop.Spec) error {
	c, planned := g.recall(o)
	switch {
	case planned:
	case g.alone(o):
		c.op, c.stages = *o, nil
		if err := c.planHost(); err != nil {
			return groupError(o.Kind.String(), err)
		}
	default:
		return g.runKept(ctx, o)
	}
	return c.carryOut(ctx)
}

// recalled are the last calls of Run of a group on one host, so that those that a program makes in turn are
// planned once.
type recalled struct {
	calls [1 + 8]Collective // the first: what is not worth keeping, or keeps too much memory
	last  int               // the one that was called last
	next  int               // the one to be replaced next, but for the first
}

// recalledMost bounds the memory of a program that a recalled call keeps from the garbage collector, in bytes.
const recalledMost = 64 << 10

// recall returns the last call that was the same, or where to plan this one.
func (g *Group) recall(o *collop.Spec) (c *Collective, planned bool) {
	r := &g.recalled
	if c = &r.calls[r.last]; c.stages != nil && c.op.Same(o) {
		return c, true
	}
	if r.last = 0; len(o.Dst)+len(o.Src) > recalledMost || !o.Comparable() {
		c = &r.calls[0]
		return c, c.stages != nil && c.op.Same(o)
	}
	for i := 1; i < len(r.calls); i++ {
		if c = &r.calls[i]; c.stages != nil && c.op.Same(o) {
			r.last = i
			return c, true
		}
	}
	r.next = r.next%(len(r.calls)-1) + 1
	r.last = r.next
	return &r.calls[r.last], false
}

// carryOut starts a collective and waits for it.
func (c *Collective) carryOut(ctx context.Context) error {
	if err := c.start(); err != nil {
		return groupError(c.op.Kind.String(), err)
	}
	if !c.active {
		err := c.err
		c.err = nil
		return err
	}
	err := c.await(ctx)
	if c.active { // it cannot be waited for again
		c.group.failNow(fmt.Errorf("rank %d gave up waiting: %w", c.group.node.rank, err))
		ctx, cancel := c.group.node.patience()
		defer cancel()
		c.group.settle(ctx)
		c.err = nil
	}
	return err
}

// await makes progress until the operation is complete; see Handle.await.
func (c *Collective) await(ctx context.Context) error {
	g := c.group
	n := g.node
	lacked := n.lacking.times.Load()
	for range g.policy.Glances() {
		if done, err := c.test(); done {
			return err
		}
		n.attend(nil, false, &lacked)
		wait.Pause(1)
	}
	return c.awaitLong(ctx, lacked)
}

func (c *Collective) awaitLong(ctx context.Context, lacked uint32) error {
	g := c.group
	g.spinTeam()
	err := g.node.awaitLong(ctx, g.policy, (*awaitedCollective)(c), lacked)
	if err == nil {
		err, c.outcome = c.outcome, nil
	}
	return err
}

// awaitedCollective is a collective whose goroutine waits for it.
type awaitedCollective Collective

func (*awaitedCollective) needs() *Handle             { return nil }
func (a *awaitedCollective) sleepsIn(t *wait.Sleeper) { (*Collective)(a).sleepsIn(t) }

// Ready says that any ring may be for a collective.
func (*awaitedCollective) Ready() bool { return true }

func (a *awaitedCollective) rung() bool { return len(a.handles) == 0 }

func (a *awaitedCollective) look() (done bool) {
	done, a.outcome = (*Collective)(a).test()
	return done
}

func (a *awaitedCollective) check(ctx context.Context, late bool) (again time.Duration, _ error) {
	g := a.group
	if !a.active {
		return 0, nil
	}
	if late {
		again = (*Collective)(a).announce()
	}
	g.look()
	g.advance() // what came last counts
	err := g.node.waitOver(ctx)
	switch {
	case !a.active: // it is over, or has just failed
	case g.closed.Load() || errors.Is(err, ErrClosed):
		g.failNow(ErrClosed)
	case err != nil:
		return 0, groupError(a.op.Kind.String(), err)
	}
	return again, nil
}

// sleepsIn is that of the messages between hosts of all collectives in progress.
func (c *Collective) sleepsIn(t *wait.Sleeper) {
	g := c.group
	if t != nil {
		g.slept = append(g.slept[:0], g.active...)
	}
	for _, c := range g.slept {
		for _, h := range c.handles {
			h.sleepsIn(t)
		}
	}
	if t == nil {
		clear(g.slept)
		g.slept = g.slept[:0]
	}
}

// advance makes progress on all collectives of the group, in the order of their starts.
func (g *Group) advance() {
	if f := g.fault.Load(); f != nil {
		g.endAll(*f)
		return
	}
	if err := g.team.Advance(); err != nil {
		g.failNow(g.teamError(err))
		return
	}
	turn := true // messages between hosts belong to one collective at a time
	for i := 0; i < len(g.active); {
		c := g.active[i]
		over, err := c.step(turn)
		if err != nil {
			g.failNow(err)
			return
		}
		if over {
			c.over()
			g.active = append(g.active[:i], g.active[i+1:]...)
			continue
		}
		turn = turn && !c.travels()
		i++
	}
}

// over marks the start as complete.
func (c *Collective) over() {
	c.active = false
	if c.announced != 0 {
		c.group.waits.Store(nil)
	}
}

// step advances through the stages as they complete.
func (c *Collective) step(turn bool) (over bool, err error) {
	for c.at < len(c.stages) {
		s := &c.stages[c.at]
		switch {
		case s.op != nil:
			if !c.begun {
				s.op.Release()
				c.begun = true
				if err := c.group.team.Advance(); err != nil {
					return false, c.group.teamError(err)
				}
			}
			if !s.op.Over() {
				return false, nil
			}
		case s.local != nil:
			s.local()
		default:
			if !turn {
				return false, nil
			}
			if !c.begun {
				c.begun = true
				if err := s.run.Start(coll.Header{Sequence: uint32(c.number), Signature: s.sig}); err != nil {
					return false, c.runError(s, err)
				}
			}
			if done, err := s.run.Step(); err != nil {
				return false, c.runError(s, err)
			} else if !done {
				return false, nil
			}
		}
		c.at++
		c.begun = false
	}
	return true, nil
}

// travels says whether messages between hosts are still to come.
func (c *Collective) travels() bool {
	for i := c.at; i < len(c.stages); i++ {
		if c.stages[i].run != nil {
			return true
		}
	}
	return false
}

// Close ends an idle collective. Closing it again does nothing.
func (c *Collective) Close() error {
	g := c.group
	op := "close " + c.op.Kind.String()
	if !g.tryEnter() {
		return groupError(op, errShared)
	}
	defer g.exit()
	if c.active {
		return groupError(op, errActive)
	}
	if g.fault.Load() != nil {
		return nil // messages may be in flight: Close of the group ends them
	}
	g.mu.Lock()
	delete(g.members, c)
	g.mu.Unlock()
	return c.free()
}

// activeHandles yields the messages that are not complete.
func (c *Collective) activeHandles() iter.Seq[*Handle] {
	return func(yield func(*Handle) bool) {
		for _, h := range c.handles {
			if p := h.phase.Load(); p != phaseIdle && p != phaseClosed && !yield(h) {
				return
			}
		}
	}
}

// free releases what the collective has declared. Nothing of it is in flight.
func (c *Collective) free() error {
	var errs []error
	for i := range c.stages {
		if r := c.stages[i].run; r != nil {
			errs = append(errs, r.Close())
		}
	}
	for _, m := range c.memory {
		errs = append(errs, m.Close())
	}
	c.stages, c.memory, c.handles = nil, nil, nil
	return errors.Join(errs...)
}
