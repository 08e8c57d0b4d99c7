package channel

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// Looks between two checks of a wait, of messages and of collectives.
const (
	looks           = 64
	collectiveLooks = 16 // each looks at a line lineLooks times
)

// await tests until the handle is complete.
func (h *Handle) await(ctx context.Context) error {
	n := h.node
	lacked := n.lacking.times.Load()
	for i := range n.policy.Glances() {
		done, err := h.test()
		if done {
			return err
		}
		n.attend(h, i == 0 && h.direct(), &lacked)
		wait.Pause(1) // looking less often also helps the owner of the line to write it
	}
	return h.awaitLong(ctx, lacked)
}

func (h *Handle) awaitLong(ctx context.Context, lacked uint32) error {
	err := h.node.awaitLong(ctx, h.node.policy, (*awaitedHandle)(h), lacked)
	if err == nil {
		err, h.outcome = h.outcome, nil
	}
	return err
}

// awaited is what a goroutine waits for.
type awaited interface {
	wait.Awaited
	// look makes progress, and reports whether the wait is over.
	look() bool
	// needs is the message whose wait this is; nil: there may be several.
	needs() *Handle
	// check says why the wait is to end before what it is for has come. It is called now and then,
	// and says also after what time it is to be called again at the latest, if not 0.
	check(ctx context.Context, late bool) (again time.Duration, err error)
	// sleepsIn sets the sleeper that is woken by what ends the wait; nil: none.
	sleepsIn(t *wait.Sleeper)
	// rung says whether a ring precedes each end of the wait that a look may find from now on.
	rung() bool
}

// awaitLong looks until the wait is over. An error is that of check.
func (n *Node) awaitLong(ctx context.Context, p *wait.Policy, a awaited, lacked uint32) error {
	w := p.Begin()
	defer w.End()
	for !a.look() {
		n.attend(a.needs(), false, &lacked)
		if w.Spinning() {
			continue
		}
		step := w.Check()
		if w.Late() {
			n.attend(a.needs(), true, &lacked)
		}
		n.drive()
		again, err := a.check(ctx, step == wait.Sleep || w.Late())
		if err != nil {
			return err
		}
		switch step {
		case wait.GiveWay:
			w.GiveWay()
		case wait.Sleep:
			if over, err := n.nap(ctx, &w, a, again); over || err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitedHandle is a handle whose goroutine waits for it alone.
type awaitedHandle Handle

func (a *awaitedHandle) needs() *Handle           { return (*Handle)(a) }
func (a *awaitedHandle) Ready() bool              { return (*Handle)(a).ready() }
func (a *awaitedHandle) sleepsIn(t *wait.Sleeper) { (*Handle)(a).sleepsIn(t) }

func (a *awaitedHandle) rung() bool { return (*Handle)(a).rung() && !(*Handle)(a).ended() }

func (a *awaitedHandle) look() (done bool) {
	done, a.outcome = (*Handle)(a).test()
	return done
}

func (a *awaitedHandle) check(ctx context.Context, _ bool) (time.Duration, error) {
	if err := a.node.waitOver(ctx); err != nil {
		return 0, (*Handle)(a).errorf("wait", err)
	}
	return 0, nil
}

// due says for how many peers something is to be done by a goroutine.
type due struct {
	peers atomic.Int32
	times atomic.Uint32 // something more became due
}

// duty is what one peer adds to it.
type duty struct{ on atomic.Bool }

func (d *due) set(of *duty, on bool) {
	if of.on.Load() == on || of.on.Swap(on) == on {
		return
	}
	if on {
		d.peers.Add(1)
		d.times.Add(1)
	} else {
		d.peers.Add(-1)
	}
}

// awaits adds what the peer has due, unless it is gone.
func (p *peer) awaits(d *due, of *duty) {
	d.set(of, true)
	if p.state.Load() != peerUp {
		d.set(of, false)
	}
}

// attend lets the goroutines run that write and read control messages, if a message depends on one:
// where there is one CPU for Go, a waiter that polls keeps it from them for milliseconds, and as long as
// a goroutine is runnable the scheduler does not look at the network. It does so at once if a layout is
// found missing, lacked being how often one was when the waiter looked last, and otherwise if it is
// due: before the first pause of a message that needs that, which h is if it is one, and now and then
// in a long wait, for others, which may depend on a peer that has stopped.
func (n *Node) attend(h *Handle, due bool, lacked *uint32) {
	now := n.lacking.times.Load() != *lacked
	if !now && !due {
		return
	}
	for range 3 { // at times the scheduler takes this goroutine first
		if n.unwritten.peers.Load() == 0 {
			break
		}
		runtime.Gosched()
	}
	*lacked = n.lacking.times.Load()
	if h == nil || h.kind == kindMultiple {
		n.listen()
		return
	}
	if p := h.peer(); p.lacking.on.Load() || due {
		if !n.listen() {
			p.recheck()
		}
	}
}

// direct says whether the message goes straight from layout to layout.
func (h *Handle) direct() bool {
	if h.kind == kindMultiple {
		return false
	}
	if q := h.queued(); q != nil {
		return h.shape.Len() > q.cross.eager
	}
	return h.shape.Len() > eagerMax
}

// listen waits until a control message has been read if a layout is missing, and says whether one was:
// it does not wait longer than a millisecond.
func (n *Node) listen() bool {
	select {
	case <-n.heard: // perhaps long ago
	default:
	}
	if n.lacking.peers.Load() == 0 {
		return true
	}
	t := time.NewTimer(time.Millisecond)
	defer t.Stop()
	select {
	case <-n.heard:
		return true
	case <-t.C:
		return false
	}
}

// awaitsLayout notes that a message waits for a layout of the peer, unless that has arrived.
func (p *peer) awaitsLayout(at where) {
	if at.addr != 0 {
		return
	}
	p.layoutMu.Lock()
	defer p.layoutMu.Unlock()
	if l := p.layouts[at.handle]; l == nil || l.version != at.version {
		p.awaits(&p.node.lacking, &p.lacking)
	}
}

// recheck finds out whether a message still waits for a layout of the peer: it may have ended
// without. Over mapped memory the message itself says so again.
func (p *peer) recheck() {
	p.node.lacking.set(&p.lacking, false)
	p.mu.Lock()
	q := p.queue
	p.mu.Unlock()
	if q != nil {
		q.lock.Lock()
		q.retryGates()
		q.lock.Unlock()
	}
}

// nap sleeps until others have done something for what is awaited, ctx ends, or bound is over, if there
// is one. It looks once more when others can see the sleeper, and reports whether the wait is over.
func (n *Node) nap(ctx context.Context, w *wait.Waiter, a awaited, bound time.Duration) (over bool, _ error) {
	t := n.sleepers.Enter(a)
	defer n.sleepers.Leave(t)
	a.sleepsIn(t)
	defer a.sleepsIn(nil)
	n.kickEngines()
	if n.driveAsleep() > 0 {
		n.bell.Ring() // whatever sleeps in the kernel is to poll
	}
	mute := n.mute.Load()
	_, err := a.check(ctx, false) // what it says may just have come to be
	if a.look() {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	n.sleeps.Add(1)
	polled := n.mute.Load() != mute
	if polled {
		bound = pollEvery
	}
	switch {
	case n.sleepers.Sleep(ctx, t, bound):
		w.Woken()
	case !polled && a.rung():
		return n.sleepers.Check(t, a.look), nil
	}
	return false, nil
}

// driveAsleep drives, and returns how long a sleeper may sleep afterwards; 0: until it is woken.
func (n *Node) driveAsleep() time.Duration {
	mute := n.mute.Load()
	if n.driveAll(); n.mute.Load() != mute {
		return pollEvery
	}
	return 0
}

// pollEvery is how often a sleeper looks for what rings no bell: memory of a peer that is being mapped.
const pollEvery = time.Millisecond

// waitOver returns why a wait is to end before what it waits for has come, or nil.
func (n *Node) waitOver(ctx context.Context) error {
	err := ctx.Err()
	switch {
	case n.closing.Load():
		return ErrClosed
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return err
}

// fewStreams is how many streams a waiter drives at a check: they take less than the looks between two.
const fewStreams = 32

// drive makes progress on what peers may be waiting for: on a few streams, in turn, so that a check takes
// no longer where there are many.
func (n *Node) drive() {
	receives, pipes := *n.receives.Load(), *n.pipes.Load()
	all := len(receives) + len(pipes)
	if all <= fewStreams {
		n.driveAll()
		return
	}
	i := int(n.driven.Add(fewStreams) % uint32(all))
	for range fewStreams {
		if i < len(receives) {
			receives[i].drive()
		} else {
			pipes[i-len(receives)].drive()
		}
		if i++; i == all {
			i = 0
		}
	}
}

var start = time.Now()

// sinceStart is a clock that is never set back.
func sinceStart() time.Duration { return time.Since(start) }

func (n *Node) driveAll() {
	for _, s := range *n.receives.Load() {
		s.drive()
	}
	for _, s := range *n.pipes.Load() {
		s.drive()
	}
}
