package channel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// connected makes two nodes that are connected.
func connected(t *testing.T, provider string) (a, b *Node) {
	nodes := join(t, 2, WithProviders(provider))
	s, _ := send(t, nodes[0], 1, 8, OnStream(99))
	r, _ := receive(t, nodes[1], 0, 8, OnStream(99))
	pass(t, s, r, r)
	return nodes[0], nodes[1]
}

// TestNoRing: a stream whose ring cannot be had is not there, and can be declared
// again.
func TestNoRing(t *testing.T) {
	a, b := connected(t, "shm")
	p, err := a.peer(b.Rank())
	require.NoError(t, err)
	closed, err := p.link.dev.ctx.AllocPD()
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	declare := func() (*Handle, error) { return a.DeclareSend(Contiguous(make([]byte, 8)), b.Rank()) }
	p.mu.Lock()
	good := p.link.dev.pd
	p.link.dev.pd = closed
	p.mu.Unlock()
	_, err = declare()
	require.ErrorIs(t, err, verbs.ErrClosed)
	p.mu.Lock()
	p.link.dev.pd = good
	p.mu.Unlock()
	s, err := declare()
	require.NoError(t, err)
	r, _ := receive(t, b, a.Rank(), 8)
	pass(t, s, r, r)
}
