package wait

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A play runs goroutines one at a time, in an order that it chooses, from one point to the next.
type play struct {
	mu       sync.Mutex
	names    map[string]string // of goroutines, by their numbers
	waiting  map[string]*point // by name
	started  int
	prefix   []int // what to choose
	options  []int // how many there were
	chosen   []string
	last     string
	preempts int // how often one more may be interrupted
}

// point is where a goroutine waits for its turn.
type point struct {
	turn    chan struct{}
	enabled func() bool
}

// start starts a goroutine, which first waits for its turn.
func (p *play) start(run func()) {
	p.mu.Lock()
	p.started++
	name := fmt.Sprint(p.started)
	p.mu.Unlock()
	go func() {
		p.mu.Lock()
		p.names[number()] = name
		p.mu.Unlock()
		p.at()
		run()
	}()
}

// number is that of this goroutine.
func number() string {
	var b [64]byte
	n, _, _ := strings.Cut(strings.TrimPrefix(string(b[:runtime.Stack(b[:], false)]), "goroutine "), " ")
	return n
}

// stop waits for the turn of this goroutine.
func (p *play) stop(enabled func() bool) {
	at := &point{make(chan struct{}), enabled}
	p.mu.Lock()
	if name := p.names[number()]; name != "" {
		p.waiting[name] = at
	}
	p.mu.Unlock()
	<-at.turn
}

func (p *play) at() { p.stop(func() bool { return true }) }

// run gives turns until no goroutine can go on.
func (p *play) run() {
	for {
		synctest.Wait()
		p.mu.Lock()
		var ids []string
		for id, at := range p.waiting {
			if at.enabled() {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		if i := slices.Index(ids, p.last); i >= 0 { // the default is to go on
			ids = slices.Insert(slices.Delete(ids, i, i+1), 0, p.last)
			if p.preempts == 0 {
				ids = ids[:1]
			}
		}
		if len(ids) == 0 {
			p.mu.Unlock()
			return
		}
		choice := 0
		if n := len(p.options); n < len(p.prefix) {
			choice = p.prefix[n]
		}
		p.options = append(p.options, len(ids))
		id := ids[choice]
		if choice > 0 && ids[0] == p.last {
			p.preempts--
		}
		p.last = id
		p.chosen = append(p.chosen, id)
		at := p.waiting[id]
		delete(p.waiting, id)
		p.mu.Unlock()
		close(at.turn)
	}
}

// explore plays in all orders with at most so many preemptions, and returns how many there are.
func explore(t *testing.T, preempts int, scene func(p *play) (over func() bool)) int {
	var prefix []int
	for n := 1; ; n++ {
		p := &play{names: map[string]string{}, waiting: map[string]*point{}, prefix: prefix, preempts: preempts}
		synctest.Test(t, func(t *testing.T) {
			over := scene(p)
			p.run()
			if !over() {
				t.Fatalf("order %d: a goroutine sleeps for ever: %v", n, p.chosen)
			}
		})
		prefix = prefix[:0]
		for i := range p.options {
			c := 0
			if i < len(p.prefix) {
				c = p.prefix[i]
			}
			prefix = append(prefix, c)
		}
		i := len(prefix) - 1
		for i >= 0 && prefix[i]+1 >= p.options[i] {
			i--
		}
		if i < 0 {
			return n
		}
		prefix = slices.Clone(prefix[:i+1])
		prefix[i]++
	}
}

type flag struct {
	set     atomic.Bool
	sleeper atomic.Pointer[Sleeper]
}

func (f *flag) Ready() bool { return f.set.Load() }

// sleepers are waits, each for a flag.
func (p *play) sleepers(n int) (s *Sleepers, b *Bell, flags []*flag, over func() bool) {
	b = &Bell{}
	s = NewSleepers(b, func() time.Duration { return 0 })
	s.at = p.at
	s.sleep = func(mark uint32, _ time.Duration) { p.stop(func() bool { return b.mark() != mark }) }
	var left atomic.Int32
	for range n {
		f := &flag{}
		flags = append(flags, f)
		left.Add(1)
		p.start(func() {
			for !f.set.Load() {
				t := s.Enter(f)
				f.sleeper.Store(t)
				p.at()
				if !f.set.Load() {
					s.Sleep(context.Background(), t, 0)
				}
				f.sleeper.Store(nil)
				s.Leave(t)
			}
			left.Add(-1)
		})
	}
	return s, b, flags, func() bool { return left.Load() == 0 && b.Listeners() == 0 && s.Late() == 0 && len(s.all) == 0 }
}

// ring is a ringer of another process.
func (p *play) ring(b *Bell, flags ...*flag) {
	p.start(func() {
		for _, f := range flags {
			f.set.Store(true)
			p.at()
			if b.Listeners() > 0 { // Bell.Ring
				p.at()
				b.wake()
			}
			p.at()
		}
	})
}

// TestNoRingLost: in whatever order sleepers and ringers take their steps, no sleeper sleeps on.
func TestNoRingLost(t *testing.T) {
	const all, few = 1000, 1
	preempts := 2
	if testing.Short() { // most orders are of two
		preempts = few
	}
	for name, c := range map[string]struct {
		preempts int
		scene    func(p *play) func() bool
	}{
		"one": {all, func(p *play) func() bool {
			_, b, f, over := p.sleepers(1)
			p.ring(b, f[0])
			return over
		}},
		"one, rung for another before": {all, func(p *play) func() bool {
			_, b, f, over := p.sleepers(1)
			p.ring(b, &flag{}, f[0])
			return over
		}},
		"one, by a goroutine": {all, func(p *play) func() bool {
			s, _, f, over := p.sleepers(1)
			p.finish(s, f[0])
			return over
		}},
		"two": {preempts, func(p *play) func() bool {
			_, b, f, over := p.sleepers(2)
			p.ring(b, f[0], f[1])
			return over
		}},
		"two by two": {preempts, func(p *play) func() bool {
			_, b, f, over := p.sleepers(2)
			p.ring(b, f[0])
			p.ring(b, f[1])
			return over
		}},
		"two, one of them by a goroutine": {preempts, func(p *play) func() bool {
			s, b, f, over := p.sleepers(2)
			p.ring(b, f[0])
			p.finish(s, f[1])
			return over
		}},
		"three": {few, func(p *play) func() bool {
			_, b, f, over := p.sleepers(3)
			p.ring(b, f[2], f[0], f[1])
			return over
		}},
		"two, one of which gives up": {preempts, func(p *play) func() bool {
			s, b, f, over := p.sleepers(1)
			ctx, cancel := context.WithCancel(context.Background())
			gone := make(chan struct{})
			p.start(func() {
				defer close(gone)
				u := s.Enter(&flag{})
				s.Sleep(ctx, u, 0)
				s.Leave(u)
			})
			p.start(cancel)
			p.ring(b, f[0])
			return func() bool {
				select {
				case <-gone:
					return over()
				default:
					return false
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Logf("%d orders", explore(t, c.preempts, c.scene))
		})
	}
}

// finish is a goroutine of this process that ends what a sleeper waits for.
func (p *play) finish(s *Sleepers, f *flag) {
	p.start(func() {
		f.set.Store(true)
		p.at()
		if t := f.sleeper.Load(); t != nil {
			p.at()
			s.Wake(t)
		}
	})
}

type deaf struct{}

func (deaf) Ready() bool { return false }

// TestLate: sleepers that a ringer has failed to wake look by themselves, and that is counted.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSleepers(&Bell{}, func() time.Duration { return 0 })
		s.sleep = func(_ uint32, d time.Duration) { time.Sleep(d) }
		var come atomic.Bool
		ends := make(chan bool, 3)
		for range cap(ends) {
			go func() {
				began := time.Now()
				for looks := 0; ; looks++ {
					x := s.Enter(deaf{})
					woken := s.Sleep(t.Context(), x, 0)
					s.Check(x, come.Load)
					s.Leave(x)
					if come.Load() {
						ends <- !woken && looks == 2 && time.Since(began) <= 3*lookAnyway+2*ringing
						return
					}
				}
			}()
		}
		time.Sleep(lookAnyway * 5 / 2)
		require.Zero(t, s.Late())
		come.Store(true)
		for range cap(ends) {
			require.True(t, <-ends)
		}
		require.EqualValues(t, cap(ends), s.Late())
	})
}

// endsAt is a context that ends at a time, without a channel that says so.
type endsAt struct {
	context.Context
	end time.Time
}

func (c endsAt) Deadline() (time.Time, bool) { return c.end, true }

// TestDeadlineAlone: a sleep ends at the deadline of a context without a Done channel, if its bound is not
// over before.
func TestDeadlineAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSleepers(&Bell{}, func() time.Duration { return 0 })
		s.sleep = func(_ uint32, d time.Duration) { time.Sleep(d) }
		ends := make(chan [2]time.Duration)
		for _, c := range []struct{ bound, slept time.Duration }{{0, 3}, {2, 2}, {5, 3}, {0, 3}} {
			go func() {
				began := time.Now()
				x := s.Enter(deaf{})
				s.Sleep(endsAt{context.Background(), began.Add(3 * time.Millisecond)}, x, c.bound*time.Millisecond)
				s.Leave(x)
				ends <- [2]time.Duration{c.slept * time.Millisecond, time.Since(began)}
			}()
		}
		for range 4 {
			slept := <-ends
			require.Equal(t, slept[0], slept[1])
		}
	})
}

// TestExplore: the exploration finds a ring that is lost.
func TestExplore(t *testing.T) {
	lost := 0
	orders := explore(t, 1000, func(p *play) func() bool {
		var set, listens, rung atomic.Bool
		done := false
		p.start(func() { // looks before it listens
			if !set.Load() {
				p.at()
				listens.Store(true)
				p.stop(rung.Load)
			}
			done = true
		})
		p.start(func() {
			set.Store(true)
			p.at()
			rung.Store(listens.Load())
		})
		return func() bool {
			if !done {
				lost++
				rung.Store(true)
				p.run()
			}
			return true
		}
	})
	require.Equal(t, []int{5, 1}, []int{orders, lost})
}
