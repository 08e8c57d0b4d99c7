package wait

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Awaited is what a wait sleeps for.
type Awaited interface {
	// Ready reports whether it is worth looking again, whatever others have done meanwhile. Other
	// goroutines call it between Enter and Leave, one at a time. It does not block.
	Ready() bool
}

// Sleepers are the waits of this process that sleep until one bell rings. One of them, the leader,
// sleeps in the kernel; the others are parked in Go. When the bell rings, the leader wakes those that
// are Ready; when its own wait is, another one leads.
//
//	t := s.Enter(what)    ringers ring from here on
//	what is looked at once more
//	s.Sleep(ctx, t, bound)
//	s.Leave(t)
type Sleepers struct {
	bell  *Bell
	drive func() time.Duration

	late atomic.Uint64

	mu     sync.Mutex
	all    []*Sleeper // that have entered
	leader *Sleeper   // one of them; nil: each that is not woken leads
	looked time.Time  // when some have last looked by themselves
	next   int        // of all: which are next to do so
	alarms uint64     // calls of WakeAll
	unused []*Sleeper

	every   time.Duration                      // how often some look by themselves
	ringing time.Duration                      // how long Check waits for a ring
	sleep   func(mark uint32, d time.Duration) // the bell's; but for tests
	at      func()                             // for tests: called where others may come in between
}

// Sleeper is one wait that sleeps.
type Sleeper struct {
	what   Awaited
	place  int           // among all
	token  chan struct{} // capacity 1: woken, or made the leader, or to look by itself
	mark   uint32        // of the bell, before the wait looked last
	alarms uint64        // likewise
	woken  bool
	deep   bool // it will not look unless it is woken
}

// Some sleepers look by themselves each lookAnyway, in case that a ringer has failed to ring. That is
// rare because of its cost: the runtime's monitor, which rests while the leader sleeps for long, watches
// the beginning of each of its sleeps.
const (
	lookAnyway = time.Second
	lookMost   = 16
)

// How long a ringer may take from what a sleeper sees to the ring.
const ringing = 50 * time.Millisecond

// NewSleepers returns the sleepers of a bell. After each ring the leader calls drive, which makes the
// progress that no wait makes, and says when it is to be called again at the latest; 0: after the next
// ring.
func NewSleepers(b *Bell, drive func() time.Duration) *Sleepers {
	return &Sleepers{bell: b, drive: drive, every: lookAnyway, ringing: ringing, sleep: b.Sleep, at: func() {}}
}

// LookEvery sets how often sleepers look by themselves, for tests. It is called before the first Enter.
func (s *Sleepers) LookEvery(d time.Duration) { s.every = d }

// RingWithin sets how long a ringer may take from what a sleeper sees to the ring, for tests: on a loaded
// machine it may lack a CPU there. It is called before the first Enter.
func (s *Sleepers) RingWithin(d time.Duration) { s.ringing = d }

// Late is how many sleeps have ended by themselves although what they were for had come, without a ring.
func (s *Sleepers) Late() uint64 { return s.late.Load() }

// Enter makes a wait one that others wake. It is followed by a look, perhaps Sleep, and Leave.
func (s *Sleepers) Enter(what Awaited) *Sleeper {
	s.mu.Lock()
	var t *Sleeper
	if n := len(s.unused); n > 0 {
		t, s.unused = s.unused[n-1], s.unused[:n-1]
	} else {
		t = &Sleeper{token: make(chan struct{}, 1)}
	}
	select {
	case <-t.token: // given by a goroutine that took it for the one before
	default:
	}
	t.what, t.place, t.alarms, t.woken, t.deep = what, len(s.all), s.alarms, false, false
	if s.all = append(s.all, t); len(s.all) == 1 {
		s.looked = time.Now()
	}
	s.mu.Unlock()
	s.at()
	t.mark = s.bell.Listen()
	s.at()
	return t
}

// Sleep sleeps until what the wait is for may have come, ctx ends, or bound is over, if it is not 0. It
// reports whether the wait has been woken. A ctx that has no Done channel ends at its deadline.
func (s *Sleepers) Sleep(ctx context.Context, t *Sleeper, bound time.Duration) bool {
	var until time.Time
	if bound > 0 {
		until = time.Now().Add(bound)
	}
	if end, ok := ctx.Deadline(); ok && ctx.Done() == nil && (bound <= 0 || end.Before(until)) {
		until, bound = end, max(time.Until(end), 1)
	}
	s.mu.Lock()
	t.deep = true
	if s.leader == nil && !t.woken {
		s.leader = t
	}
	leads, woken := s.leader == t, t.woken
	s.mu.Unlock()
	s.at()
	if !leads && !woken {
		leads, woken = s.park(ctx, t, bound)
	}
	if leads {
		woken = s.lead(ctx, t, until)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.deep = false
	if s.leader == t {
		s.pass()
	}
	return woken
}

// pass makes another sleeper the leader. The caller holds mu.
func (s *Sleepers) pass() {
	s.leader = nil
	for i := len(s.all) - 1; i >= 0 && s.leader == nil; i-- {
		if o := s.all[i]; o.deep && !o.woken {
			s.leader = o
			o.give()
		}
	}
}

// park waits for a token, and reports whether the sleeper is to lead, or else has been woken.
func (s *Sleepers) park(ctx context.Context, t *Sleeper, bound time.Duration) (leads, woken bool) {
	var over <-chan time.Time
	if bound > 0 {
		timer := time.NewTimer(bound)
		defer timer.Stop()
		over = timer.C
	}
	ended := false
	select {
	case <-t.token:
	case <-ctx.Done():
		ended = true
	case <-over:
		ended = true
	}
	s.at()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader == t && t.deep && !t.woken && !ended, t.woken
}

// lead sleeps until the bell rings, again and again, and wakes the others. It reports whether its own
// wait has been woken.
func (s *Sleepers) lead(ctx context.Context, t *Sleeper, until time.Time) bool {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { s.alarm(t) })
		defer stop()
	}
	for {
		mark, looked, woken := s.look(t)
		again := time.Duration(0)
		if !woken && mark != t.mark {
			again = s.drive()
			_, _, woken = s.look(t) // that may be what some wait for
		}
		if woken || ctx.Err() != nil {
			return woken
		}
		s.at()
		now := time.Now()
		end := looked.Add(s.every)
		if again > 0 && now.Add(again).Before(end) {
			end = now.Add(again)
		}
		if !until.IsZero() && until.Before(end) {
			end = until
		}
		if d := end.Sub(now); d > 0 {
			s.sleep(mark, d)
		}
		s.at()
		if s.bell.mark() != mark {
			continue
		}
		if now = time.Now(); !now.Before(end) {
			s.nudge(now)
			return false
		}
	}
}

// nudge ends the sleep of some that are parked, without waking them, if that is due.
func (s *Sleepers) nudge(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.looked) < s.every {
		return
	}
	s.looked = now
	for range min(len(s.all), lookMost) {
		s.next = (s.next + 1) % len(s.all)
		t := s.all[s.next]
		t.deep = false
		t.give()
	}
}

// alarm ends the leader's sleep, but not that of others.
func (s *Sleepers) alarm(t *Sleeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leader == t {
		s.bell.wake()
	}
}

// look wakes all that are Ready. It returns the mark before it looked, when some have last looked by
// themselves, and whether t itself is to look.
func (s *Sleepers) look(t *Sleeper) (mark uint32, looked time.Time, woken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark = s.bell.mark()
	for _, o := range s.all {
		if o != t && !o.woken && o.what.Ready() {
			s.wake(o)
		}
	}
	if !t.woken && mark != t.mark {
		t.woken = t.what.Ready()
	}
	return mark, s.looked, t.woken
}

// wake wakes a sleeper. The caller holds mu.
func (s *Sleepers) wake(t *Sleeper) {
	if t.woken {
		return
	}
	t.woken = true
	if s.leader == t {
		s.bell.wake()
	}
	t.give()
}

func (t *Sleeper) give() {
	select {
	case t.token <- struct{}{}:
	default:
	}
}

// Wake wakes a sleeper, or what uses its place by now.
func (s *Sleepers) Wake(t *Sleeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake(t)
}

// WakeAll wakes all.
func (s *Sleepers) WakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alarms++
	for _, t := range s.all {
		s.wake(t)
	}
}

// Check looks once more, for a wait whose sleep has ended without being woken, and reports whether the
// wait is over. If so, and if that has not come just now, a ringer has failed to ring, which is counted.
func (s *Sleepers) Check(t *Sleeper, over func() bool) bool {
	s.mu.Lock()
	woken := t.woken
	t.woken = true // so that what over ends does not
	s.mu.Unlock()
	if !over() {
		return false
	}
	rung := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return woken || s.bell.mark() != t.mark || s.alarms != t.alarms
	}
	for began := time.Now(); !rung(); time.Sleep(time.Millisecond) {
		if time.Since(began) > s.ringing {
			s.late.Add(1)
			break
		}
	}
	return true
}

// Leave ends what Enter began.
func (s *Sleepers) Leave(t *Sleeper) {
	s.bell.Ignore()
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.all) - 1
	s.all[t.place] = s.all[last]
	s.all[t.place].place = t.place
	s.all[last], s.all = nil, s.all[:last]
	t.what = nil
	s.unused = append(s.unused, t)
}
