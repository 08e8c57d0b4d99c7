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
	n := h.node
	w := n.policy.Begin()
	defer w.End()
	for {
		done, err := h.test()
		if done {
			return err
		}
		n.attend(h, false, &lacked)
		if w.Spinning() {
			continue
		}
		step := w.Check()
		if w.Late() {
			n.attend(h, true, &lacked)
		}
		n.drive()
		if err := n.waitOver(ctx); err != nil {
			return h.errorf("wait", err)
		}
		switch step {
		case wait.GiveWay:
			w.GiveWay()
		case wait.Sleep:
			if done, err := h.sleep(ctx, &w); done {
				return err
			}
		}
	}
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
		return h.shape.length > q.cross.eager
	}
	return h.shape.length > eagerMax
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
func (p *peer) awaitsLayout(handle, generation uint32) {
	p.layoutMu.Lock()
	defer p.layoutMu.Unlock()
	if l := p.layouts[handle]; l == nil || l.generation != generation {
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

// sleep tests once more and sleeps until a test may find more.
func (h *Handle) sleep(ctx context.Context, w *wait.Waiter) (done bool, err error) {
	h.node.nap(ctx, w, (*sleepyHandle)(h), 0, func() bool {
		done, err = h.test()
		return done || h.node.closing.Load()
	})
	return done, err
}

// awaited is what a goroutine sleeps for.
type awaited interface {
	wait.Awaited
	// sleepsIn says in whose sleep it is waited for.
	sleepsIn(t *wait.Sleeper)
}

type (
	sleepyHandle     Handle
	sleepyCollective Collective
)

func (s *sleepyHandle) Ready() bool              { return (*Handle)(s).ready() }
func (s *sleepyHandle) sleepsIn(t *wait.Sleeper) { (*Handle)(s).sleepsIn(t) }

// Any bell may be for a collective.
func (*sleepyCollective) Ready() bool                { return true }
func (s *sleepyCollective) sleepsIn(t *wait.Sleeper) { (*Collective)(s).sleepsIn(t) }

// nap sleeps, unless over is true once others can see the sleeper, until they have done something for
// what is awaited, ctx ends, or bound is over, if there is one. It does not always look whether over is
// true then.
func (n *Node) nap(ctx context.Context, w *wait.Waiter, a awaited, bound time.Duration, over func() bool) {
	mute := n.mute.Load()
	t := n.sleepers.Enter(a)
	defer n.sleepers.Leave(t)
	a.sleepsIn(t)
	defer a.sleepsIn(nil)
	n.kickEngines()
	n.drive()
	if over() {
		return
	}
	n.sleeps.Add(1)
	polled := n.mute.Load() != mute
	if polled {
		bound = pollEvery
	}
	switch {
	case n.sleepers.Sleep(ctx, t, bound):
		w.Woken()
	case !polled:
		n.sleepers.Check(t, over)
	}
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

// drive makes progress on what peers may be waiting for.
func (n *Node) drive() {
	for _, s := range *n.receives.Load() {
		s.drive()
	}
	for _, s := range *n.pipes.Load() {
		s.drive()
	}
}
