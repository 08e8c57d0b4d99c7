package channel

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// broadcastTo makes a job of two ranks on one host of which rank 0 has broadcast n bytes,
// and returns what rank 1, which is late, still has to do.
func broadcastTo(t *testing.T, n int, opts ...Option) (root *Group, receive func(t *testing.T)) {
	groups := worlds(t, 2, append(opts, WithProviders("shm"))...)
	data := given(3, 0, n)
	require.NoError(t, groups[0].Run(within(t), Broadcast(data, 0)))
	return groups[0], func(t *testing.T) {
		got := make([]byte, n)
		require.NoError(t, groups[1].Run(within(t), Broadcast(got, 0)))
		require.Equal(t, data, got)
	}
}

// TestCloseBeforeLate: a root that closes its group, its node, or one during the other,
// waits asleep for a member that has not come yet, and returns when it has.
func TestCloseBeforeLate(t *testing.T) {
	for name, end := range map[string][]func(g *Group) error{
		"group": {(*Group).Close},
		"node":  {closeNode},
		"both":  {(*Group).Close, closeNode},
	} {
		t.Run(name, func(t *testing.T) {
			root, receive := broadcastTo(t, 1000, WithPeerTimeout(limit))
			closed := make(chan error, len(end))
			for _, end := range end {
				before := root.node.Stats().Sleeps
				go func() { closed <- end(root) }()
				require.Eventually(t, func() bool { return root.closed.Load() && root.node.Stats().Sleeps > before+2 }, limit, time.Millisecond)
			}
			require.Empty(t, closed)
			receive(t)
			for range end {
				require.NoError(t, <-closed)
			}
		})
	}
}

func closeNode(g *Group) error { return g.node.Close() }

// TestCloseWithoutLate: what a root has broadcast is there for a member that comes when the
// root, which has waited as long as it waits for a peer, is gone: nothing has failed.
func TestCloseWithoutLate(t *testing.T) {
	need.Full(t)
	for _, end := range []func(g *Group) error{(*Group).Close, closeNode} {
		for _, n := range []int{1, 8, 1000, 4096} {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				root, receive := broadcastTo(t, n)
				root.node.opt.peerTimeout = time.Millisecond // from here on: making the group takes longer
				require.NoError(t, end(root))
				receive(t)
			})
		}
	}
}
