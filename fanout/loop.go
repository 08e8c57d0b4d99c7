package fanout

import (
	"context"
	"errors"
	"io"
	"time"
)

// Supply sends the chunks that next returns, each as its parts, until next returns
// [io.EOF], and ends the supplier. When ctx ends it drains: the chunk that next has
// returned is still sent, the others are handed out, and all workers get their end, for
// which there is as much time as grace says. A program whose ctx ends with SIGTERM so
// leaves nothing half done.
//
// Errors: that of next, after the supplier has been drained and ended; those of Send and
// End.
func (s *Supplier) Supply(ctx context.Context, grace time.Duration, next func(context.Context) ([][]byte, error)) error {
	drain, cancel := lasting(ctx, grace)
	defer cancel()
	var failed error
	for ctx.Err() == nil {
		parts, err := next(ctx)
		if err != nil {
			if err != io.EOF && ctx.Err() == nil {
				failed = err
			}
			break
		}
		if err := s.Send(drain, parts...); err != nil {
			return err
		}
	}
	return errors.Join(failed, s.End(drain))
}

// Each receives chunks until their end, and has each worked on and released. When ctx ends
// it leaves: chunks that have been given to the client are still worked on, and no more
// are asked for; grace bounds how long.
//
// Errors: that of work, whose chunk is not released, so that it is not acknowledged; those
// of Receive.
func (c *Client) Each(ctx context.Context, grace time.Duration, work func(Chunk) error) error {
	drain, cancel := lasting(ctx, grace)
	defer cancel()
	stop := context.AfterFunc(ctx, c.Leave)
	defer stop()
	for {
		k, err := c.Receive(drain)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := work(k); err != nil {
			return err
		}
		k.Release()
	}
}

// lasting returns a context that ends some time after ctx.
func lasting(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(grace, func() { cancel(context.DeadlineExceeded) })
		context.AfterFunc(longer, func() { t.Stop() })
	})
	return longer, func() {
		stop()
		cancel(context.Canceled)
	}
}
