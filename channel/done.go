package channel

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// Done returns a channel that is closed when the message is complete, for a select beside timers and other
// channels. It takes nothing from the completion: Test returns true afterwards, or Wait returns at once,
// with the error of the start. If the handle is complete, idle or closed, the channel is closed already.
// Each start has a channel of its own; calls of Done between Start and the Test or Wait that reports the
// completion return the same one. The end of the peer closes it, as does closing the node, and Test and
// Wait return the error then.
//
// Done is a call of the goroutine that uses the handle; any goroutine may receive from the channel. While
// there are such channels, a goroutine of the node, the same for all, makes the progress that a wait would:
// it copies messages, too, and spins and sleeps as [WithWait] says. A program that can wait in Wait or
// [WaitAny] is faster that way.
func (h *Handle) Done() <-chan struct{} {
	if !h.enter() {
		return closedChannel
	}
	defer h.exit()
	complete := !h.incomplete() // once: it may be complete the next moment
	switch own := h.notice != nil && h.notice.h == h; {
	case own && complete:
		h.notice.announce()
	case complete:
		return closedChannel
	case !own:
		w := &notice{h: h, done: make(chan struct{})}
		h.watch(w)
		h.node.herald.add(w)
		h.sleepsIn(nil) // wakes it
	}
	return h.notice.done
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// notice is a start whose completion the herald announces, unless a test has.
type notice struct {
	h    *Handle
	done chan struct{}
	once sync.Once
	over atomic.Bool // done is closed
}

// announce closes the channel, which is closed when any call returns.
func (w *notice) announce() {
	w.once.Do(func() {
		close(w.done)
		w.over.Store(true)
	})
}

// watch gives the start, and those of members, a notice.
func (h *Handle) watch(w *notice) {
	h.notice = w
	for _, m := range h.members {
		if m.notice == nil && m.Active() {
			m.watch(w)
		}
	}
}

// unwatch is for a start that a test has found complete.
func (h *Handle) unwatch() {
	if w := h.notice; w.h == h {
		w.announce()
	} else {
		defer h.node.herald.wake() // that may have been the last member
	}
	h.notice = nil
	h.sleeper.Store(nil)
}

// heralded is the sleeper of handles that the herald waits for and no other goroutine sleeps for.
var heralded = new(wait.Sleeper)

// herald announces completions. Its goroutine waits for the handles as several does, but leaves them
// complete; it begins with the first notice and ends when the node is closed.
type herald struct {
	node    *Node
	policy  *wait.Policy
	more    chan struct{}                // capacity 1: there may be something to do
	sleeper atomic.Pointer[wait.Sleeper] // of the goroutine, while it sleeps or is about to
	grown   atomic.Bool                  // added is not empty

	mu      sync.Mutex
	running bool
	ended   bool
	added   []*notice

	watched []*notice // of the goroutine; it changes them only while it does not sleep
}

// setHerald sets the herald of the node.
func (n *Node) setHerald() {
	n.herald = &herald{node: n, policy: wait.NewPolicy(n.opt.waits, looks, n.cpus), more: make(chan struct{}, 1)}
}

// add makes the herald announce what a notice is for.
func (e *herald) add(w *notice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		w.announce()
		return
	}
	e.added = append(e.added, w)
	e.grown.Store(true)
	if !e.running && e.node.call() == nil {
		e.running = true
		go e.run()
	}
}

// wake makes the goroutine look.
func (e *herald) wake() {
	select {
	case e.more <- struct{}{}:
	default:
	}
	if t := e.sleeper.Load(); t != nil {
		e.node.sleepers.Wake(t)
	}
}

// end announces what is left. The goroutine has ended, and calls of handles fail.
func (e *herald) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	for _, w := range slices.Concat(e.watched, e.added) {
		w.announce()
	}
}

func (e *herald) run() {
	defer e.node.calls.Done()
	for {
		e.mu.Lock()
		e.watched = slices.DeleteFunc(append(e.watched, e.added...), func(w *notice) bool { return w.over.Load() })
		clear(e.added)
		e.added = e.added[:0]
		e.grown.Store(false)
		e.mu.Unlock()
		if len(e.watched) == 0 {
			select {
			case <-e.node.open.Done():
				return
			case <-e.more:
			}
		} else if e.node.awaitLong(e.node.open, e.policy, e, e.node.lacking.times.Load()) != nil {
			return
		}
	}
}

// look announces what is complete, and reports whether the list is to change.
func (e *herald) look() bool {
	over := e.grown.Load()
	for _, w := range e.watched {
		if !w.over.Load() && w.h.further() {
			w.announce()
		}
		over = over || w.over.Load()
	}
	return over
}

// Ready reports whether a look may find progress.
func (e *herald) Ready() bool {
	return e.grown.Load() || slices.ContainsFunc(e.watched, func(w *notice) bool { return w.over.Load() || w.h.ready() })
}

func (e *herald) needs() *Handle { return nil }

func (e *herald) check(ctx context.Context, _ bool) (time.Duration, error) {
	return 0, e.node.waitOver(ctx)
}

// rung is false: a test by another goroutine ends what is awaited without a ring.
func (e *herald) rung() bool { return false }

func (e *herald) sleepsIn(t *wait.Sleeper) {
	if e.sleeper.Store(t); t == nil {
		return
	}
	for _, w := range e.watched {
		w.h.pass()
	}
}
