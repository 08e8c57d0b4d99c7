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

// A waiter spins, then yields the CPU to other processes, then sleeps until the bell rings.
const (
	spinBudget  = 20000 // some hundred microseconds
	yieldBudget = 50
	sleepBound  = 5 * time.Millisecond
	driveEvery  = 64
	attendAfter = 4096 // rounds, before a waiter attends to the messages of others
)

// await tests until the handle is complete.
func (h *Handle) await(ctx context.Context) error {
	n := h.node
	patient := false // has been spinning for long
	lacked := n.lacking.times.Load()
	defer func() {
		if patient {
			waiters.Add(-1)
		}
	}()
	for i := 0; ; i++ {
		done, err := h.test()
		if done {
			return err
		}
		if i%driveEvery == driveEvery-1 || i >= n.spins {
			n.drive()
			err := ctx.Err()
			switch {
			case n.closing.Load():
				return h.errorf("wait", ErrClosed)
			case errors.Is(err, context.DeadlineExceeded):
				return h.errorf("wait", fmt.Errorf("%w: %w", ErrTimeout, err))
			case err != nil:
				return h.errorf("wait", err)
			}
		}
		if i == n.spins {
			patient = true
			waiters.Add(1)
		}
		n.attend(i, h, &lacked)
		switch {
		case i < n.spins:
			// Polling less often also helps the owner of the line, which bounces between
			// the caches if it is read while it is written: 5 % of BenchmarkPingPong/8.
			wait.Pause(1)
		case i < n.spins+yieldBudget:
			n.yield()
		default:
			if done, err := h.sleep(ctx); done {
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

// attend, in the i-th round of a waiter, lets the goroutines run that write and read control
// messages, if a message depends on one: where there is one CPU for Go, a waiter that polls keeps it
// from them for milliseconds, and as long as a goroutine is runnable the scheduler does not look at the
// network. It does so at once if the waiter's own message, h if that is one, needs that, and for
// others, which may depend on a peer that has stopped, in late rounds that are powers of two.
// lacked is how often a layout was missing when the waiter looked last.
func (n *Node) attend(i int, h *Handle, lacked *uint32) {
	now, first := n.lacking.times.Load() != *lacked, i == 0 && h != nil && h.direct()
	late := i&(i-1) == 0 && (i >= attendAfter || i >= n.spins)
	if !now && !first && !late {
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
		if now || late {
			n.listen()
		}
		return
	}
	if p := h.peer(); p.lacking.on.Load() || late {
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

// sleep tests once more and sleeps until the bell rings, for a bounded time.
func (h *Handle) sleep(ctx context.Context) (done bool, err error) {
	h.node.nap(ctx, func() bool {
		done, err = h.test()
		return done || h.node.closing.Load()
	})
	return done, err
}

// nap sleeps until the bell rings, for a bounded time, unless over is true once the peers can see
// the sleeper.
func (n *Node) nap(ctx context.Context, over func() bool) {
	bound := sleepBound
	if d, ok := ctx.Deadline(); ok {
		bound = max(min(bound, time.Until(d)), time.Microsecond)
	}
	v := atomic.LoadUint32(&n.bell.word)
	atomic.AddUint32(&n.bell.sleepers, 1)
	defer atomic.AddUint32(&n.bell.sleepers, ^uint32(0))
	barrier()
	n.kickEngines()
	n.drive()
	if over() {
		return
	}
	n.sleeps.Add(1)
	sleepOn(&n.bell.word, v, bound)
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

// waiters counts the waiting goroutines of this process: several must yield to each other.
var waiters atomic.Int32

func (n *Node) yield() {
	n.yields.Add(1)
	if waiters.Load() > 1 {
		runtime.Gosched()
	}
	wait.Yield()
}
