package shm

import (
	"runtime"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// CQ is a completion queue and the QPs that polling it drives.
type CQ struct {
	soft.CQ
	ctx *Context
	qps atomic.Pointer[[]*QP]

	// driving is held by the Poll that goes through several QPs: it looks at
	// their inboxes without their locks, and closing a QP waits for it. With a
	// single QP its own lock does the same for less.
	driving soft.Lock

	first int // where the next Poll begins; guarded by driving

	// Of the engine: the count of polls when it last looked, and whether it had grown.
	lastPolls uint64
	polled    bool
}

// CreateCQ makes a CQ.
func (c *Context) CreateCQ(cqe int, ch verbs.ProviderCompChannel) (verbs.ProviderCQ, error) {
	q := &CQ{ctx: c}
	q.Device, q.Self, q.Events = deviceName, q, c.events
	if ch != nil {
		q.Channel = ch.(*soft.CompChannel)
	}
	// Who arms the CQ will not poll until an event comes. While the engine has
	// the CQ in its care a new message wakes it; else it must be told.
	q.Kick = func() {
		for _, qp := range *q.qps.Load() {
			if !qp.watched.Load() {
				c.kick()
				return
			}
		}
	}
	q.qps.Store(new([]*QP))
	q.Init(cqe)
	listAdd(&c.mu, &c.allCQs, q)
	return q, nil
}

// Poll drives the QPs of this CQ and takes completions.
func (q *CQ) Poll(wcs []verbs.WC) (int, error) {
	s := soft.Sink{CQ: &q.CQ, WCs: wcs}
	if err := q.Begin(&s); err != nil {
		return 0, err
	}
	if s.N == len(wcs) {
		return s.N, nil
	}
	switch qps := *q.qps.Load(); {
	case len(qps) == 1:
		if qp := qps[0]; qp.TryLock() {
			if qp.ready() {
				qp.progress(&s)
			}
			qp.Unlock()
		}
	case q.driving.TryLock():
		qps = *q.qps.Load() // again: closing a QP waits for who has looked under the lock
		for range qps {
			// In turn, so that a busy QP and a short wcs do not starve the others.
			if q.first++; q.first >= len(qps) {
				q.first = 0
			}
			qp := qps[q.first]
			if qp.ready() && qp.TryLock() {
				qp.progress(&s)
				qp.Unlock()
				if s.N == len(wcs) {
					break
				}
			}
		}
		q.driving.Unlock()
	}
	q.End(&s)
	if s.N == 0 && q.ctx.wiring.Load() != 0 {
		// With one CPU per process the goroutines that connect run only if the
		// one that spins here lets them.
		runtime.Gosched()
	}
	return s.N, nil
}

// removeQP takes a QP off the CQ; when it returns no Poll looks at it any more
// without its lock.
func (q *CQ) removeQP(qp *QP) {
	listRemove(&q.ctx.mu, &q.qps, qp)
	q.driving.Pass()
}

// Close ends the CQ; no QP uses it any more.
func (q *CQ) Close() error {
	listRemove(&q.ctx.mu, &q.ctx.allCQs, q)
	q.CQ.Close()
	return nil
}
