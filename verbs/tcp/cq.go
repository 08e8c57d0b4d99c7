package tcp

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// cq is a completion queue and the QPs that polling it drives.
type cq struct {
	soft.CQ
	a     *adapter
	qps   atomic.Pointer[[]*qp]
	loose atomic.Int32 // connections that only polling drives
	due   atomic.Int32 // loose ones that polling must visit even if nothing has arrived

	mu    sync.Mutex // held to change qps and set
	set   atomic.Pointer[pollSet]
	busy  soft.Lock // guards found
	found []*conn

	// For the engine: the count of polls when it last looked, and when that count changed.
	seen   uint64
	seenAt time.Time
}

// fewQPs is the number of sockets up to which each poll simply reads every one (0.2 µs
// for one without data). With more, one system call first finds the readable ones.
const fewQPs = 4

// CreateCQ creates a completion queue.
func (a *adapter) CreateCQ(cqe int, ch verbs.ProviderCompChannel) (verbs.ProviderCQ, error) {
	q := &cq{a: a}
	q.Device, q.Self, q.Events, q.Kick = a.device, q, a.events, q.kick
	if ch != nil {
		q.Channel = ch.(*soft.CompChannel)
	}
	q.qps.Store(new([]*qp))
	q.Init(cqe)
	return q, nil
}

// Poll drives the QPs of this CQ and takes completions.
func (q *cq) Poll(wcs []verbs.WC) (int, error) {
	s := soft.Sink{CQ: &q.CQ, WCs: wcs}
	if err := q.Begin(&s); err != nil {
		return 0, err
	}
	if s.N == 0 && len(wcs) > 0 && q.a.engine.polled {
		if set := q.set.Load(); set != nil {
			q.pollSet(*set, &s)
		} else {
			// Poll all of them, even when wcs is full: the rest goes to the ring, and
			// a busy QP does not starve the others.
			for _, qp := range *q.qps.Load() {
				qp.poll(&s)
			}
		}
		q.End(&s)
	}
	switch {
	case s.N > 0:
	case q.a.wiring.Load() != 0 || !q.a.engine.polled:
		wait.LetRun() // to the goroutines that connect, or read
	default:
		// A read holds the socket's lock, for which the CPU that delivers packets waits.
		wait.Pause(3)
	}
	return s.N, nil
}

// pollSet drives the QPs whose sockets are readable, or, if there are none, those that
// are due.
func (q *cq) pollSet(set pollSet, s *soft.Sink) {
	if !q.busy.TryLock() {
		return
	}
	q.found = set.ready(q.found[:0])
	for _, c := range q.found {
		c.q.poll(s)
	}
	if len(q.found) == 0 && q.due.Load() > 0 {
		for _, qp := range *q.qps.Load() {
			if qp.due.Load() {
				qp.poll(s)
			}
		}
	}
	q.busy.Unlock()
}

// kick has the engine drive the loose connections again, because the CQ will not be polled
// until an event comes. What has already arrived is received at once.
func (q *cq) kick() {
	if q.loose.Load() == 0 {
		return
	}
	for _, qp := range *q.qps.Load() {
		qp.Lock.Lock()
		if qp.conn != nil {
			qp.conn.takeBack()
		}
		qp.Unlock()
	}
}

// attended says whether the CQ has been polled lately. Only the engine calls it.
func (q *cq) attended(now time.Time) bool {
	if n := q.Polls(); n != q.seen {
		q.seen, q.seenAt = n, now
	}
	return now.Sub(q.seenAt) < lookEvery
}

// add and remove keep the list of QPs.
func (q *cq) add(p *qp) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := append(slices.Clone(*q.qps.Load()), p)
	q.qps.Store(&list)
	if len(list) <= fewQPs || q.set.Load() != nil || !q.a.engine.polled {
		return nil
	}
	set, err := q.a.engine.drv.newSet()
	if err != nil {
		return verbs.Errorf(q.Device, "create QP", err, "a set of sockets for the CQ")
	}
	// A connection made from now on joins by itself; one may join twice.
	q.set.Store(&set)
	for _, p := range list {
		p.Lock.Lock()
		if p.conn != nil {
			p.conn.tr.join(set)
		}
		p.Unlock()
	}
	return nil
}

func (q *cq) remove(p *qp) {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*q.qps.Load()), func(o *qp) bool { return o == p })
	q.qps.Store(&list)
}

// Close ends the queue, which no QP uses any more.
func (q *cq) Close() error {
	q.CQ.Close()
	q.Events.Forget(q)
	if set := q.set.Load(); set != nil {
		(*set).close()
	}
	return nil
}
