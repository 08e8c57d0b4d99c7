package channel

import (
	"context"
	"errors"

	"github.com/sluice-hpc/sluice/verbs"
)

// queueView is a queue as the engine sees it.
type queueView struct {
	*queue
	seen  uint64 // polls
	armed bool
}

// add puts a queue under the engine's care.
func (d *device) add(q *queue) {
	a := &queueView{queue: q}
	d.mu.Lock()
	d.queues[q.link.cq] = a
	d.mu.Unlock()
	q.lock.Lock()
	q.view = a
	q.note()
	q.lock.Unlock()
	d.kick()
}

// note makes the engine's next survey include the queue. The caller holds the lock.
func (q *queue) note() {
	if q.noted || q.view == nil {
		return
	}
	q.noted = true
	d := q.link.dev
	d.mu.Lock()
	d.active = append(d.active, q.view)
	d.mu.Unlock()
}

// forget removes a failed queue whose sends have all completed from the engine. If the
// device reports when the last receive has completed, the queue is kept until then.
func (d *device) forget(a *queueView) {
	d.mu.Lock()
	delete(d.queues, a.link.cq)
	if d.pool != nil {
		d.failed[a.link.qp] = a.queue
	}
	d.mu.Unlock()
}

// queueOf returns the queue of a queue pair; nil without one.
func (d *device) queueOf(qp *verbs.QP) *queue {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.queues {
		if a.link.qp == qp {
			return a.queue
		}
	}
	return d.failed[qp]
}

// kick wakes the engine at once.
func (d *device) kick() {
	select {
	case d.kicked <- struct{}{}:
	default:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
}

// engine makes progress on queues that their users do not poll because they compute or
// sleep. While users poll other queues, it checks periodically that they still do.
func (d *device) engine() {
	life := d.node.life
	for life.Err() == nil {
		var ctx context.Context
		var cancel context.CancelFunc
		if d.survey() {
			ctx, cancel = context.WithTimeout(life, engineTick)
		} else {
			ctx, cancel = context.WithCancel(life)
		}
		d.mu.Lock()
		d.cancel = cancel
		d.mu.Unlock()
		var cq *verbs.CQ
		var err error
		select {
		case <-d.kicked: // since the survey
		default:
			cq, err = d.events.Get(ctx)
		}
		cancel()
		switch {
		case errors.Is(err, verbs.ErrClosed):
			return
		case err == nil && cq != nil:
			d.fired(cq)
		case err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
			d.node.log.Warn("channel: cannot wait for completion events", "device", d.ctx.Device().Name(), "error", err)
			d.fatal(verbs.EventDeviceFatal)
			return
		}
	}
}

// survey examines the queues used since the last survey. It arms those that are no longer
// polled, and reports whether any still are.
func (d *device) survey() bool {
	sleepers := d.node.bell.Listeners() > 0
	d.mu.Lock()
	active := d.active
	d.active = d.surveyed
	d.mu.Unlock()
	busy := active[:0]
	var idle []*queueView
	for _, a := range active {
		a.lock.Lock()
		switch {
		case a.failed:
			a.noted = false
			a.drain()
			if a.outstanding.posted == a.outstanding.done {
				d.forget(a)
			} else if !a.armed {
				idle = append(idle, a)
			}
		case a.polls != a.seen && !sleepers:
			a.seen, a.watched = a.polls, true
			busy = append(busy, a)
		default:
			a.noted, a.watched = false, false
			a.settle()
			if !a.armed {
				idle = append(idle, a)
			}
		}
		a.lock.Unlock()
	}
	if len(busy) > 0 {
		d.mu.Lock()
		d.active = append(d.active, busy...)
		d.mu.Unlock()
	}
	clear(active)
	d.surveyed = active[:0]
	for _, a := range idle {
		a.armed = a.link.cq.ReqNotify(false) == nil
		a.tend()
	}
	return len(busy) > 0
}

// fired handles a completion event of a queue.
func (d *device) fired(cq *verbs.CQ) {
	d.mu.Lock()
	a := d.queues[cq]
	d.mu.Unlock()
	if a != nil {
		a.armed = false
		a.tend()
		a.lock.Lock()
		a.note()
		a.lock.Unlock()
	}
}

// tend makes progress on a queue, as Test would.
func (q *queue) tend() {
	q.lock.Lock()
	q.poll()
	q.lock.Unlock()
}
