package channel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRation: what takes a while is done again after three times as long, so that it takes a quarter of
// the time.
func TestRation(t *testing.T) {
	now := time.Duration(0)
	clock := func() time.Duration { return now }
	var r ration
	done := 0
	spend := func(took time.Duration) int {
		r.spend(clock, func() {
			done++
			now += took
		})
		return done
	}
	require.Equal(t, 1, spend(10*time.Microsecond))
	require.Equal(t, 1, spend(0))
	now += 29 * time.Microsecond
	require.Equal(t, 1, spend(0))
	now += time.Microsecond
	require.Equal(t, 2, spend(0))
	require.Equal(t, 3, spend(time.Millisecond), "what has taken no time may be done at once")
	now += 2 * time.Millisecond
	require.Equal(t, 3, spend(0))
}

// TestManyStreams: a waiter makes progress on messages of more streams than it drives at each check,
// also if it never has time for that but before it sleeps.
func TestManyStreams(t *testing.T) {
	for _, rationed := range []bool{false, true} {
		nodes := join(t, 2, WithProviders("shm"))
		const streams = 2 * fewStreams
		var sends, receives []*Handle
		for i := range streams {
			for range ringSlots + 16 { // more than there are slots
				s, _ := send(t, nodes[0], 1, 8, OnStream(i))
				r, _ := receive(t, nodes[1], 0, 8, OnStream(i))
				sends, receives = append(sends, s), append(receives, r)
			}
		}
		last, _ := send(t, nodes[0], 1, 8, OnStream(streams))
		heard, _ := receive(t, nodes[1], 0, 8, OnStream(streams))
		if rationed {
			nodes[1].driving.from.Store(int64(sinceStart() + time.Hour))
		}
		over := make(chan error, 1)
		go func() {
			var err error
			for _, r := range receives {
				err = r.Start()
				if err != nil {
					break
				}
			}
			if err == nil {
				err = heard.Run(within(t))
			}
			over <- err
		}()
		for _, s := range sends {
			require.NoError(t, s.Start())
		}
		for _, s := range sends { // those that find no slot need the receiver, which waits for another message
			require.NoError(t, s.WaitContext(within(t)))
		}
		require.NoError(t, last.Run(within(t)))
		require.NoError(t, <-over)
		require.NoError(t, WaitAllContext(within(t), receives...))
	}
}
