package wait

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPauses: pauses double from the shortest to the longest; the end of the context cuts one short.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			p           Pauses
			least, most time.Duration
		}{
			{Pauses{}, 20 * us, 5000 * us},
			{Pauses{Most: 100 * us}, 20 * us, 100 * us},
			{Pauses{Least: 3 * us}, 3 * us, 5000 * us},
			{Redial(), 10 * time.Millisecond, time.Second},
		} {
			p, least, most := c.p, c.least, c.most
			var total, next time.Duration
			began := time.Now()
			for range 12 {
				next = min(max(2*next, least), most)
				total += next
				require.NoError(t, p.Next(t.Context()))
				require.Equal(t, total, time.Since(began))
			}
		}
		ended := errors.New("ended")
		ctx, end := context.WithCancelCause(t.Context())
		p := Pauses{Most: time.Hour, next: time.Hour}
		time.AfterFunc(time.Second, func() { end(ended) })
		began := time.Now()
		require.ErrorIs(t, p.Next(ctx), ended)
		require.Equal(t, time.Second, time.Since(began))
	})
}

// TestUntil: looking goes on until it is over; the last look comes after the end of the context.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.True(t, Until(t.Context(), func() bool { return time.Since(began) > time.Second }))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		looks := 0
		require.False(t, Until(ctx, func() bool { looks++; return false }))
		require.Equal(t, 2, looks)
	})
}
