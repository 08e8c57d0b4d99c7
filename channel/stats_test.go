package channel

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStats: what has passed is counted on both sides, by peer.
func TestStats(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		nodes := join(t, 2, WithProviders(provider))
		want := Counts{}
		for _, size := range []int{8, 3000, 50_000} {
			s, _ := send(t, nodes[0], 1, size)
			r, _ := receive(t, nodes[1], 0, size)
			for range 5 {
				require.NoError(t, r.Start())
				require.NoError(t, s.Start())
				require.NoError(t, r.WaitContext(within(t)))
				require.NoError(t, s.WaitContext(within(t)))
				want.Messages++
				want.Bytes += uint64(size)
				if size < 4096 {
					want.Eager++
				}
			}
		}
		a, b := nodes[0].Stats(), nodes[1].Stats()
		require.Len(t, a.Peers, 1)
		require.Len(t, b.Peers, 1)
		a.Peers[0].Sent.Waited = 0 // the first may have waited for the connection
		for _, p := range []*PeerStats{&a.Peers[0], &b.Peers[0]} {
			p.Wakes, p.Retries = 0, 0 // who waited may have slept, and both may have connected at once
		}
		require.Equal(t, PeerStats{Rank: 1, Provider: provider, State: "up", Sent: want}, a.Peers[0])
		require.Equal(t, PeerStats{Rank: 0, Provider: provider, State: "up", Received: want}, b.Peers[0])
	})
}

// TestWakes: a peer that sleeps is woken, and that is counted; one that is awake
// costs nothing.
func TestWakes(t *testing.T) {
	nodes := join(t, 2, WithProviders("shm"))
	s, _ := send(t, nodes[0], 1, 8)
	r, _ := receive(t, nodes[1], 0, 8)
	wakes := func() uint64 { return nodes[0].Stats().Peers[0].Wakes }
	message := func() {
		require.NoError(t, errors.Join(s.Start(), s.WaitContext(within(t)), r.Start(), r.WaitContext(within(t))))
	}
	message()
	before := wakes()
	for range 100 { // received by somebody who does not wait
		message()
	}
	require.Equal(t, before, wakes())
	for try := 0; wakes() == before; try++ { // who sleeps looks every now and then
		require.Less(t, try, 1000)
		require.NoError(t, r.Start())
		slept := nodes[1].Stats().Sleeps
		done := make(chan error, 1)
		go func() { done <- r.WaitContext(within(t)) }()
		require.Eventually(t, func() bool { return nodes[1].Stats().Sleeps > slept }, limit, 10*time.Microsecond)
		require.NoError(t, errors.Join(s.Start(), s.WaitContext(within(t)), <-done))
	}
}

// TestReport: it has a line for each operation that is not over, and none for
// others; it comes unasked when nothing moves.
func TestReport(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		var stalled lockedBuffer
		nodes := join(t, 2, WithProviders(provider), WithReport(&stalled, time.Second))
		s, _ := send(t, nodes[0], 1, 8)
		r, _ := receive(t, nodes[1], 0, 8)
		require.NoError(t, s.Start())
		require.NoError(t, r.Start())
		require.NoError(t, r.WaitContext(within(t)))
		large, _ := send(t, nodes[0], 1, 100_000, OnStream(7))
		require.NoError(t, large.Start())
		waits, _ := receive(t, nodes[1], 0, 16, OnStream(9))
		require.NoError(t, waits.Start())

		var b bytes.Buffer
		require.NoError(t, nodes[0].Report(&b))
		require.Contains(t, b.String(), "rank 1, "+provider+" up: sent 2 messages, 100008 bytes; received 0, 0 bytes")
		require.Contains(t, b.String(), "send to rank 1, stream 7, start 1, 100000 bytes: waits for the receiver, for ")
		require.NotContains(t, b.String(), "stream 0")
		b.Reset()
		require.NoError(t, nodes[1].Report(&b))
		require.Contains(t, b.String(), "receive from rank 0, stream 9, start 1, 16 bytes: waits for the sender, for ")
		require.Eventually(t, func() bool {
			return bytes.Contains([]byte(stalled.String()), []byte("stream 7")) && bytes.Contains([]byte(stalled.String()), []byte("stream 9"))
		}, limit, 10*time.Millisecond)
	})
}
