package tcp

import (
	"runtime"
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
	loose atomic.Int32  // connections that nobody drives but who polls
	due   atomic.Int32  // loose ones to be visited although nothing may have come
	idle  atomic.Uint32 // polls that gave way

	mu    sync.Mutex // qps and set are changed
	set   atomic.Pointer[pollSet]
	busy  soft.Lock // somebody uses found
	found []*conn

	// Of the engine: the count of polls when it last looked, and when that moved.
	seen   uint64
	seenAt time.Time
}

// fewQPs is how many sockets are simply read at each poll (0.2 µs for one that
// has nothing). More of them are first looked through with one system call.
const fewQPs = 4

// CreateCQ makes a completion queue.
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
			// All of them, also when there is no more room: what does not fit goes
			// to the ring, and no QP is left out because another is busy.
			for _, qp := range *q.qps.Load() {
				qp.poll(&s)
			}
		}
		q.End(&s)
	}
	switch {
	case s.N > 0:
	case q.a.wiring.Load() != 0 || !q.a.engine.polled:
		q.giveWay()
	default:
		// Reading holds the socket's lock, which the CPU that delivers waits for.
		wait.Pause(3)
	}
	return s.N, nil
}

// giveWay lets the goroutines run that wait for the network. With one CPU per
// process they do only if the one that spins here lets them, and yielding is not
// enough: the runtime looks at the network when there is nothing else to run.
func (q *cq) giveWay() {
	runtime.Gosched()
	const often = 64
	if q.idle.Add(1)%often == 0 && runtime.GOMAXPROCS(0) == 1 {
		time.Sleep(time.Microsecond)
	}
}

// pollSet drives the QPs that have something, and when none has, those that
// have something to send.
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

// kick has the engine drive the loose connections again: nobody is going to
// poll until an event comes. What has come already is received here and now.
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

// attended says whether the CQ has been polled lately. For the engine alone.
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
	// A connection made from here on joins by itself; one may do so twice.
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

// Close ends the queue; no QP uses it any more.
func (q *cq) Close() error {
	q.CQ.Close()
	q.Events.Forget(q)
	if set := q.set.Load(); set != nil {
		(*set).close()
	}
	return nil
}
