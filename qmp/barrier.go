package qmp

import (
	"context"
	"time"
)

// Barrier returns when all nodes have called it (QMP_barrier). See [Comm.SumInt].
func (c *Comm) Barrier() error {
	return c.barrierUntil("barrier", func() context.Context { return background })
}

// WaitForBarrier is [Comm.Barrier] with a timeout (QMP_wait_for_barrier, whose milliseconds are
// time.Millisecond). When the timeout has passed it returns [StatusTimeout], and the barrier
// continues: this node counts as arrived, and the others may pass. The next call of Barrier or
// WaitForBarrier waits for the same barrier. With a timeout of zero or less it polls once.
func (c *Comm) WaitForBarrier(timeout time.Duration) error {
	return c.barrierUntil("wait for barrier", func() context.Context { return &deadline{time.Now().Add(timeout)} })
}

func (c *Comm) barrierUntil(op string, until func() context.Context) error {
	if err := c.begin(op); err != nil {
		return err
	}
	defer c.end()
	if c.m.watch.Load() != 0 {
		defer c.m.watched(op)()
	}
	if !c.waiting {
		if err := c.barrier.Start(); err != nil {
			return failed(op, err)
		}
	}
	c.waiting = true
	done, err := c.barrier.Test()
	if !done {
		err = c.barrier.WaitContext(until())
	}
	if err == nil {
		c.waiting = false
		return nil
	}
	c.waiting = StatusOf(err) == StatusTimeout
	return failed(op, err)
}
