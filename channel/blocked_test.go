package channel

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/internal/boot"
)

// blockingCalls are all calls at rank 0 that wait for rank 1, without a deadline.
var blockingCalls = []struct {
	name    string
	prepare func(t *testing.T, a, b *Node) (call func() error)
	pending string // in the report, while the call waits
	mapped  bool   // only where ranks of a host share memory
}{
	{name: "Exchange", pending: "exchange: waits for the other ranks", prepare: func(_ *testing.T, a, _ *Node) func() error {
		return func() error { return exchanged(a) }
	}},
	{name: "Exchange, twice", pending: "exchange: waits for the other ranks", prepare: func(_ *testing.T, a, _ *Node) func() error {
		return func() error { return both(func() error { return exchanged(a) }) }
	}},
	{name: "World", pending: "world of 2 ranks: waits for the other ranks, round 1 of 2", prepare: func(_ *testing.T, a, _ *Node) func() error {
		return func() error { return joined(a) }
	}},
	{name: "World, twice", pending: "world of 2 ranks: waits for the other ranks, round 1 of 2", prepare: func(_ *testing.T, a, _ *Node) func() error {
		return func() error { return both(func() error { return joined(a) }) }
	}},
	{name: "World, connecting", mapped: true, pending: "world of 2 ranks: waits for the connection to rank 1", prepare: func(t *testing.T, a, b *Node) func() error {
		deafen(t, a, 1)
		deafen(t, b, 0)
		ctx, cancel := context.WithCancel(t.Context())
		other := make(chan error, 1)
		go func() {
			_, err := b.World(ctx)
			other <- err
		}()
		t.Cleanup(func() {
			cancel()
			require.Error(t, <-other)
		})
		return func() error { return joined(a) }
	}},
	{name: "Split", pending: "split of a group of 2: waits for the other ranks", prepare: inWorld(func(g *Group) error {
		_, err := g.Split(context.Background(), 0, 0)
		return err
	})},
	{name: "Run", pending: "barrier of a group of 2", prepare: inWorld(func(g *Group) error { return g.Run(context.Background(), Barrier()) })},
	{name: "Run of much", pending: "allreduce of a group of 2", prepare: inWorld(func(g *Group) error {
		b := make([]float64, 1<<20)
		return g.Run(context.Background(), Allreduce(Sum, b, b))
	})},
	{name: "SumExact", pending: "allreduce of a group of 2", prepare: inWorld(func(g *Group) error {
		return SumExact(context.Background(), g, new(exact.Accumulator))
	})},
	{name: "Collective.Wait", pending: "alltoall of a group of 2", prepare: inWorld(func(g *Group) error {
		c, err := g.Declare(Alltoall(make([]float64, 100), make([]float64, 100)))
		if err == nil {
			err = c.Start()
		}
		return errors.Join(err, c.Wait())
	})},
	{name: "Wait for a receive", pending: "receive from rank 1", prepare: func(t *testing.T, a, b *Node) func() error {
		met(t, a, b)
		h, _ := receive(t, a, 1, 8)
		return started(t, h)
	}},
	{name: "Wait for a long send", pending: "send to rank 1", prepare: func(t *testing.T, a, b *Node) func() error {
		met(t, a, b)
		h, _ := send(t, a, 1, 1<<20)
		return started(t, h)
	}},
	{name: "Wait for a multiple", pending: "send to rank 1", prepare: func(t *testing.T, a, b *Node) func() error {
		met(t, a, b)
		s, _ := send(t, a, 1, 1<<20)
		r, _ := receive(t, a, 1, 8)
		h, err := a.Multiple(s, r)
		require.NoError(t, err)
		return started(t, h)
	}},
	{name: "WaitAll", pending: "receive from rank 1", prepare: func(t *testing.T, a, b *Node) func() error {
		met(t, a, b)
		s, _ := send(t, a, 1, 1<<20)
		r, _ := receive(t, a, 1, 8)
		startAll(t, s, r)
		return func() error { return WaitAll(s, r) }
	}},
	{name: "Wait for the connection", pending: "send to rank 1", prepare: func(t *testing.T, a, _ *Node) func() error {
		deafen(t, a, 1)
		h, _ := send(t, a, 1, 8)
		return started(t, h)
	}},
}

// both makes a call in two goroutines, and returns the error of one if both have one.
func both(call func() error) error {
	first := make(chan error, 1)
	go func() { first <- call() }()
	second := call()
	if err := <-first; err == nil {
		return err
	}
	return second
}

// inWorld prepares a call of a group that both ranks have.
func inWorld(call func(g *Group) error) func(t *testing.T, a, b *Node) func() error {
	return func(t *testing.T, a, b *Node) func() error {
		nodes, groups := []*Node{a, b}, make([]*Group, 2)
		each(t, 2, func(rank int) (err error) {
			groups[rank], err = nodes[rank].World(within(t))
			return err
		})
		return func() error { return call(groups[0]) }
	}
}

// met connects two ranks.
func met(t *testing.T, a, b *Node) {
	s, r := sendReceive(t, a, b, 8, OnStream(99))
	pass(t, s, r, r)
}

// started starts a handle that is to be waited for.
func started(t *testing.T, h *Handle) func() error {
	require.NoError(t, h.Start())
	return h.Wait
}

// deafen has what n connects to another rank at answer nothing: the kernel alone takes
// the connections.
func deafen(t *testing.T, n *Node, rank int) {
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	n.addresses[rank].port = uint16(l.Addr().(*net.TCPAddr).Port)
}

// TestCloseBlocked closes a node, twice at the same time, while a call at it waits for a
// rank that never comes. All three end before any bound on waiting for a peer has
// passed, and the others learn that the rank has left.
func TestCloseBlocked(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		for _, c := range blockingCalls {
			if c.mapped && provider != "shm" {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				setTo(t, &goodbyeTime, limit)
				nodes := join(t, 2, WithProviders(provider), WithPeerTimeout(limit), WithConnectTimeout(limit))
				a, b := nodes[0], nodes[1]
				call := c.prepare(t, a, b)
				over, closed := make(chan error, 1), make(chan error, 2)
				go func() { over <- call() }()
				require.Eventually(t, func() bool {
					var out strings.Builder
					return a.Report(&out) == nil && strings.Contains(out.String(), c.pending)
				}, limit, time.Millisecond)
				for range 2 {
					go func() { closed <- a.Close() }()
				}
				bound := time.NewTimer(limit / 2)
				defer bound.Stop()
				for range 3 {
					select {
					case err := <-over:
						require.ErrorIs(t, err, ErrClosed)
					case err := <-closed:
						if !errors.Is(err, ErrActive) { // of a send
							require.NoError(t, err)
						}
					case <-bound.C:
						require.Fail(t, "Close hangs")
					}
				}
				_, err := b.Exchange(within(t), nil)
				require.ErrorIs(t, err, boot.ErrLeft)
			})
		}
	})
}
