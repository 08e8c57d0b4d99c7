package wait

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPauses: pauses double up to the longest; the end of the context cuts one short.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for set, most := range map[time.Duration]time.Duration{0: 5000 * us, 100 * us: 100 * us} {
			p := Pauses{Most: set}
			var total, next time.Duration
			began := time.Now()
			for range 12 {
				next = min(max(2*next, 20*us), most)
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
