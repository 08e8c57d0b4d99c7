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

// CQ is the queue of completions. A provider embeds it, adds the QPs that it
// polls, and is named to the channel as Self.
type CQ struct {
	Device  string
	Self    verbs.ProviderCQ
	Events  *Events
	Channel *CompChannel // nil: Block is how to wait
	// Kick makes the provider's engine drive this CQ's QPs from now on: nobody
	// is going to poll until an event comes.
	Kick func()

	count atomic.Uint32 // of the ring, for looking without the lock
	polls uint64        // calls of Poll, by which the engine sees that somebody attends; atomic
	bad   atomic.Uint32 // bits: overrun, closed
	armed atomic.Uint32

	lock Lock
	ring []completion
	head uint32

	blocked struct { // who waits in Block
		sync.Mutex
		n    int
		wake chan struct{} // closed, and made anew, by an event
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

// Polled counts the work requests of a work queue whose completion has been
// polled, or that have none. Until then they take up room in the queue, as on
// hardware: so a CQ of the size of its work queues does not overrun.
type Polled struct {
	direct uint32        // atomic; moved by who holds the lock of the queue's QP
	ring   atomic.Uint32 // moved by whoever takes from the ring of a CQ
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

// Init makes the queue ready; the other fields are set by then.
func (q *CQ) Init(cqe int) {
	q.ring = make([]completion, cqe)
	q.blocked.wake = make(chan struct{})
}

// Sink is where the completions of one call of Poll go: while the ring of CQ is
// empty, straight into the caller's slice.
type Sink struct {
	CQ  *CQ
	WCs []verbs.WC
	N   int
}

// Push adds a completion of a work request of owner to q: through the sink if it is q's, else through the
// ring. The caller holds the lock of the QP whose completion it is, so that
// completions of one QP stay in order. It returns false when the queue overran:
// the completion is lost, and the QP is to go to ERR.
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

// fire sends the event that the queue is armed for, if wc is one that it asks for.
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

// wakeAll ends every Block that is under way: each of them looks for itself.
func (q *CQ) wakeAll() {
	q.blocked.Lock()
	defer q.blocked.Unlock()
	close(q.blocked.wake)
	q.blocked.wake = make(chan struct{})
}

// Begin starts a Poll: it counts it, and takes what the ring holds. The error
// is the queue's own.
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

// Straight says that a completion may go directly to the sink, by Next: nothing
// is in the ring before it, and nobody waits for an event.
func (q *CQ) Straight(s *Sink) bool {
	return s != nil && s.CQ == q && s.N < len(s.WCs) && q.count.Load()|q.armed.Load() == 0
}

// Next returns the place of the next completion, of a work request of owner; the
// caller fills it in whole.
func (s *Sink) Next(owner *Polled) *verbs.WC {
	owner.add()
	wc := &s.WCs[s.N]
	s.N++
	return wc
}

// End finishes a Poll: what others have pushed to the ring meanwhile is taken.
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

// Forget removes the completions of a QP that is being reset or closed.
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
		// A request for any completion is not weakened by one for solicited only.
		cur := q.armed.Load()
		if cur >= want || q.armed.CompareAndSwap(cur, want) {
			break
		}
	}
	q.Kick()
	return nil
}

// Block arms the queue, and waits for a completion unless there is one already.
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

// Polls counts the calls of Poll so far.
func (q *CQ) Polls() uint64 { return atomic.LoadUint64(&q.polls) }

// Armed says that somebody waits for an event rather than polling.
func (q *CQ) Armed() bool { return q.armed.Load() != armedNot }

// Close ends the queue; who waits in Block returns.
func (q *CQ) Close() {
	q.bad.Or(closed)
	q.wakeAll()
}

// CompChannel hands events of armed CQs to who waits for them.
type CompChannel struct {
	device string
	mu     sync.Mutex
	queue  []verbs.ProviderCQ
	signal chan struct{} // capacity 1: the queue is not empty, or the channel closed
	closed bool
	fd     eventFD
}

// NewCompChannel makes a channel.
func NewCompChannel(device string) *CompChannel {
	return &CompChannel{device: device, signal: make(chan struct{}, 1), fd: noEventFD}
}

func (c *CompChannel) add(q verbs.ProviderCQ) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.queue = append(c.queue, q)
	c.fd.set()
	c.wake()
}

func (c *CompChannel) wake() {
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// FD makes the descriptor at the first call.
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
			c.wake() // for the next of several who wait
			c.mu.Unlock()
			return nil, verbs.Errorf(c.device, "get completion event", verbs.ErrClosed, "")
		}
		if len(c.queue) > 0 {
			q := c.queue[0]
			c.queue = c.queue[1:]
			if len(c.queue) == 0 {
				c.queue = nil
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

// Close ends the channel; who waits in Get returns.
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

// maxEvents bounds a queue that nobody reads; the oldest go first.
const maxEvents = 1 << 16

// NewEvents makes the queue.
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

// Forget takes an object that is being closed out of the events that nobody has
// read: they would keep it in memory.
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

// Close ends the queue; who waits in Get returns.
func (e *Events) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.wake()
}
