package impi

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// numb is a source of events that cannot be waited for.
type numb struct{ tried, polled chan struct{} }

func (n numb) poll(bool) bool {
	select {
	case n.polled <- struct{}{}:
	default:
	}
	return false
}

func (n numb) block(context.Context) error {
	n.tried <- struct{}{}
	return errors.New("no descriptors")
}

// TestWatchFails: a source that cannot be waited for is said to be such, once, and
// polled nevertheless.
func TestWatchFails(t *testing.T) {
	var b logbuf.Buffer
	e := &engine{log: slog.New(slog.NewTextHandler(&b, nil))}
	e.life, e.stop = context.WithCancel(t.Context())
	n := numb{make(chan struct{}), make(chan struct{}, 100)}
	e.wg.Go(func() { e.watch(n, make(chan struct{})) })
	for range 5 {
		<-n.tried
		<-n.polled
	}
	e.stop()
	e.wg.Wait()
	require.Equal(t, 1, strings.Count(b.String(), "no descriptors"))
}

// sender is a source of events that sends the last thing that Close waits for, when it is let.
type sender struct {
	let  chan struct{}
	sent *bool
}

func (s sender) poll(bool) bool {
	select {
	case <-s.let:
		*s.sent = true
		return true
	default:
		return false
	}
}

func (s sender) block(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

type allSent struct {
	others
	set *bool
}

func (f allSent) over() bool { return *f.set }

// TestWatchWakesClose: Close waits for more than requests; what a watcher sends wakes it.
func TestWatchWakesClose(t *testing.T) {
	e := &engine{log: slog.New(slog.DiscardHandler), policy: wait.NewPolicy(wait.Setting{Mode: wait.Sleeping}, 1, nil), closing: true}
	e.life, e.stop = context.WithCancel(t.Context())
	defer e.stop()
	sent := false
	s := sender{make(chan struct{}, 1), &sent}
	over := make(chan error, 1)
	ctx := within(t)
	go func() {
		e.lock.Lock()
		defer e.lock.Unlock()
		over <- await(ctx, e, allSent{set: &sent})
	}()
	asleep(t, e)
	s.let <- struct{}{}
	var seen uint64
	go e.pollUntilCalled(s, &seen)
	require.NoError(t, <-over)
	require.NoError(t, ctx.Err(), "it was woken")
}

// TestRing: a waiter that sleeps for requests is woken when what it waits for has completed, or when nothing
// can any more; others with each completion.
func TestRing(t *testing.T) {
	for _, broken := range []bool{false, true} {
		mine, other := &request{state: done}, &request{state: moving}
		e := &engine{}
		if broken {
			e.broken = ErrClosed
		}
		woken := func(c interface{ sleeper() sleeper }) func() bool {
			s := c.sleeper()
			s.bell = make(chan struct{}, 1)
			e.sleepers = append(e.sleepers, s)
			return func() bool { return len(s.bell) == 1 }
		}
		both := []Request{{mine, 0}, {other, 0}}
		first, second, any, later := woken(mine), woken(other), woken(others{}), woken(Request{other, 7})
		either, neither := woken(&anyOf{list: both}), woken(&anyOf{list: both[1:]})
		some, all := woken(&allOf{list: both}), woken(&allOf{list: both[:1]})
		e.ring()
		require.True(t, either())
		require.Equal(t, broken, neither())
		require.Equal(t, broken, some())
		require.True(t, all())
		require.True(t, first())
		require.Equal(t, broken, second())
		require.True(t, any())
		require.True(t, later(), "another goroutine has collected it")
		require.Equal(t, broken, len(e.sleepers) == 0)
	}
}
