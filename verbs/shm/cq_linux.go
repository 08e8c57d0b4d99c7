package shm

import (
	"math/bits"
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

	// only is the QP of a CQ that has no other and no board: the QP's own lock suffices.
	only atomic.Pointer[QP]

	// driving is held by a Poll that goes through several QPs: it checks their inboxes
	// without their locks, and removing a QP waits for it. It is taken before the lock of a
	// QP. It guards the fields that follow.
	driving soft.Lock
	qps     []*QP  // by their places on the board; nil: a free one
	board   board  // nil: Poll looks at each QP
	unit    int    // first unit of this board among the context's boards
	units   int    // units of this board
	first   uint32 // place where the next Poll begins
	looks   uint64 // polls of the board

	// For the engine: the count of polls when it last looked, and whether it had grown.
	lastPolls uint64
	polled    bool
}

// Variables for tests.
var (
	// fewQPs is the number of QPs up to which Poll checks each, at 3 ns, without a board.
	fewQPs = 8
	// lookAnyway: one in so many Polls, a power of two, checks a QP whose bit is not set,
	// each in turn.
	lookAnyway uint64 = 256
)

// CreateCQ creates a CQ.
func (c *Context) CreateCQ(cqe int, ch verbs.ProviderCompChannel) (verbs.ProviderCQ, error) {
	q := &CQ{ctx: c}
	q.Device, q.Self, q.Events = deviceName, q, c.events
	if ch != nil {
		q.Channel = ch.(*soft.CompChannel)
	}
	// An armed CQ will not be polled until an event comes. If the engine already serves
	// the CQ, a new message wakes it; otherwise it must be woken now.
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
		// With one CPU per process, goroutines that connect run only if the goroutine
		// that spins here lets them.
		wait.LetRun()
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

// pollAll checks all QPs, starting at another one each time, so that a busy QP and a short s
// do not starve the others.
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

// pollNoted checks the QPs whose bits are set on the board, in turn. It clears bits of no QP, too: a peer may
// set the one that it was told of before the place was another CQ's.
func (q *CQ) pollNoted(s *soft.Sink) {
	if q.looks++; q.looks&(lookAnyway-1) == 0 {
		q.board.set(uint32(q.looks / lookAnyway % uint64(len(q.qps))))
	}
	if q.board.empty() {
		return
	}
	n := uint32(len(q.board) * 64)
	first := min(q.first, n)
	q.pollBetween(first, n, s)
	q.pollBetween(0, first, s)
}

func (q *CQ) pollBetween(i, end uint32, s *soft.Sink) {
	for i = q.board.next(i, end); i < end && s.N < len(s.WCs); i = q.board.next(i+1, end) {
		q.board.clear(i)
		q.first = i + 1
		if int(i) >= len(q.qps) {
			continue
		}
		// Work that it leaves, and messages that came meanwhile, are for the next Poll.
		if qp := q.qps[i]; qp != nil && qp.ready() && (!qp.move(s) || qp.ready()) {
			q.board.set(i)
		}
	}
}

// move makes progress on the QP, unless its lock is taken.
func (q *QP) move(s *soft.Sink) bool {
	if !q.TryLock() {
		return false
	}
	q.progress(s)
	q.Unlock()
	return true
}

// add adds a QP and gives it a place.
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

// remove removes a QP from the CQ; once it returns, no Poll accesses the QP without its lock.
func (q *CQ) remove(qp *QP) {
	q.driving.Lock()
	defer q.driving.Unlock()
	q.qps[slices.Index(q.qps, qp)] = nil
	q.alone()
}

// alone sets q.only.
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

// goByBoard makes Poll use a board with a place for each QP, if the context has one left. It
// tells the peers to set their bits there from now on. A peer that has not seen that yet has
// written before the barrier; checking all QPs once finds its message. (Without membarrier,
// both its write and telling it are full fences.) A bit that a peer still sets at an old
// place may belong to another CQ by then, and costs that CQ one check.
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

// resize replaces the board by one of so many units, or by none.
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

// place sets the place of QP i on the board.
func (q *CQ) place(i int) {
	if qp := q.qps[i]; qp != nil {
		place := 0
		if q.board != nil {
			place = q.unit*unitPlaces + i + 1
		}
		qp.placed(q, uint32(place))
	}
}

// Close ends the CQ, which no QP uses any more. A running Poll must find no QP and no board:
// the board may soon be another CQ's, or unmapped.
func (q *CQ) Close() error {
	q.driving.Lock()
	q.qps = nil
	q.resize(0)
	q.driving.Unlock()
	listRemove(&q.ctx.mu, &q.ctx.allCQs, q)
	q.CQ.Close()
	return nil
}
