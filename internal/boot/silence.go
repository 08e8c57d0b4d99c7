package boot

import (
	"context"
	"sync"
	"time"
)

// silencePatience is how long a rank waits in Join without a word: a variable for tests alone.
var silencePatience = 3 * time.Second

// silence is a wait that is logged once, when it has lasted for silencePatience.
type silence struct {
	log func(why error)

	mu  sync.Mutex
	due bool  // it has lasted for so long
	why error // what keeps the rank, or nil
}

type silenceKey struct{}

// breakSilence returns a context for a wait of at most patience, or for ever while that is 0: with
// what waitsFor tells it, the wait is logged once. stop ends that.
func breakSilence(ctx context.Context, patience func() time.Duration, text string, args ...any) (_ context.Context, stop func() bool) {
	begin := time.Now()
	s := &silence{log: func(why error) {
		most := patience()
		if end, ok := ctx.Deadline(); ok && (most == 0 || end.Sub(begin) < most) {
			most = end.Sub(begin).Round(time.Second)
		}
		if most > 0 {
			args = append(args, "at most", most)
		}
		loggerOf(ctx).Warn(text, append(args, "error", why)...)
	}}
	timer := time.AfterFunc(silencePatience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.due = true
		s.tell()
	})
	return context.WithValue(ctx, silenceKey{}, s), timer.Stop
}

// tell logs the wait if it is time to, and known what for. s.mu is held.
func (s *silence) tell() {
	if s.due && s.why != nil && s.log != nil {
		s.log(s.why)
		s.log = nil
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
