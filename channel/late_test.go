package channel

import (
	"fmt"
	"sync"
	"sync/atomic"
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
	looks := map[*Group]*atomic.Int32{}
	var mu sync.Mutex
	atQuiet = func(g *Group) {
		mu.Lock()
		defer mu.Unlock()
		if n := looks[g]; n != nil {
			n.Add(1)
		}
	}
	t.Cleanup(func() { atQuiet = nil })
	for name, end := range map[string][]func(g *Group) error{
		"group": {(*Group).Close},
		"node":  {closeNode},
		"both":  {(*Group).Close, closeNode},
	} {
		t.Run(name, func(t *testing.T) {
			root, receive := broadcastTo(t, 1000, WithPeerTimeout(limit))
			closed := make(chan error, len(end))
			var looked atomic.Int32
			mu.Lock()
			looks[root] = &looked
			mu.Unlock()
			for _, end := range end {
				before := looked.Load()
				go func() { closed <- end(root) }()
				eventually(t, func() bool { return looked.Load() > before+2 })
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
				root.node.opt.leaveTimeout = time.Millisecond
				require.NoError(t, end(root))
				receive(t)
			})
		}
	}
}
