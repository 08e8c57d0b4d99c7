package channel

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWaitersTakeNoNodeLock: whoever goes to sleep, and whatever registers memory,
// does so although somebody else holds what is the node's.
func TestWaitersTakeNoNodeLock(t *testing.T) {
	nodes := join(t, 2, WithProviders("tcp"))
	a, b := nodes[0], nodes[1]
	s, _ := send(t, a, 1, 8)
	r, _ := receive(t, b, 0, 8)
	pass(t, s, r, r)
	m, err := a.Alloc(100)
	require.NoError(t, err)
	p, err := a.peer(1)
	require.NoError(t, err)
	require.Len(t, *a.engines.Load(), 1)
	done := make(chan error)
	a.mu.Lock()
	defer a.mu.Unlock()
	go func() {
		a.kickEngines()
		_, err := m.on(p.link.dev)
		done <- err
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-within(t).Done():
		require.Fail(t, "waits for the node")
	}
}
