package lobby

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

type guest struct{ closed bool }

func (g *guest) Close() error {
	if g.closed {
		return net.ErrClosed
	}
	g.closed = true
	return nil
}

// TestLobby: the oldest stranger makes room; one that has left is safe.
func TestLobby(t *testing.T) {
	y := &Lobby{Max: 2}
	g := make([]guest, 5)
	for i := range 3 {
		require.True(t, y.Enter(&g[i]))
	}
	require.True(t, g[0].closed)
	require.False(t, y.Leave(&g[0]))
	require.True(t, y.Leave(&g[1]))
	require.True(t, y.Enter(&g[3]))
	require.False(t, g[2].closed)
	require.Equal(t, 2, y.Len())
	require.True(t, y.Evict())
	require.True(t, g[2].closed)
	require.False(t, y.Evict())
	require.False(t, g[3].closed)
	y.Close()
	require.False(t, y.Enter(&g[4]))
	require.Equal(t, []guest{{true}, {false}, {true}, {true}, {true}}, g)
}
