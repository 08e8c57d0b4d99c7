package channel

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGateWakes: a receiver that cannot copy a message, as it does not know the sender's layout yet, and
// then computes, wakes the sender, which can.
func TestGateWakes(t *testing.T) {
	const size = 300_000
	nodes := join(t, 2, WithProviders("shm"), WithWait("sleep"))
	memory := func(n *Node) Layout {
		m, err := n.Alloc(size)
		require.NoError(t, err)
		return Contiguous(m.Bytes())
	}
	s, err := nodes[0].DeclareSend(memory(nodes[0]), 1)
	require.NoError(t, err)
	r, err := nodes[1].DeclareReceive(memory(nodes[1]), 0)
	require.NoError(t, err)
	eventually(t, func() bool { return s.peer().remoteInfo(r.id, 0) != nil && r.peer().remoteInfo(s.id, 0) != nil && r.in.r.Load() != nil })
	require.NoError(t, s.Start())
	slept := nodes[0].Stats().Sleeps
	over := make(chan error, 1)
	go func() { over <- s.WaitContext(within(t)) }()
	eventually(t, func() bool { return nodes[0].Stats().Sleeps > slept })
	r.peer().dropLayout(s.id)
	require.NoError(t, r.Start())
	require.NoError(t, <-over) // that no sleep ends by itself is asserted of each job
	require.NoError(t, r.WaitContext(within(t)))
}
