package soft

import (
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// RecvEntry is a posted receive work request.
type RecvEntry struct {
	WRID uint64
	SGEs []verbs.SGE
}

// RecvQueue is the ring of posted receives of a QP or an SRQ.
type RecvQueue struct {
	device string
	maxSGE int
	shared bool // an SRQ: several QPs take from it
	events *Events
	self   any // the SRQ, for its events

	lock       Lock // held to post; if shared, also to take
	ents       []RecvEntry
	mask       uint32
	size       uint32
	limit      uint32
	head, tail uint32 // atomic: the taker moves head, posters move tail
	polled     Polled
}

// Init allocates everything that posting needs. self is the SRQ, nil for a QP's own queue.
func (q *RecvQueue) Init(device string, maxWR, maxSGE int, self any, events *Events) {
	n := uint32(1)
	for int(n) < maxWR {
		n *= 2
	}
	q.device, q.maxSGE, q.shared, q.events, q.self = device, maxSGE, self != nil, events, self
	q.polled.shared = q.shared
	q.ents, q.mask, q.size = make([]RecvEntry, n), n-1, uint32(maxWR)
	sges := make([]verbs.SGE, int(n)*maxSGE)
	for i := range q.ents {
		q.ents[i].SGEs = sges[i*maxSGE : i*maxSGE : (i+1)*maxSGE]
	}
}

// Post appends receives and returns how many; fewer than len(wrs) without an error means that
// the queue is full.
func (q *RecvQueue) Post(wrs []verbs.RecvWR) (int, error) {
	q.lock.Lock()
	for i := range wrs {
		wr := &wrs[i]
		if len(wr.SGList) > q.maxSGE {
			q.lock.Unlock()
			return i, verbs.Errorf(q.device, "post receive", verbs.ErrInvalid, "%d SGEs, limit of the queue is %d", len(wr.SGList), q.maxSGE)
		}
		if q.tail-q.polled.count() >= q.size {
			q.lock.Unlock()
			return i, nil
		}
		e := &q.ents[q.tail&q.mask]
		e.WRID = wr.WRID
		e.SGEs = e.SGEs[:copy(e.SGEs[:len(wr.SGList)], wr.SGList)]
		wait.StoreRelease32(&q.tail, q.tail+1)
	}
	q.lock.Unlock()
	return len(wrs), nil
}

// Take moves the oldest receive to dst, which has room for its SGEs, and returns false if there
// is none. The caller holds the lock of a QP that uses the queue.
func (q *RecvQueue) Take(dst *RecvEntry) bool {
	if !q.shared {
		return q.take(dst)
	}
	q.lock.Lock()
	ok := q.take(dst)
	hit := ok && q.limit > 0 && q.tail-q.head < q.limit
	if hit {
		q.limit = 0
	}
	q.lock.Unlock()
	if hit {
		q.events.Add(verbs.EventSRQLimitReached, q.self)
	}
	return ok
}

func (q *RecvQueue) take(dst *RecvEntry) bool {
	h := q.head
	if h == atomic.LoadUint32(&q.tail) {
		return false
	}
	e := &q.ents[h&q.mask]
	dst.WRID = e.WRID
	dst.SGEs = append(dst.SGEs[:0], e.SGEs...)
	wait.StoreRelease32(&q.head, h+1)
	return true
}

// Peek returns the oldest receive without taking it, or nil. It is valid until Drop. The caller
// holds the QP's lock; the queue must not be an SRQ.
func (q *RecvQueue) Peek() *RecvEntry {
	h := q.head
	if h == atomic.LoadUint32(&q.tail) {
		return nil
	}
	return &q.ents[h&q.mask]
}

// Drop takes the receive that Peek returned.
func (q *RecvQueue) Drop() { wait.StoreRelease32(&q.head, q.head+1) }

// Polled returns the counter of the queue's polled completions.
func (q *RecvQueue) Polled() *Polled { return &q.polled }

// Forgo counts a receive that was taken and will have no completion.
func (q *RecvQueue) Forgo() { q.polled.add() }

// SetLimit arms the event of an SRQ.
func (q *RecvQueue) SetLimit(n int) error {
	q.lock.Lock()
	defer q.lock.Unlock()
	if n < 0 || n > int(q.size) {
		return verbs.Errorf(q.device, "modify SRQ", verbs.ErrInvalid, "limit %d, must be 0 to %d", n, q.size)
	}
	q.limit = uint32(n)
	return nil
}

// Attr returns the queue's attributes.
func (q *RecvQueue) Attr() verbs.SRQAttr {
	q.lock.Lock()
	defer q.lock.Unlock()
	return verbs.SRQAttr{MaxWR: int(q.size), MaxSGE: q.maxSGE, Limit: int(q.limit)}
}

// Reset discards all posted receives.
func (q *RecvQueue) Reset() {
	q.lock.Lock()
	wait.StoreRelease32(&q.head, q.tail)
	q.polled.all(q.tail)
	q.lock.Unlock()
}
