package channel

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestManyStreams: a waiter makes progress on messages of more streams than it drives at each check,
// also if it never sleeps.
func TestManyStreams(t *testing.T) {
	for _, how := range []string{"yield:1us", "yield"} {
		if how == "yield" && testing.Short() {
			continue
		}
		nodes := join(t, 2, WithProviders("shm"), WithWait(how))
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
