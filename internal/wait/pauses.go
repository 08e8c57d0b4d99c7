package wait

import (
	"cmp"
	"context"
	"time"
)

// Pauses are those of a wait for what rings no bell: each is twice as long as the one before, from Least
// to Most. The zero value is ready for use.
type Pauses struct {
	Least time.Duration // 0: 20 µs
	Most  time.Duration // 0: 5 ms
	next  time.Duration
}

// Redial returns the pauses of a process before it connects again to one that has refused, or is asked
// again what has become of another.
func Redial() Pauses { return Pauses{Least: 10 * time.Millisecond, Most: time.Second} }

// After begins the next pause and returns a channel that gets a value when it is over.
func (p *Pauses) After() <-chan time.Time {
	most := cmp.Or(p.Most, 5*time.Millisecond)
	p.next = min(max(p.next, cmp.Or(p.Least, 20*time.Microsecond)), most)
	over := time.After(p.next)
	p.next *= 2
	return over
}

// Next pauses. It returns the cause of ctx if that ends first.
func (p *Pauses) Next(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.After():
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
