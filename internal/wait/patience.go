package wait

import (
	"context"
	"time"
)

const (
	ticks = 32
	slack = 100 * time.Millisecond
)

// Patience returns a context that ends like one of [context.WithTimeout], but of the time only that
// counts in which this process runs: while a job is stopped, or lacks a CPU, the process that is waited
// for can do nothing either. Its deadline is that of parent. The cause of contexts derived from it is
// [context.DeadlineExceeded] then.
func Patience(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return PatienceWhile(parent, d, func() bool { return true })
}

// PatienceWhile is Patience of whose time only that counts in which counts returns true. It is called
// on another goroutine.
func PatienceWhile(parent context.Context, d time.Duration, counts func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	p := &patience{Context: ctx, end: cancel, counts: counts, step: d / ticks, last: time.Now(), left: ticks, most: 2 * ticks}
	if d <= 0 {
		cancel(context.DeadlineExceeded)
	} else {
		time.AfterFunc(p.step, p.tick)
	}
	return p, func() { cancel(context.Canceled) }
}

type patience struct {
	context.Context
	end        context.CancelCauseFunc
	counts     func() bool
	step       time.Duration
	last       time.Time // tick
	left, most int       // ticks that came in time, and all
}

// tick is called after each step of the time.
func (p *patience) tick() {
	now := time.Now()
	if p.counts() {
		if now.Sub(p.last) <= 2*p.step+slack {
			p.left--
		}
		p.most--
	}
	p.last = now
	switch {
	case p.left == 0 || p.most == 0:
		p.end(context.DeadlineExceeded)
	case p.Context.Err() == nil:
		time.AfterFunc(p.step, p.tick)
	}
}

func (p *patience) Err() error {
	if err := p.Context.Err(); err == nil || context.Cause(p.Context) != context.DeadlineExceeded {
		return err
	}
	return context.DeadlineExceeded
}
