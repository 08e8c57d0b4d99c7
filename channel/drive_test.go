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
				s, r := sendReceive(t, nodes[0], nodes[1], 8, OnStream(i))
				sends, receives = append(sends, s), append(receives, r)
			}
		}
		last, heard := sendReceive(t, nodes[0], nodes[1], 8, OnStream(streams))
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
		startAll(t, sends...)
		for _, s := range sends { // those that find no slot need the receiver, which waits for another message
			require.NoError(t, s.WaitContext(within(t)))
		}
		require.NoError(t, last.Run(within(t)))
		require.NoError(t, <-over)
		require.NoError(t, WaitAllContext(within(t), receives...))
	}
}
