package impi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/internal/memory"
	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// engine moves the messages of the processes of one host, IMPI's term for whatever listens at one
// address: here an operating system process, most often with a single process of the job in it.
//
// The lock guards everything below it: requests, matchers, pairs, links. A waiter takes the lock,
// makes what progress it can, and releases it. While the program computes, a watcher does this for
// each event source; see watch.
type engine struct {
	lock wait.Lock

	log        *slog.Logger
	procs      []packet.Proc // of the job, by rank
	hostOf     []int32       // of a process, by rank
	ranks      map[packet.Proc]int32
	me         int // number of this host
	processes  []*process
	links      []*link // by host; nil: this one
	unexpected int     // bytes that a pair may have waiting
	eager      uint32  // longest message within the host that is complete without being received
	policy     *wait.Policy
	direct     direct

	table      []*request
	pool       *request
	room       room
	packed     []*request // to be unpacked
	unpackings int        // receives that are being unpacked, those included
	polling    bool       // by a caller that calls unpackAll then

	busy [][]byte // packed messages that a lost peer may still write to, kept for ever
	anys []*anyOf // not in use
	alls []*allOf

	// Of Alloc; stale is what messages may not use: it has been closed, or a peer may still write to it.
	memories memory.Index[Memory]
	parted   chan struct{} // closed when Close has ended the use of memory of others
	stats    Stats
	owed     []*message // see fetch
	overdue  bool       // some have been owed for a while

	sources  []eventSource
	polls    uint64 // polls by callers
	sleepers []sleeper
	bells    []chan struct{} // not in use
	kicks    []chan struct{}
	notices  int  // channels of Done that are open
	fences   int  // in progress
	stages   int  // bytes of the stages that its links have had
	closing  bool // Close has been called: nothing new may start, and only posted receives match
	lost     losses
	broken   error // no more progress: the job is closed

	stop context.CancelFunc
	life context.Context
	wg   sync.WaitGroup
}

// process is a process of the job on this host.
type process struct {
	e        *engine
	rank     int32
	matchers map[uint64]*matcher
	last     *matcher      // used by the latest packet
	waiting  int           // bytes of unmatched messages within this host
	strange  map[int32]int // by rank: matchers it has caused for contexts that this process does not have yet
	pairs    []*pair       // by rank in the job; nil: not used yet, or within the host
	nextCID  uint64
	freed    span.Set // contexts of communicators that have been freed
}

// contextSpan is a context as an element of a set.
func contextSpan(cid uint64) span.Span { return span.Span{From: uintptr(cid), To: uintptr(cid) + 1} }

// eventSource is a source of packets.
type eventSource interface {
	// poll makes what progress it can and reports whether there was any. If it need not be all, it may
	// leave some to the next calls. The caller holds the lock.
	poll(all bool) bool
	// block returns when there may be something to poll, or ctx ends. The caller does not hold the
	// lock.
	block(ctx context.Context) error
}

// matcher returns the matcher of a context. It makes the matcher on first use, because a peer, src,
// may send in a communicator before this process has it. nil: the communicator has been freed.
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
			return nil, fmt.Errorf("%w: rank %d sent a message in context %d, which this process does not have, after messages in %d other unknown contexts", ErrOverflow, src, cid, p.strange[src])
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

// maxStrange bounds the contexts in which each process may send messages before this process has
// them.
const maxStrange = 1 << 8

// pair returns the state between a process here and one of another host.
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

// progress polls all sources once and reports whether anything moved. It may release the lock meanwhile.
func (e *engine) progress() bool {
	moved := e.poll(true)
	e.unpackAll()
	return moved
}

// glance is progress for a caller that calls it again and again.
func (e *engine) glance() bool {
	moved := e.poll(false)
	e.unpackAll()
	return moved
}

// pollSource is progress on one source.
func (e *engine) pollSource(s eventSource) bool {
	e.polling = true
	moved := s.poll(true)
	e.polling = false
	e.unpackAll()
	return moved
}

// poll polls all sources once. The caller calls unpackAll, before it releases the lock.
func (e *engine) poll(all bool) bool {
	moved := false
	e.polling = true
	for _, s := range e.sources {
		if s.poll(all) {
			moved = true
		}
	}
	e.polling = false
	return moved
}

// ring wakes the sleepers, but for those whose requests have yet to complete.
func (e *engine) ring() {
	broken := e.broken != nil && e.fences == 0
	e.sleepers = slices.DeleteFunc(e.sleepers, func(s sleeper) bool {
		over := broken || s.due()
		if over {
			s.bell <- struct{}{}
		}
		return over
	})
}

// condition is what a waiter waits for. It is evaluated with the lock held, by the waiter: that may make
// progress on it.
type condition interface {
	over() bool
	// sleeper says for whose completion it waits.
	sleeper() sleeper
}

// sleeper is a waiter that leaves progress to the watchers.
type sleeper struct {
	bell    chan struct{}            // rings once
	only    Request                  // for whose completion alone it waits
	several interface{ over() bool } // or for that of one or all of several; neither: for something else
}

// due says whether the completion of a request may end the wait. The caller holds the lock.
func (s *sleeper) due() bool {
	switch {
	case s.several != nil:
		return s.several.over()
	case s.only.r != nil:
		return s.only.over()
	}
	return true
}

// others is part of a condition that waits for more than requests.
type others struct{}

func (others) sleeper() sleeper { return sleeper{} }

// pollBatch is how many polls a waiter makes before it lets other goroutines take the lock.
const pollBatch = 16

// await makes progress until c is over or ctx ends. The caller holds the lock, on entry and on
// return.
func await[C condition](ctx context.Context, e *engine, c C) error {
	for i := range e.policy.Glances() {
		if c.over() {
			if i > 0 {
				e.policy.Glanced()
			}
			return nil
		}
		if e.broken != nil && e.fences == 0 {
			return e.broken
		}
		e.polls++
		if !e.glance() {
			wait.Pause(1)
		}
	}
	return awaitLong(ctx, e, c)
}

func awaitLong[C condition](ctx context.Context, e *engine, c C) error {
	w := e.policy.Begin()
	defer w.End()
	owed := false
	ended := func() bool { return c.over() || e.broken != nil && e.fences == 0 }
	for polls := 1; !ended(); polls++ {
		e.polls++
		moved := e.glance()
		if moved {
			w.Again()
		}
		if ended() || polls%pollBatch != 0 && (moved || w.Spinning()) {
			continue
		}
		e.lock.Unlock()
		step := wait.Check
		if moved {
			runtime.Gosched() // other goroutines may want the lock
		} else {
			step = w.Check()
		}
		e.lock.Lock()
		if !owed && (step > wait.Check || w.Long()) {
			owed = true
			e.fetchOwed()
		}
		switch { // the lock was free meanwhile
		case ended():
		case step == wait.GiveWay:
			e.lock.Unlock()
			w.GiveWay()
			e.lock.Lock()
		case step == wait.Sleep:
			e.sleep(ctx, c.sleeper())
			w.Woken()
		}
		if err := ctx.Err(); err != nil && !ended() {
			return lapsed(err)
		}
	}
	if !c.over() {
		return e.broken
	}
	return nil
}

// lapsed is the error of a call whose context has ended with err.
func lapsed(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return err
}

// asleep says whether something is awaited by what does not poll. The caller holds the lock.
func (e *engine) asleep() bool { return len(e.sleepers) > 0 || e.notices > 0 }

// kick makes the watchers look.
func (e *engine) kick() {
	for _, k := range e.kicks {
		select {
		case k <- struct{}{}:
		default:
		}
	}
}

// sleep leaves progress to the watchers until s is due.
func (e *engine) sleep(ctx context.Context, s sleeper) {
	var bell chan struct{}
	if n := len(e.bells); n > 0 {
		bell, e.bells = e.bells[n-1], e.bells[:n-1]
	} else {
		bell = make(chan struct{}, 1) // rings once before it is used again
	}
	s.bell = bell
	e.sleepers = append(e.sleepers, s)
	e.fetchOwed() // may ring the bell
	e.lock.Unlock()
	e.kick()
	select {
	case <-bell:
		e.lock.Lock()
	case <-ctx.Done():
		e.lock.Lock()
		if i := slices.IndexFunc(e.sleepers, func(s sleeper) bool { return s.bell == bell }); i >= 0 {
			e.sleepers = slices.Delete(e.sleepers, i, i+1)
		} else {
			<-bell
		}
	}
	e.bells = append(e.bells, bell)
}
