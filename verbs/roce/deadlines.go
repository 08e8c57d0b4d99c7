package roce

import (
	"container/heap"
	"math"
	"sync"
	"sync/atomic"
)

// deadlines is a heap of the queue pairs of an adapter whose timers run. Its lock is the
// innermost.
type deadlines struct {
	next atomic.Int64 // the earliest, in time of the adapter's clock; never: there is none
	mu   sync.Mutex
	qps  dueHeap
}

const never = math.MaxInt64

// due is the deadline of a queue pair. deadlines.mu guards it.
type due struct {
	at    atomic.Int64 // 0: none
	index int          // in the heap
}

// set makes t the deadline of q unless it has an earlier one, and says whether no other deadline
// is earlier than t.
func (d *deadlines) set(q *qp, t int64) (earliest bool) {
	if at := q.due.at.Load(); at != 0 && at <= t {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch at := q.due.at.Load(); {
	case at == 0:
		q.due.at.Store(t)
		heap.Push(&d.qps, q)
	case at <= t:
		return false
	default:
		q.due.at.Store(t)
		heap.Fix(&d.qps, q.due.index)
	}
	return d.publish() > t
}

// pop takes the queue pair with the earliest deadline, if that is not after now; else nil.
func (d *deadlines) pop(now int64) *qp {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.qps) == 0 || d.qps[0].due.at.Load() > now {
		return nil
	}
	q := heap.Pop(&d.qps).(*qp)
	q.due.at.Store(0)
	d.publish()
	return q
}

func (d *deadlines) remove(q *qp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.due.at.Load() != 0 {
		heap.Remove(&d.qps, q.due.index)
		q.due.at.Store(0)
		d.publish()
	}
}

// publish sets next, and returns its previous value.
func (d *deadlines) publish() int64 {
	if len(d.qps) == 0 {
		return d.next.Swap(never)
	}
	return d.next.Swap(d.qps[0].due.at.Load())
}

// dueHeap is a heap.Interface.
type dueHeap []*qp

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due.at.Load() < h[j].due.at.Load() }

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].due.index, h[j].due.index = i, j
}

func (h *dueHeap) Push(x any) {
	q := x.(*qp)
	q.due.index = len(*h)
	*h = append(*h, q)
}

func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return q
}
