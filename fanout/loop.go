package fanout

import (
	"context"
	"errors"
	"io"
	"time"
)

// Supply sends the chunks that next returns, each as its parts, until next returns
// [io.EOF]; then it ends the supplier. When ctx ends first, it stops calling next, still sends
// the chunk that next has returned, hands out the queued chunks, and sends all workers their
// end; grace bounds the time for this. So a program whose ctx ends with SIGTERM leaves nothing
// unfinished.
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

// Each receives chunks until their end; it calls work with each, and then releases it. When
// ctx ends first, it leaves: it still processes the chunks that the client has been given, but
// asks for no more; grace bounds the time for this.
//
// Errors: that of work, whose chunk is not released and so not acknowledged; those of
// Receive.
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
