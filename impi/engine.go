package impi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// engine moves the messages of the processes of one host, as IMPI calls what listens
// at one address: here a process of the operating system, most often with one
// process of the job in it.
//
// The lock guards all that is beneath it: requests, matchers, pairs, links. Whoever
// waits takes it, moves on what it can, and lets go of it. For users who compute a
// watcher does that for each event source; see watch.
type engine struct {
	lock wait.Lock

	log        *slog.Logger
	procs      []packet.Proc // of the job, by rank
	hostOf     []int32       // of a process
	ranks      map[packet.Proc]int32
	me         int // number of this host
	processes  []*process
	links      []*link // by host; nil: this one
	unexpected int     // bytes that a pair may have waiting
	eager      uint32  // longest message within the host that is complete when it is not received
	spins      int     // of a waiter, before it gives the CPU away
	looks      int     // more, before the lock is let go of
	hope       hope
	direct     direct

	table []*request
	pool  *request
	room  room
	anys  []*anyOf // that nobody waits for
	alls  []*allOf

	memories []*Memory // in order of their addresses
	stale    span.Set  // memory that messages may not lie in: it has been closed, or a peer may write to it
	stats    Stats
	owed     []*message // see fetch
	overdue  bool       // some have been for a while

	sources  []eventSource
	polls    uint64 // looks of users
	sleepers int
	bell     chan struct{} // closed when a request is complete and somebody sleeps
	kicks    []chan struct{}
	fences   int   // under way
	closing  bool  // Close has been called: nothing new is begun
	broken   error // nothing moves any more: the job is closed

	stop context.CancelFunc
	life context.Context
	wg   sync.WaitGroup
}

// process is a process of the job that is here.
type process struct {
	e        *engine
	rank     int32
	matchers map[uint64]*matcher
	last     *matcher      // that a packet was for
	waiting  int           // bytes of messages of this host that have met no receive
	strange  map[int32]int // by rank: matchers that it has begun of contexts that this process does not have yet
	pairs    []*pair       // by rank in the job; nil: not used yet, or within the host
	nextCID  uint64
	freed    span.Set // contexts of communicators that have been freed
}

// contextSpan is a context as an element of a set.
func contextSpan(cid uint64) span.Span { return span.Span{From: uintptr(cid), To: uintptr(cid) + 1} }

// eventSource is where packets come from.
type eventSource interface {
	// poll moves on what can be moved, and says whether anything was. The caller holds
	// the lock.
	poll() bool
	// block returns when there may be something to poll, or ctx ends. The caller does
	// not hold the lock.
	block(ctx context.Context) error
}

// matcher returns the matcher of a context, which it makes if nobody has used it yet:
// a peer, src, may send in a communicator before this process has it. nil: the
// communicator has been freed.
func (p *process) matcher(cid uint64, src int32) (*matcher, error) {
	if p.last != nil && p.last.cid == cid {
		return p.last, nil
	}
	m := p.matchers[cid]
	if m == nil {
		if p.freed.Meets(contextSpan(cid)) {
			return nil, nil
		}
		if p.strange[src] >= maxStrange {
			return nil, fmt.Errorf("%w: context %d, and %d others that nobody has, from rank %d", ErrOverflow, cid, p.strange[src], src)
		}
		if p.strange == nil {
			p.strange = map[int32]int{}
		}
		p.strange[src]++
		m = &matcher{p: p, cid: cid, by: src, from: make([]source, len(p.e.procs))}
		p.matchers[cid] = m
	}
	p.last = m
	return m, nil
}

// maxStrange bounds the contexts in which messages come from each process before this
// one has them.
const maxStrange = 1 << 8

// pair returns what there is between a process and one of another host.
func (p *process) pair(rank int32) *pair {
	q := p.pairs[rank]
	if q == nil {
		if l := p.e.links[p.e.hostOf[rank]]; l != nil {
			q = l.newPair(p, rank)
			p.pairs[rank] = q
		}
	}
	return q
}

// progress moves on what can be moved.
func (e *engine) progress() bool {
	moved := false
	for _, s := range e.sources {
		if s.poll() {
			moved = true
		}
	}
	return moved
}

// ring wakes who sleeps.
func (e *engine) ring() {
	if e.sleepers > 0 {
		close(e.bell)
		e.bell = make(chan struct{})
		e.sleepers = 0
	}
}

// condition is what somebody waits for. It is looked at with the lock held.
type condition interface{ over() bool }

// How a waiter waits: it spins, then gives the CPU to other processes, then sleeps
// until the bell.
const (
	spinBudget  = 2000
	spinLooks   = 15
	yieldBudget = 1000 // of a third of a microsecond where nobody wants the CPU
	checkEvery  = 64
	// shareLooks is how often somebody looks who shares its CPU with others, before it
	// gives it away: for some 10 µs, as what a peer on another CPU answers meanwhile, or
	// several do, comes sooner than the CPU would be back.
	shareLooks = 250
)

// hope says whether it is worth while to spin for whom shares its CPU: the more often it
// has been in vain, as it is for whom waits for somebody who wants the same CPU, the
// less often that is tried.
type hope struct{ vain, skip int }

const (
	hopeVain = 2 // times in vain in a row change nothing
	hopeMost = 5 // of so many more each doubles how often it is not tried
)

func (h *hope) looks(n int) int {
	if h.skip > 0 {
		h.skip--
		return 0
	}
	return n
}

func (h *hope) note(fulfilled bool) {
	if fulfilled {
		h.vain = 0
	} else if h.vain++; h.vain > hopeVain {
		h.skip = 1 << min(h.vain-hopeVain-1, hopeMost)
	}
}

// waiters counts the goroutines of this process that have spun in vain: several must
// let each other run.
var waiters atomic.Int32

// await moves things on until c is over or ctx ends. The caller holds the lock, and
// does so again when it returns.
func await[C condition](ctx context.Context, e *engine, c C) error {
	patient := false
	for i, looks := 0, 1; ; i, looks = i+1, looks+1 {
		if c.over() {
			break
		}
		if e.broken != nil && e.fences == 0 {
			return e.ended(patient, e.broken)
		}
		e.polls++
		moved := e.progress()
		n := e.looks
		if e.spins == 0 {
			n = e.hope.looks(n)
		}
		for range n {
			if moved || c.over() {
				break
			}
			wait.Pause(1)
			moved = e.progress()
		}
		if c.over() {
			break
		}
		if e.spins == 0 && n > 0 {
			e.hope.note(moved)
		}
		if moved {
			i = 0
		}
		check := looks%checkEvery == 0
		switch {
		case (moved || i < e.spins) && !check:
			e.lock.Unlock()
			wait.Pause(1) // others get a chance
			e.lock.Lock()
			continue
		case i < e.spins+yieldBudget:
			if i >= e.spins && !patient {
				patient = true
				waiters.Add(1)
				e.fetchOwed()
			}
			e.lock.Unlock()
			if check || waiters.Load() > 1 {
				runtime.Gosched()
			}
			if i >= e.spins {
				wait.Yield()
			}
			e.lock.Lock()
			if !check {
				continue
			}
		default:
			e.sleep(ctx)
		}
		if err := ctx.Err(); err != nil && !c.over() {
			return e.ended(patient, lapsed(err))
		}
	}
	if e.spins == 0 {
		e.hope.vain = 0
	}
	return e.ended(patient, nil)
}

// ended ends a wait, of whom waiters counts if he was patient.
func (e *engine) ended(patient bool, err error) error {
	if patient {
		waiters.Add(-1)
	}
	return err
}

// lapsed is the error of a call whose context has ended with err.
func lapsed(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return err
}

// sleep lets the watchers move things on, until a request is complete.
func (e *engine) sleep(ctx context.Context) {
	e.sleepers++
	bell := e.bell
	e.fetchOwed() // which may ring
	e.lock.Unlock()
	for _, k := range e.kicks {
		select {
		case k <- struct{}{}:
		default:
		}
	}
	select {
	case <-bell:
		e.lock.Lock()
	case <-ctx.Done():
		e.lock.Lock()
		if e.bell == bell {
			e.sleepers--
		}
	}
}
