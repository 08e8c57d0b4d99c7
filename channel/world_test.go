package channel

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestWorldFailed: when the group of all ranks has failed, World says why, and which rank
// it was, each time it is called, at every rank that knows.
func TestWorldFailed(t *testing.T) {
	t.Parallel() // it waits most of the time
	apart(t, func(t *testing.T, provider string) {
		for _, c := range []struct {
			name    string
			fail    func(t *testing.T, groups []*Group)
			culprit int
		}{
			{"deadline", func(t *testing.T, groups []*Group) {
				require.ErrorIs(t, groups[1].Run(brief(t), Barrier()), ErrTimeout)
			}, 1},
			{"cancelled", func(t *testing.T, groups []*Group) {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				require.ErrorIs(t, groups[1].Run(ctx, Barrier()), context.Canceled)
			}, 1},
			{"death", func(_ *testing.T, groups []*Group) {
				groups[0].failNow(&Error{Op: "barrier", Rank: 2, Stream: -1, Err: ErrPeerDied})
			}, 2},
			{"node closed", func(t *testing.T, groups []*Group) { require.NoError(t, groups[2].node.Close()) }, 2},
			{"group closed", func(t *testing.T, groups []*Group) { require.NoError(t, groups[2].Close()) }, 2},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				groups := worlds(t, 3, WithProviders(provider))
				each(t, 3, func(rank int) error { return groups[rank].Run(within(t), Barrier()) })
				c.fail(t, groups)
				for _, g := range groups[:2] {
					known := g.Run(within(t), Barrier())
					require.Error(t, known)
					for range 2 {
						again, err := g.node.World(within(t))
						require.Nil(t, again)
						var e *Error
						require.ErrorAs(t, err, &e)
						require.Equal(t, "world", e.Op)
						require.Equal(t, c.culprit, e.Rank, "%v", err)
						for _, reason := range reasons[1:] {
							require.Equal(t, errors.Is(known, reason), errors.Is(err, reason), "%v\n%v", known, err)
						}
					}
				}
			})
		}
	})
}

// TestWorldDead: a group is not handed out when a member is known to have died, also if no
// collective has run since.
func TestWorldDead(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		groups := worlds(t, 3, WithProviders(provider))
		each(t, 3, func(rank int) error { return groups[rank].Run(within(t), Barrier()) })
		n := groups[0].node
		p := peerOf(t, n, 2)
		p.fail(ErrPeerDied) // as a connection that breaks
		g, err := n.World(within(t))
		require.Nil(t, g)
		requireError(t, err, ErrPeerDied, 2)
		ranks.Eventually(t, func() bool { // and those that know of no death are told
			_, err := groups[1].node.World(within(t))
			return errors.Is(err, ErrPeerDied)
		})
	})
}

// TestWorldFailedEarly: another member may have failed before the group is made here.
func TestWorldFailedEarly(t *testing.T) {
	nodes := join(t, 2)
	f := faultInfo{group: worldID, rank: 1, reason: reasonOf(ErrTimeout), text: "rank 1 has given up"}
	nodes[0].faulted(1, f)
	made := make(chan error)
	go func() {
		_, err := nodes[1].World(within(t))
		made <- err
	}()
	for range 2 {
		g, err := nodes[0].World(within(t))
		require.Nil(t, g)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorContains(t, err, f.text)
	}
	require.NoError(t, <-made)
}

// TestWorldClosed: a closed group is not returned either.
func TestWorldClosed(t *testing.T) {
	n := join(t, 1)[0]
	g, err := n.World(within(t))
	require.NoError(t, err)
	same, err := n.World(within(t))
	require.NoError(t, err)
	require.Same(t, g, same)
	require.NoError(t, g.Close())
	_, err = n.World(within(t))
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, n.Close())
	_, err = n.World(within(t))
	require.ErrorIs(t, err, ErrClosed)
}

// TestWorldDeadline: a call that waits for another one ends with its own context.
func TestWorldDeadline(t *testing.T) {
	nodes := join(t, 2)
	made := make(chan error)
	go func() {
		_, err := nodes[0].World(within(t))
		made <- err
	}()
	require.Eventually(t, func() bool { return len(nodes[0].making) > 0 }, limit, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := nodes[0].World(ctx)
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	_, err = nodes[0].World(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = nodes[1].World(within(t))
	require.NoError(t, err)
	require.NoError(t, <-made)
}
