package channel

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestPrepared: with a message of the ring's data, the sender writes to the lines of the next one, as long as that,
// if a receive from the peer has ended since it last did, and to no message that has not been received.
func TestPrepared(t *testing.T) {
	const size, lines = 1000, 16
	need.Provider(t, "shm")
	nodes := join(t, 2, WithProviders("shm"))
	var sends, receives [2]*Handle
	message := bytes.Repeat([]byte{2}, size)
	in := make([]byte, size)
	send := func(from int) {
		require.NoError(t, sends[from].Start())
		require.NoError(t, sends[from].Wait())
	}
	receive := func(at int) {
		clear(in)
		require.NoError(t, receives[at].Start())
		require.NoError(t, receives[at].Wait())
		require.Equal(t, message, in)
	}
	for i := range nodes { // at first there are messages only one way
		sends[i] = declareSend(t, nodes[i], Contiguous(message), 1-i)
		receives[1-i] = declareReceive(t, nodes[1-i], Contiguous(in), i)
		for range 2 { // the second one is started after the ranks were connected
			send(i)
			receive(1 - i)
		}
	}
	s := sends[0].out
	prepared := func() (n int) {
		s.lock.Lock()
		defer s.lock.Unlock()
		for i := 0; i < len(s.r.data); i += 64 {
			if s.r.data[i] == 0 {
				n++
			}
			s.r.data[i] = max(s.r.data[i], 1)
		}
		return n
	}
	prepared()
	for range 20 {
		send(0)
		require.Equal(t, lines, prepared())
		for range 9 {
			send(0)
			require.Zero(t, prepared())
		}
		send(1)
		receive(0)
		send(0)
		require.Equal(t, lines, prepared())
		for range 11 { // which does not divide by the 4 of a part
			receive(1)
		}
		send(1)
		receive(0)
	}
}
