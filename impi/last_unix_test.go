//go:build unix

package impi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLastLook: what a peer has sent before its connection ended is received first,
// whichever way it came.
func TestLastLook(t *testing.T) {
	w := worlds(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
	from, to := w[0].e.links[1].carrier.(*rcCarrier), w[1].e.links[0].carrier.(*rcCarrier)
	const messages = 40
	size := func(k int) int { return []int{8, 6000}[k%2] }
	w[1].e.lock.Lock()
	for k := range messages {
		b := make([]byte, size(k))
		b[0] = byte(k)
		require.NoError(t, w[0].Send(within(t), b, 1, 4))
	}
	w[0].e.lock.Lock()
	from.tcp.close()
	w[0].e.lock.Unlock()
	for to.l.err == nil {
		to.look()
	}
	w[1].e.lock.Unlock()
	buf := make([]byte, 6000)
	for k := range messages {
		st, err := w[1].Recv(within(t), buf, 0, 4)
		require.NoError(t, err, "message %d", k)
		require.Equal(t, size(k), st.Len)
		require.Equal(t, byte(k), buf[0])
	}
	_, err := w[1].Recv(within(t), buf, 0, 4)
	require.ErrorIs(t, err, ErrPeerDied)
}
