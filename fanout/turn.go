package fanout

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// turn is a lock that is waited for no longer than a context lasts. Nobody waiting, it
// costs an atomic instruction to take and one to give back.
type turn struct {
	state   atomic.Int32
	mu      sync.Mutex
	waiting []chan struct{} // each is closed when its owner has the turn; in order
}

// States of a turn. It is turnWanted exactly while somebody waits.
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
	if i < 0 { // it has been given the turn meanwhile
		return nil
	}
	t.waiting = slices.Delete(t.waiting, i, i+1)
	if len(t.waiting) == 0 {
		t.state.Store(turnTaken)
	}
	return ctx.Err()
}

// leave gives the turn back, to who has waited longest.
func (t *turn) leave() {
	if t.state.CompareAndSwap(turnTaken, turnFree) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 { // who waited has given up
		t.state.Store(turnFree)
		return
	}
	close(t.waiting[0])
	if t.waiting = slices.Delete(t.waiting, 0, 1); len(t.waiting) == 0 {
		t.state.Store(turnTaken)
	}
}

// taken says whether somebody has the turn.
func (t *turn) taken() bool { return t.state.Load() != turnFree }
