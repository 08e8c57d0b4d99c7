package channel

import (
	"errors"
	"time"

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
}

// engine makes progress on queues that their users do not poll because they compute or
// sleep. While users poll other queues, it checks periodically that they still do.
func (d *device) engine() {
	tick := time.NewTimer(engineTick)
	defer tick.Stop()
	for {
		var due <-chan time.Time
		if d.survey() {
			tick.Reset(engineTick)
			due = tick.C
		}
		select {
		case <-d.kicked:
		case <-due:
		case <-d.node.life.Done():
			return
		}
	}
}

// listen makes progress on queues that the engine has armed, as their completions come.
func (d *device) listen() {
	for {
		cq, err := d.events.Get(d.node.life)
		switch {
		case err == nil:
			d.fired(cq)
			d.kick()
		case d.node.life.Err() != nil || errors.Is(err, verbs.ErrClosed):
			return
		default:
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
			a.arm()
			a.drain()
			if a.outstanding.posted == a.outstanding.done {
				d.forget(a)
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
		a.lock.Lock()
		a.arm()
		a.poll()
		a.lock.Unlock()
	}
	return len(busy) > 0
}

// arm asks for an event at the next completion, unless one is to come. What has completed before brings none:
// the caller, which holds the lock, then looks for it.
func (a *queueView) arm() {
	if !a.armed {
		a.armed = a.link.cq.ReqNotify(false) == nil
	}
}

// fired handles a completion event of a queue.
func (d *device) fired(cq *verbs.CQ) {
	d.mu.Lock()
	a := d.queues[cq]
	d.mu.Unlock()
	if a != nil {
		a.lock.Lock()
		a.armed = false
		a.poll()
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
