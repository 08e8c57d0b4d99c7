package fanout

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// One goroutine at a time has the turn, waiters get it in order, and a waiter that gives up
// leaves it to the others.
func TestTurn(t *testing.T) {
	var turn turn
	ctx := t.Context()
	n := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 2000 {
				some, cancel := context.WithCancel(ctx)
				if i%3 == 0 {
					cancel()
				}
				if turn.take(some) == nil {
					n++
					if i%5 == 0 {
						runtime.Gosched()
					}
					n--
					turn.leave()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.Zero(t, n)
	require.False(t, turn.taken())
	require.Empty(t, turn.waiting)

	require.NoError(t, turn.take(ctx))
	require.ErrorIs(t, turn.take(over(t)), context.DeadlineExceeded)
	require.True(t, turn.taken())
	var order []int
	for i := range 3 {
		wg.Go(func() {
			if turn.take(ctx) == nil {
				order = append(order, i)
				turn.leave()
			}
		})
		for waiting := 0; waiting <= i; runtime.Gosched() {
			turn.mu.Lock()
			waiting = len(turn.waiting)
			turn.mu.Unlock()
		}
	}
	turn.leave()
	wg.Wait()
	require.Equal(t, []int{0, 1, 2}, order)
	require.False(t, turn.taken())
}
