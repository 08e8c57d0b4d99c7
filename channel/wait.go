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
)

// await tests until the handle is complete.
func (h *Handle) await(ctx context.Context) error {
	n := h.node
	patient := false // has been spinning for long
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
		switch {
		case i < n.spins:
			// Polling less often also helps the owner of the line, which bounces between
			// the caches if it is read while it is written: 5 % of BenchmarkPingPong/8.
			wait.Pause(1)
		case i < n.spins+yieldBudget:
			yield()
		default:
			if done, err := h.sleep(ctx); done {
				return err
			}
		}
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

func yield() {
	if waiters.Load() > 1 {
		runtime.Gosched()
	}
	wait.Yield()
}
