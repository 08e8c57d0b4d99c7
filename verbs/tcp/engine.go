package tcp

import (
	"sync"
	"time"
)

// engine is the goroutine of a context that drives the connections that polling does not:
// it is parked in its driver until a socket of a CQ that is not being polled becomes
// ready, or a deadline passes.
//
// A connection is either armed: the engine gets its events; or loose: only polls of its
// CQs drive it. The engine checks each loose connection every lookEvery, and takes it back
// when polling has stopped.
type engine struct {
	a      *adapter
	drv    driver
	polled bool // drv.polled
	done   sync.WaitGroup

	mu      sync.Mutex
	stop    bool
	over    bool // the driver is closed
	loose   []*conn
	timers  map[*qp]time.Time   // when to call qp.expire
	closing map[*conn]time.Time // connections that are closing, and their deadlines
	planned time.Time           // when run will look again; zero: not by itself
	notes   []func()            // records to be logged once no lock is held
	swept   time.Time
}

// lookEvery is how long the engine leaves a connection alone after a poll of its CQ. It
// interrupts a spinning goroutine that often, so a shorter time costs polling.
const lookEvery = time.Millisecond

func newEngine(a *adapter, drv driver) *engine {
	e := &engine{a: a, drv: drv, polled: drv.polled(), timers: map[*qp]time.Time{}, closing: map[*conn]time.Time{}}
	e.done.Go(e.run)
	return e
}

func (e *engine) run() {
	for {
		d, ok := e.plan()
		if !ok {
			return
		}
		happened := e.drv.wait(d)
		now := time.Now()
		for _, h := range happened {
			e.event(h, now)
		}
		e.sweep(now)
		e.expire(now)
	}
}

// plan says how long to wait, and whether to go on.
func (e *engine) plan() (d time.Duration, ok bool) {
	e.mu.Lock()
	notes := e.notes
	e.notes = nil
	e.mu.Unlock()
	for _, note := range notes {
		note()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop && len(e.closing) == 0 {
		return 0, false
	}
	if len(e.notes) > 0 {
		return 0, true
	}
	var at time.Time
	if len(e.loose) > 0 {
		at = e.swept.Add(lookEvery)
	}
	for _, t := range e.timers {
		at = earlier(at, t)
	}
	for _, t := range e.closing {
		at = earlier(at, t)
	}
	e.planned = at
	if at.IsZero() {
		return -1, true
	}
	return max(time.Until(at), 0), true
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// wakeFor wakes the engine if it would sleep beyond t; e.mu is held.
func (e *engine) wakeFor(t time.Time) {
	if e.planned.IsZero() || t.Before(e.planned) {
		e.planned = t
		e.wake()
	}
}

// event drives a connection that has become readable, writable or dead, unless polling
// will see that as soon.
func (e *engine) event(h happening, now time.Time) {
	c, q := h.c, h.c.q
	q.Lock.Lock()
	defer q.Unlock()
	c.tr.fired()
	if h.hangup && c.rx.stalled {
		// A peer that is gone no longer waits for a receive.
		c.unstall()
		c.rx.drop = dropForever
	} else if c.phase == phaseOpen && e.attended(q, now) {
		c.letLoose()
		return
	}
	c.drive(nil)
}

// attended says whether one of the QP's CQs is being polled, and none is armed.
func (e *engine) attended(q *qp, now time.Time) bool {
	s, r := q.scq.attended(now), q.rcq.attended(now)
	return (s || r) && !q.scq.Armed() && !q.rcq.Armed()
}

// watch adds a loose connection.
func (e *engine) watch(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.watched {
		return
	}
	c.watched = true
	e.loose = append(e.loose, c)
	if len(e.loose) == 1 {
		now := time.Now()
		e.swept = now
		e.wakeFor(now.Add(lookEvery))
	}
}

// sweep takes back the loose connections whose CQs are no longer polled.
func (e *engine) sweep(now time.Time) {
	e.mu.Lock()
	if len(e.loose) == 0 || now.Sub(e.swept) < lookEvery {
		e.mu.Unlock()
		return
	}
	e.swept = now
	var back []*conn
	kept := e.loose[:0]
	for _, c := range e.loose {
		if e.attended(c.q, now) {
			kept = append(kept, c)
			continue
		}
		c.watched = false
		back = append(back, c)
	}
	clear(e.loose[len(kept):])
	e.loose = kept
	e.mu.Unlock()
	for _, c := range back {
		c.q.Lock.Lock()
		c.takeBack()
		c.q.Unlock()
	}
}

// at schedules qp.expire for t, or earlier.
func (e *engine) at(q *qp, t time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cur, ok := e.timers[q]; ok && cur.Before(t) {
		return
	}
	e.timers[q] = t
	e.wakeFor(t)
}

// forget drops the timer of a QP.
func (e *engine) forget(q *qp) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.timers, q)
}

// ending notes that c must be gone by t; ended that it is gone.
func (e *engine) ending(c *conn, t time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closing[c] = t
	e.wakeFor(t)
}

func (e *engine) ended(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.closing, c)
	if e.stop && len(e.closing) == 0 {
		e.wake()
	}
}

// expire runs the timers that have expired.
func (e *engine) expire(now time.Time) {
	var qps []*qp
	var conns []*conn
	e.mu.Lock()
	for q, t := range e.timers {
		if !now.Before(t) {
			qps = append(qps, q)
			delete(e.timers, q)
		}
	}
	for c, t := range e.closing {
		if !now.Before(t) {
			conns = append(conns, c)
		}
	}
	e.mu.Unlock()
	for _, q := range qps {
		q.Lock.Lock()
		q.expire(now)
		q.Unlock()
	}
	for _, c := range conns {
		c.q.Lock.Lock()
		c.close()
		c.q.Unlock()
	}
}

// note defers a log record: the caller holds a lock, and a log handler may do anything.
func (e *engine) note(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.notes) < maxNotes {
		e.notes = append(e.notes, f)
		e.wake()
	}
}

// maxNotes limits the records that wait for a slow log handler.
const maxNotes = 256

// close ends the engine once all closing connections are gone.
func (e *engine) close() {
	e.mu.Lock()
	e.stop = true
	e.wake()
	e.mu.Unlock()
	e.done.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	e.drv.close()
}

// wake ends the driver's wait; e.mu is held. A late release of a connection may call it
// after the engine's end, when the descriptor may belong to something else.
func (e *engine) wake() {
	if !e.over {
		e.drv.wake()
	}
}
