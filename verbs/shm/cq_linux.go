package shm

import (
	"math/bits"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// CQ is a completion queue and the QPs that polling it drives.
type CQ struct {
	soft.CQ
	ctx *Context

	// only is the QP of a CQ that has no other, and no board: its own lock is enough.
	only atomic.Pointer[QP]

	// driving is held by the Poll that goes through several QPs: it looks at their inboxes
	// without their locks, and removing a QP waits for it. It is taken before the lock of a
	// QP. It guards what follows.
	driving soft.Lock
	qps     []*QP  // by their places on the board; nil: a free one
	board   board  // nil: Poll looks at each QP
	unit    int    // of the context's boards, where this one begins
	units   int    // that it has
	first   uint32 // place where the next Poll begins
	looks   uint64 // at the board

	// Of the engine: the count of polls when it last looked, and whether it had grown.
	lastPolls uint64
	polled    bool
}

// Variables for tests.
var (
	// fewQPs is how many QPs Poll looks at one by one, at 3 ns each, with no board.
	fewQPs = 8
	// lookAnyway: one in so many Polls, a power of two, looks at a QP of which nothing is
	// noted, each in turn.
	lookAnyway uint64 = 256
)

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
		q.driving.Lock()
		defer q.driving.Unlock()
		for _, qp := range q.qps {
			if qp != nil && !qp.watched.Load() {
				c.kick()
				return
			}
		}
	}
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
	if qp := q.only.Load(); qp != nil {
		if qp.TryLock() {
			if qp.ready() {
				qp.progress(&s)
			}
			qp.Unlock()
		}
	} else {
		q.pollMany(&s)
	}
	q.End(&s)
	if s.N == 0 && q.ctx.wiring.Load() != 0 {
		// With one CPU per process the goroutines that connect run only if the
		// one that spins here lets them.
		runtime.Gosched()
	}
	return s.N, nil
}

// pollMany drives several QPs.
func (q *CQ) pollMany(s *soft.Sink) {
	if !q.driving.TryLock() {
		return
	}
	if q.board != nil {
		q.pollNoted(s)
	} else {
		q.pollAll(s)
	}
	q.driving.Unlock()
}

// pollAll looks at all QPs, in turn, so that a busy one and a short s do not starve the
// others.
func (q *CQ) pollAll(s *soft.Sink) {
	for range q.qps {
		if q.first++; int(q.first) >= len(q.qps) {
			q.first = 0
		}
		if qp := q.qps[q.first]; qp != nil && qp.ready() && qp.move(s) && s.N == len(s.WCs) {
			return
		}
	}
}

// pollNoted looks at the QPs that the board names, in turn.
func (q *CQ) pollNoted(s *soft.Sink) {
	n := uint32(len(q.qps))
	if q.looks++; q.looks&(lookAnyway-1) == 0 {
		q.board.set(uint32(q.looks / lookAnyway % uint64(n)))
	}
	first := q.first
	q.pollBetween(first, n, s)
	q.pollBetween(0, first, s)
}

func (q *CQ) pollBetween(i, end uint32, s *soft.Sink) {
	for i = q.board.next(i, end); i < end && s.N < len(s.WCs); i = q.board.next(i+1, end) {
		q.board.clear(i)
		// What it leaves undone, and what came meanwhile, is for the next Poll.
		if qp := q.qps[i]; qp != nil && qp.ready() && (!qp.move(s) || qp.ready()) {
			q.board.set(i)
		}
		if q.first = i + 1; int(q.first) == len(q.qps) {
			q.first = 0
		}
	}
}

// move lets the QP work, unless something else holds its lock.
func (q *QP) move(s *soft.Sink) bool {
	if !q.TryLock() {
		return false
	}
	q.progress(s)
	q.Unlock()
	return true
}

// add gives a QP a place.
func (q *CQ) add(qp *QP) {
	q.driving.Lock()
	defer q.driving.Unlock()
	i := slices.Index(q.qps, nil)
	if i < 0 {
		i = len(q.qps)
		q.qps = append(q.qps, nil)
	}
	q.qps[i] = qp
	switch {
	case len(q.qps) > max(fewQPs, q.units*unitPlaces):
		q.goByBoard()
	case q.board != nil:
		q.place(i)
	}
	q.alone()
}

// remove takes a QP off the CQ; when it returns no Poll looks at it any more
// without its lock.
func (q *CQ) remove(qp *QP) {
	q.driving.Lock()
	defer q.driving.Unlock()
	q.qps[slices.Index(q.qps, qp)] = nil
	q.alone()
}

// alone notes which QP is the only one.
func (q *CQ) alone() {
	var only *QP
	n := 0
	for _, qp := range q.qps {
		if qp != nil {
			only = qp
			n++
		}
	}
	if n > 1 || q.board != nil {
		only = nil
	}
	q.only.Store(only)
}

// goByBoard has Poll go by a board that has a place for each QP, if the context has one
// left. The peers are told to note there what they write from now on. One that has not seen
// that yet has written before the barrier, and is found by looking at all QPs once; without
// membarrier its writing was a full fence, as telling is. What is still noted at the old
// places may be about another CQ's by then, and costs it a look.
func (q *CQ) goByBoard() {
	had := q.units
	q.resize(1 << bits.Len(uint(len(q.qps)-1)/unitPlaces))
	if had|q.units == 0 {
		return
	}
	for i := range q.qps {
		q.place(i)
	}
	if !q.ctx.fenced {
		wait.Barrier()
	}
	if q.board != nil {
		for i := range q.qps {
			q.board.set(uint32(i))
		}
	}
}

// resize exchanges the board for one of so many units, or for none.
func (q *CQ) resize(units int) {
	c := q.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	c.units.mark(q.unit, q.units, false)
	q.board, q.units = nil, 0
	if units == 0 {
		return
	}
	if u, ok := c.units.take(units); ok {
		q.unit, q.units = u, units
		q.board = c.ctrl.boards[u*boardUnit : (u+units)*boardUnit]
	}
}

// place tells QP i its place on the board.
func (q *CQ) place(i int) {
	if qp := q.qps[i]; qp != nil {
		place := 0
		if q.board != nil {
			place = q.unit*unitPlaces + i + 1
		}
		qp.placed(q, uint32(place))
	}
}

// Close ends the CQ; no QP uses it any more. A Poll that is under way finds none, and no
// board, which would be another's, or unmapped.
func (q *CQ) Close() error {
	q.driving.Lock()
	q.qps = nil
	q.resize(0)
	q.driving.Unlock()
	listRemove(&q.ctx.mu, &q.ctx.allCQs, q)
	q.CQ.Close()
	return nil
}
