package wait

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Patience ends when its time has passed, when it is cancelled, and with its parent.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, cancel := Patience(t.Context(), time.Minute)
		<-ctx.Done()
		require.Equal(t, context.DeadlineExceeded, ctx.Err())
		require.Equal(t, time.Minute, time.Since(begin))
		cancel()
		require.Equal(t, context.DeadlineExceeded, ctx.Err())

		ctx, cancel = Patience(t.Context(), time.Minute)
		require.NoError(t, ctx.Err())
		cancel()
		<-ctx.Done()
		require.Equal(t, context.Canceled, ctx.Err())

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ctx, cancel = Patience(short, time.Minute)
		defer cancel()
		<-ctx.Done()
		require.Equal(t, context.DeadlineExceeded, ctx.Err())

		ctx, cancel = Patience(t.Context(), 0)
		defer cancel()
		require.Equal(t, context.DeadlineExceeded, ctx.Err())
	})
}

// While the process is stopped, no time passes; but a process that always comes late does end.
func TestPatienceStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan error, 1)
		p := &patience{Context: t.Context(), end: func(err error) { end <- err }, counts: func() bool { return true }, step: time.Hour, left: 2, most: 4}
		stopped := func(d time.Duration) { p.last = time.Now().Add(-d); p.tick() }
		stopped(time.Hour)
		require.Equal(t, 1, p.left)
		stopped(100 * time.Hour)
		require.Equal(t, 1, p.left, "the time of the stop")
		stopped(100 * time.Hour)
		require.Empty(t, end)
		stopped(100 * time.Hour)
		require.Equal(t, context.DeadlineExceeded, <-end)
	})
}

// PatienceWhile counts no time in which it is not to.
func TestPatienceWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, cancel := PatienceWhile(t.Context(), time.Minute, func() bool { return time.Since(begin) > time.Hour })
		defer cancel()
		<-ctx.Done()
		require.Equal(t, context.DeadlineExceeded, ctx.Err())
		require.InDelta(t, time.Hour+time.Minute, time.Since(begin), float64(time.Minute/ticks))
	})
}
