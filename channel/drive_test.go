package channel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRation: what takes a while is done again after three times as long, so that it takes a quarter of
// the time.
func TestRation(t *testing.T) {
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	var r ration
	done := 0
	spend := func(took time.Duration) int {
		r.spend(clock, func() {
			done++
			now = now.Add(took)
		})
		return done
	}
	require.Equal(t, 1, spend(10*time.Microsecond))
	require.Equal(t, 1, spend(0))
	now = now.Add(29 * time.Microsecond)
	require.Equal(t, 1, spend(0))
	now = now.Add(time.Microsecond)
	require.Equal(t, 2, spend(0))
	require.Equal(t, 3, spend(time.Millisecond), "what has taken no time may be done at once")
	now = now.Add(2 * time.Millisecond)
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
			nodes[1].driving.from.Store(time.Now().Add(time.Hour).UnixNano())
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
