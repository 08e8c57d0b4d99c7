package channel

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestWaitAny: each of several messages ends one wait, in the order in which they come, whatever their
// size and however the wait passes.
func TestWaitAny(t *testing.T) {
	for _, how := range []string{"", "sleep"} {
		t.Run("wait "+how, func(t *testing.T) {
			t.Setenv(EnvWait, how)
			everywhere(t, func(t *testing.T, a, b *Node) {
				random := rand.New(rand.NewPCG(1, 2))
				var sends, receives []*Handle
				for i, size := range []int{8, 1000, 8, 9000, 300_000, 8} {
					s, r := sendReceive(t, a, b, size, OnStream(i))
					sends, receives = append(sends, s), append(receives, r)
				}
				for range 5 {
					startAll(t, receives...)
					for _, next := range random.Perm(len(sends)) {
						before := b.Stats().Sleeps
						got := make(chan int, 1)
						go func() {
							i, err := WaitAny(within(t), receives...)
							if err != nil {
								i = -2
							}
							got <- i
						}()
						if how != "" {
							eventually(t, func() bool { return b.Stats().Sleeps > before })
						}
						require.NoError(t, sends[next].Run(within(t)))
						require.Equal(t, next, <-got)
						require.False(t, receives[next].Active())
					}
					i, err := WaitAny(within(t), receives...)
					require.NoError(t, err)
					require.Equal(t, -1, i)
				}
			})
		})
	}
}

// TestWaitSome: all that is complete is reported at once, each once.
func TestWaitSome(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		var sends, receives []*Handle
		for i := range 4 {
			s, r := sendReceive(t, a, b, 8, OnStream(i))
			sends, receives = append(sends, s), append(receives, r)
		}
		startAll(t, receives...)
		i, err := TestAny(receives...)
		require.NoError(t, err)
		require.Equal(t, -1, i)
		for _, i := range []int{3, 1} {
			require.NoError(t, sends[i].Run(within(t)))
		}
		var got []Completion
		for len(got) < 2 {
			got, err = WaitSome(within(t), got, receives...)
			require.NoError(t, err)
		}
		require.ElementsMatch(t, []Completion{{Index: 1}, {Index: 3}}, got)
		for _, i := range []int{0, 2} {
			require.NoError(t, sends[i].Run(within(t)))
		}
		for _, want := range []int{0, 2} {
			require.NoError(t, receives[want].WaitContext(within(t)))
		}
		got, err = WaitSome(within(t), nil, receives...)
		require.NoError(t, err)
		require.Empty(t, got)
	})
}

// TestWaitAnyEnds: what ends a wait for several handles without one of them.
func TestWaitAnyEnds(t *testing.T) {
	nodes := join(t, 2)
	r, _ := receive(t, nodes[1], 0, 8)
	other, _ := receive(t, nodes[1], 0, 8)
	startAll(t, r, other)

	i, err := WaitAny(within(t))
	require.NoError(t, err)
	require.Equal(t, -1, i)
	for name, handles := range map[string][]*Handle{"nil": {r, nil}, "nodes": {r, must(receive(t, nodes[0], 1, 8))}} {
		i, err = WaitAny(within(t), handles...)
		require.ErrorIs(t, err, ErrInvalid, name)
		require.Equal(t, -1, i)
	}
	closed, _ := receive(t, nodes[1], 0, 8)
	require.NoError(t, closed.Close())
	i, err = TestAny(closed)
	require.NoError(t, err)
	require.Equal(t, -1, i)
	got, err := TestSome(nil, closed, r)
	require.NoError(t, err)
	require.Empty(t, got)
	ended, cancel := context.WithCancel(t.Context())
	over := asleep(t, nodes[1], func() error {
		_, err := WaitAny(ended, closed, r, other)
		return err
	})
	cancel()
	require.ErrorIs(t, <-over, context.Canceled)
	require.True(t, r.Active())

	over = asleep(t, nodes[1], func() error {
		_, err := WaitAny(context.Background(), r, other)
		return err
	})
	require.NoError(t, nodes[0].Close())
	require.ErrorIs(t, <-over, ErrPeerLeft)
	require.NoError(t, nodes[1].Close())
	_, err = WaitAny(t.Context(), r, other)
	require.ErrorIs(t, err, ErrClosed)
}

func must(h *Handle, _ []byte) *Handle { return h }

func testThree(a, b, c *Handle) error {
	_, err := TestAny(a, b, c)
	return err
}

// TestTestAnyAllocs: TestAny allocates nothing.
func TestTestAnyAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	everywhere(t, func(t *testing.T, a, b *Node) {
		var list [3]*Handle
		for i := range list {
			list[i], _ = receive(t, b, a.Rank(), 8)
			require.NoError(t, list[i].Start())
		}
		require.Zero(t, ranks.Allocs(100, 0, func() {
			if err := testThree(list[0], list[1], list[2]); err != nil {
				t.Error(err)
			}
		}))
		for range list {
			s, _ := send(t, a, b.Rank(), 8)
			require.NoError(t, s.Run(within(t)))
		}
		for range list {
			i, err := WaitAny(within(t), list[:]...)
			require.NoError(t, err)
			require.GreaterOrEqual(t, i, 0)
		}
	})
}
