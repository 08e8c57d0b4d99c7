package soft

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// Arming of a CQ.
const (
	armedNot uint32 = iota
	armedSolicited
	armedAny
)

// CQ is the queue of completions. A provider embeds it, adds the QPs that it polls, and sets
// Self to its own CQ, for the channel.
type CQ struct {
	Device  string
	Self    verbs.ProviderCQ
	Events  *Events
	Channel *CompChannel // nil: wait with Block
	// Kick makes the provider's engine drive this CQ's QPs from now on: the CQ will
	// not be polled until an event comes.
	Kick func()

	count atomic.Uint32 // entries of the ring, for looking without the lock
	polls uint64        // calls of Poll, which show the engine that the CQ is being polled; atomic
	bad   atomic.Uint32 // bits: overrun, closed
	armed atomic.Uint32

	lock Lock
	ring []completion
	head uint32

	blocked struct { // calls that wait in Block
		sync.Mutex
		n    int
		wake chan struct{} // an event closes it and makes a new one
	}
}

const (
	overrun = 1 << iota
	closed
)

// completion is an entry of the ring.
type completion struct {
	wc    verbs.WC
	owner *Polled
}

// Polled counts the work requests of a work queue whose completion has been polled, or that
// have none. Until then they occupy the queue, as on hardware, so a CQ as large as its work
// queues together does not overrun.
type Polled struct {
	direct uint32        // atomic; changed by the holder of the lock of the queue's QP
	ring   atomic.Uint32 // changed when completions are taken from the ring of a CQ
	shared bool          // of an SRQ: there is no such lock
}

func (p *Polled) count() uint32 { return atomic.LoadUint32(&p.direct) + p.ring.Load() }

// add counts one for the holder of the QP's lock.
func (p *Polled) add() {
	if p.shared {
		p.ring.Add(1)
	} else {
		wait.StoreRelaxed32(&p.direct, p.direct+1)
	}
}

// all sets the count to n.
func (p *Polled) all(n uint32) { wait.StoreRelease32(&p.direct, n-p.ring.Load()) }

// Init makes the queue ready, after the other fields have been set.
func (q *CQ) Init(cqe int) {
	q.ring = make([]completion, cqe)
	q.blocked.wake = make(chan struct{})
}

// Sink receives the completions of one call of Poll: while the ring of CQ is empty, they go
// straight into the caller's slice.
type Sink struct {
	CQ  *CQ
	WCs []verbs.WC
	N   int
}

// Push adds a completion of a work request of owner to q: through the sink if that is q's, else
// through the ring. The caller holds the lock of the completion's QP, so that completions of
// one QP stay in order. Push returns false if the queue overran: the completion is lost, and
// the QP must go to ERR.
func (q *CQ) Push(s *Sink, wc *verbs.WC, solicited bool, owner *Polled) bool {
	if s != nil && s.CQ == q && s.N < len(s.WCs) && q.count.Load() == 0 {
		*s.Next(owner) = *wc
		q.fire(wc, solicited)
		return true
	}
	q.lock.Lock()
	n := q.count.Load()
	if int(n) == len(q.ring) {
		first := q.bad.Or(overrun)&overrun == 0
		q.lock.Unlock()
		if first {
			q.Events.Add(verbs.EventCQErr, q.Self)
			q.notify()
		}
		return false
	}
	i := q.head + n
	if i >= uint32(len(q.ring)) {
		i -= uint32(len(q.ring))
	}
	q.ring[i] = completion{*wc, owner}
	q.count.Store(n + 1)
	q.lock.Unlock()
	q.fire(wc, solicited)
	return true
}

// fire sends the event that the queue is armed for, if wc matches.
func (q *CQ) fire(wc *verbs.WC, solicited bool) {
	if a := q.armed.Load(); a == armedAny || a == armedSolicited && (solicited || wc.Status != verbs.WCSuccess) {
		q.notify()
	}
}

// notify sends the one event that arming asked for.
func (q *CQ) notify() {
	if q.armed.Swap(armedNot) == armedNot {
		return
	}
	if q.Channel != nil {
		q.Channel.add(q.Self)
		return
	}
	q.wakeAll()
}

// wakeAll wakes every waiting Block; each looks for itself.
func (q *CQ) wakeAll() {
	q.blocked.Lock()
	defer q.blocked.Unlock()
	close(q.blocked.wake)
	q.blocked.wake = make(chan struct{})
}

// Begin starts a Poll: it counts the call, and takes the completions in the ring. An error is
// the queue's own.
func (q *CQ) Begin(s *Sink) error {
	wait.StoreRelaxed64(&q.polls, atomic.LoadUint64(&q.polls)+1)
	if q.count.Load()|q.bad.Load() == 0 {
		return nil
	}
	return q.begin(s)
}

func (q *CQ) begin(s *Sink) error {
	if q.count.Load() > 0 {
		q.take(s)
	}
	switch b := q.bad.Load(); {
	case b&overrun != 0 && s.N == 0:
		return verbs.Errorf(q.Device, "poll CQ", verbs.ErrCQOverrun, "more than %d completions", len(q.ring))
	case b&closed != 0:
		return verbs.Errorf(q.Device, "poll CQ", verbs.ErrClosed, "CQ")
	}
	return nil
}

// Straight reports whether a completion may go directly to the sink, by Next: the ring is
// empty, and the queue is not armed.
func (q *CQ) Straight(s *Sink) bool {
	return s != nil && s.CQ == q && s.N < len(s.WCs) && q.count.Load()|q.armed.Load() == 0
}

// Next returns the place of the next completion, of a work request of owner; the caller sets
// all its fields.
func (s *Sink) Next(owner *Polled) *verbs.WC {
	owner.add()
	wc := &s.WCs[s.N]
	s.N++
	return wc
}

// End finishes a Poll: it takes completions that others have pushed to the ring meanwhile.
func (q *CQ) End(s *Sink) {
	if s.N < len(s.WCs) && q.count.Load() > 0 {
		q.take(s)
	}
}

func (q *CQ) take(s *Sink) {
	q.lock.Lock()
	n := min(q.count.Load(), uint32(len(s.WCs)-s.N))
	for range n {
		c := &q.ring[q.head]
		s.WCs[s.N] = c.wc
		c.owner.ring.Add(1)
		s.N++
		if q.head++; q.head == uint32(len(q.ring)) {
			q.head = 0
		}
	}
	q.count.Store(q.count.Load() - n)
	q.lock.Unlock()
}

// Forget removes the completions of QP qpn, which is being reset or closed.
func (q *CQ) Forget(qpn uint32) {
	q.lock.Lock()
	defer q.lock.Unlock()
	n, kept := q.count.Load(), uint32(0)
	size := uint32(len(q.ring))
	for i := range n {
		c := q.ring[(q.head+i)%size]
		if c.wc.QPNum == qpn {
			c.owner.ring.Add(1)
			continue
		}
		q.ring[(q.head+kept)%size] = c
		kept++
	}
	q.count.Store(kept)
}

// ReqNotify arms the queue for one event.
func (q *CQ) ReqNotify(solicitedOnly bool) error {
	want := armedAny
	if solicitedOnly {
		want = armedSolicited
	}
	for {
		// A request for solicited completions does not weaken one for any completion.
		cur := q.armed.Load()
		if cur >= want || q.armed.CompareAndSwap(cur, want) {
			break
		}
	}
	q.Kick()
	return nil
}

// Block arms the queue, and waits for a completion unless there is already one.
func (q *CQ) Block(ctx context.Context) error {
	q.blocked.Lock()
	q.blocked.n++
	wake := q.blocked.wake
	q.blocked.Unlock()
	defer func() {
		q.blocked.Lock()
		defer q.blocked.Unlock()
		if q.blocked.n--; q.blocked.n == 0 {
			q.armed.Store(armedNot)
		}
	}()
	q.armed.Store(armedAny)
	q.Kick()
	if q.count.Load()|q.bad.Load() != 0 {
		return nil
	}
	select {
	case <-wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Polls returns the number of calls of Poll so far.
func (q *CQ) Polls() uint64 { return atomic.LoadUint64(&q.polls) }

// Armed reports whether the queue is armed: the user waits for an event rather than polling.
func (q *CQ) Armed() bool { return q.armed.Load() != armedNot }

// Close ends the queue; calls that wait in Block return.
func (q *CQ) Close() {
	q.bad.Or(closed)
	q.wakeAll()
}

// CompChannel delivers events of armed CQs to calls of Get.
type CompChannel struct {
	device string
	mu     sync.Mutex
	queue  []verbs.ProviderCQ
	room   []verbs.ProviderCQ // of a queue that was empty
	signal chan struct{}      // capacity 1: the queue is not empty, or the channel closed
	closed bool
	fd     eventFD
}

// NewCompChannel returns a new channel.
func NewCompChannel(device string) *CompChannel {
	return &CompChannel{device: device, signal: make(chan struct{}, 1), fd: noEventFD}
}

func (c *CompChannel) add(q verbs.ProviderCQ) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if len(c.queue) == 0 {
		c.room = append(c.room[:0], q)
		c.queue = c.room
	} else {
		c.queue = append(c.queue, q)
	}
	c.fd.set()
	c.wake()
}

func (c *CompChannel) wake() {
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// FD returns the descriptor, which the first call creates.
func (c *CompChannel) FD() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return -1, verbs.Errorf(c.device, "completion channel descriptor", verbs.ErrClosed, "")
	}
	if c.fd == noEventFD {
		fd, err := newEventFD()
		if err != nil {
			return -1, verbs.Errorf(c.device, "completion channel descriptor", err, "")
		}
		c.fd = fd
		if len(c.queue) > 0 {
			c.fd.set()
		}
	}
	return int(c.fd), nil
}

// Get waits for the next event.
func (c *CompChannel) Get(ctx context.Context) (verbs.ProviderCQ, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.wake() // for the next of several waiting calls
			c.mu.Unlock()
			return nil, verbs.Errorf(c.device, "get completion event", verbs.ErrClosed, "")
		}
		if len(c.queue) > 0 {
			q := c.queue[0]
			c.queue[0] = nil
			c.queue = c.queue[1:]
			if len(c.queue) == 0 {
				c.fd.clear()
			} else {
				c.wake()
			}
			c.mu.Unlock()
			return q, nil
		}
		c.mu.Unlock()
		select {
		case <-c.signal:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close ends the channel; calls that wait in Get return.
func (c *CompChannel) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.queue = nil
	c.wake()
	return c.fd.close()
}

// Events is the queue of asynchronous events of a context.
type Events struct {
	device string
	mu     sync.Mutex
	queue  []verbs.ProviderEvent
	signal chan struct{}
	closed bool
}

// maxEvents limits a queue that is not read; the oldest events are dropped.
const maxEvents = 1 << 16

// NewEvents returns a new queue.
func NewEvents(device string) *Events {
	return &Events{device: device, signal: make(chan struct{}, 1)}
}

// Add queues an event.
func (e *Events) Add(t verbs.EventType, object any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == maxEvents {
		e.queue = e.queue[1:]
	}
	e.queue = append(e.queue, verbs.ProviderEvent{Type: t, Object: object})
	e.wake()
}

// Forget removes an object that is being closed from the unread events, which would keep it
// in memory.
func (e *Events) Forget(object any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.queue {
		if e.queue[i].Object == object {
			e.queue[i].Object = nil
		}
	}
}

func (e *Events) wake() {
	select {
	case e.signal <- struct{}{}:
	default:
	}
}

// Get waits for the next event.
func (e *Events) Get(ctx context.Context) (verbs.ProviderEvent, error) {
	for {
		e.mu.Lock()
		if len(e.queue) > 0 {
			ev := e.queue[0]
			e.queue = e.queue[1:]
			if len(e.queue) > 0 {
				e.wake()
			}
			e.mu.Unlock()
			return ev, nil
		}
		if e.closed {
			e.wake()
			e.mu.Unlock()
			return verbs.ProviderEvent{}, verbs.Errorf(e.device, "get async event", verbs.ErrClosed, "")
		}
		e.mu.Unlock()
		select {
		case <-e.signal:
		case <-ctx.Done():
			return verbs.ProviderEvent{}, ctx.Err()
		}
	}
}

// Close ends the queue; calls that wait in Get return.
func (e *Events) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.wake()
}
