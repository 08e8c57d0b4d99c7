package fanout

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// turn is a lock; a wait for it ends with a context. Uncontended, it costs one atomic
// instruction to take and one to give back.
type turn struct {
	state   atomic.Int32
	mu      sync.Mutex
	waiting []chan struct{} // each is closed when its owner has the turn; in order
}

// States of a turn. It is turnWanted exactly while there are waiters.
const (
	turnFree = iota
	turnTaken
	turnWanted
)

// take takes the turn. The error is that of ctx.
func (t *turn) take(ctx context.Context) error {
	if t.state.CompareAndSwap(turnFree, turnTaken) {
		return nil
	}
	t.mu.Lock()
	for !t.state.CompareAndSwap(turnTaken, turnWanted) && t.state.Load() != turnWanted {
		if t.state.CompareAndSwap(turnFree, turnTaken) {
			t.mu.Unlock()
			return nil
		}
	}
	mine := make(chan struct{})
	t.waiting = append(t.waiting, mine)
	t.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting, mine)
	if i < 0 { // this waiter has been given the turn meanwhile
		return nil
	}
	t.waiting = slices.Delete(t.waiting, i, i+1)
	if len(t.waiting) == 0 {
		t.state.Store(turnTaken)
	}
	return ctx.Err()
}

// leave gives the turn to the longest waiter, or frees it.
func (t *turn) leave() {
	if t.state.CompareAndSwap(turnTaken, turnFree) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 { // the last waiter has given up
		t.state.Store(turnFree)
		return
	}
	close(t.waiting[0])
	if t.waiting = slices.Delete(t.waiting, 0, 1); len(t.waiting) == 0 {
		t.state.Store(turnTaken)
	}
}

// taken reports whether the turn is taken.
func (t *turn) taken() bool { return t.state.Load() != turnFree }
