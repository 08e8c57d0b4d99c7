package qmp

import (
	"context"
	"time"
)

// deadline is a context that ends at a given time without a goroutine or an allocation: the waiters
// of package channel look at Err and Deadline.
type deadline struct{ end time.Time }

var _ context.Context = (*deadline)(nil)

func (d *deadline) Deadline() (time.Time, bool) { return d.end, true }
func (d *deadline) Done() <-chan struct{}       { return nil }
func (d *deadline) Value(any) any               { return nil }

func (d *deadline) Err() error {
	if time.Now().Before(d.end) {
		return nil
	}
	return context.DeadlineExceeded
}
