package boot

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// silencePatience is how long a wait in Join lasts without a word: a variable for tests alone.
var silencePatience = 3 * time.Second

// reportAfter is how long a wait has lasted when it is reported for the n-th time, from 0.
func reportAfter(n int) time.Duration {
	switch n {
	case 0:
		return silencePatience
	case 1:
		return 10 * time.Second
	case 2:
		return 30 * time.Second
	}
	return time.Duration(n-2) * time.Minute
}

// silence is a wait that is logged now and then.
type silence struct {
	log   func(why error)
	begin time.Time

	mu    sync.Mutex
	n     int   // reports that were due
	due   bool  // one is due, and it was not known why
	why   error // what keeps the rank, or nil
	timer *time.Timer
	over  bool
}

type silenceKey struct{}

// breakSilence returns a context for a wait of at most patience, or for ever while that is 0: the wait is
// logged with what waitsFor tells it. stop ends that.
func breakSilence(ctx context.Context, patience func() time.Duration, text string, args ...any) (_ context.Context, stop func()) {
	s := &silence{begin: time.Now()}
	s.log = func(why error) {
		most := patience()
		if all := timeoutOf(ctx).most; all > 0 && (most == 0 || all < most) {
			most = all
		}
		if end, ok := ctx.Deadline(); ok && (most == 0 || end.Sub(s.begin) < most) {
			most = end.Sub(s.begin).Round(time.Second)
		}
		list := append(args[:len(args):len(args)], "waited", time.Since(s.begin).Round(time.Second))
		if most > 0 {
			list = append(list, "at most", most)
		}
		loggerOf(ctx).Warn(fmt.Sprintf("%s: %v", text, why), list...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(reportAfter(0), s.isDue)
	return context.WithValue(ctx, silenceKey{}, s), s.stop
}

// isDue is called when a report is.
func (s *silence) isDue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.due = true
	s.n++
	s.timer.Reset(time.Until(s.begin.Add(reportAfter(s.n))))
	s.tell()
}

func (s *silence) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.timer.Stop()
}

// tell logs the wait if it is time to, and known what for. s.mu is held.
func (s *silence) tell() {
	if s.due && s.why != nil && !s.over {
		s.due = false
		s.log(s.why)
	}
}

// waitsFor says what the rank that waits with ctx waits for now, nil for nothing worth a line.
func waitsFor(ctx context.Context, why error) {
	if s, ok := ctx.Value(silenceKey{}).(*silence); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.why = why
		s.tell()
	}
}
