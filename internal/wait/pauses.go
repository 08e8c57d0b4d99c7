package wait

import (
	"context"
	"time"
)

// Pauses are those of a wait for what rings no bell: each is twice as long as the one before, from 20 µs
// to Most. The zero value is ready for use.
type Pauses struct {
	Most time.Duration // 0: 5 ms
	next time.Duration
}

// Next pauses. It returns the cause of ctx if that ends first.
func (p *Pauses) Next(ctx context.Context) error {
	if p.Most == 0 {
		p.Most = 5 * time.Millisecond
	}
	p.next = min(max(p.next, 20*time.Microsecond), p.Most)
	t := time.NewTimer(p.next)
	defer t.Stop()
	p.next *= 2
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// Until looks, with Pauses, until it is over or ctx has ended before a look, and says whether it is
// over.
func Until(ctx context.Context, over func() bool) bool {
	for p := (Pauses{}); !over(); {
		if p.Next(ctx) != nil {
			return over()
		}
	}
	return true
}
