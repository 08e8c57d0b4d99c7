package channel

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// complete requires that the next test of a handle reports its completion.
func complete(t *testing.T, h *Handle) {
	t.Helper()
	require.True(t, h.Active())
	done, err := h.Test()
	require.NoError(t, err)
	require.True(t, done)
}

// TestDone: the channel of each message, of whatever size and memory, is closed when it is complete, and
// not before, whether the herald spins or sleeps and whatever else it waits for.
func TestDone(t *testing.T) {
	for _, how := range []string{"", "sleep"} {
		t.Run("wait "+how, func(t *testing.T) {
			t.Setenv(EnvWait, how)
			everywhere(t, func(t *testing.T, a, b *Node) {
				deep(a, b)
				random := rand.New(rand.NewPCG(1, 2))
				var sends, receives []*Handle
				for i, size := range []int{8, 1000, 9000, 300_000, 8, 9000, 300_000, 1 << 20} {
					s, r := declareBoth(t, a, b, Contiguous(allocate(t, a, size, i < 4)), Contiguous(allocate(t, b, size, i < 4)), OnStream(i))
					sends, receives = append(sends, s), append(receives, r)
				}
				for round := range 6 {
					channels := make([]<-chan struct{}, len(sends))
					first, second := receives, sends
					if round%2 == 1 { // large ones wait for their receivers then
						first, second = sends, receives
					}
					for i, h := range first {
						require.NoError(t, h.Start())
						channels[i] = h.Done()
						require.Equal(t, channels[i], h.Done())
					}
					for _, next := range random.Perm(len(sends)) {
						if round%2 == 0 {
							open(t, channels[next])
						}
						require.NoError(t, second[next].Start())
						closes(t, second[next].Done())
						closes(t, channels[next])
						complete(t, first[next])
						complete(t, second[next])
						closes(t, first[next].Done())
					}
				}
			})
		})
	}
}

// TestDoneMultiple: the channel of a multiple is closed when all of its members are complete; each has one
// of its own, too.
func TestDoneMultiple(t *testing.T) {
	t.Setenv(EnvWait, "sleep")
	everywhere(t, func(t *testing.T, a, b *Node) {
		deep(a, b)
		var sends, receives []*Handle
		for i, size := range []int{8, 9000, 300_000} {
			s, r := sendReceive(t, a, b, size, OnStream(i))
			sends, receives = append(sends, s), append(receives, r)
		}
		all, err := b.Multiple(receives...)
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, all.Start())
			done, one := all.Done(), receives[1].Done()
			for i, s := range sends {
				open(t, done)
				require.NoError(t, s.Run(within(t)))
				if i == 1 {
					closes(t, one)
				}
			}
			closes(t, done)
			complete(t, all)
			for _, r := range receives {
				require.Nil(t, r.notice)
				require.Nil(t, r.sleeper.Load())
			}
		}
	})
}

// TestDoneMultipleMember: the channel of a multiple is closed when another goroutine has found the last
// member complete, or has cancelled it, while the herald sleeps.
func TestDoneMultipleMember(t *testing.T) {
	t.Setenv(EnvWait, "sleep")
	everywhere(t, func(t *testing.T, a, b *Node) {
		deep(a, b)
		for i, last := range []func(s, r *Handle){
			func(_, r *Handle) {
				ok, err := r.Cancel()
				require.NoError(t, err)
				require.True(t, ok)
			},
			func(s, r *Handle) {
				require.NoError(t, s.Run(within(t)))
				require.NoError(t, r.WaitContext(within(t)))
			},
			func(s, r *Handle) {
				require.NoError(t, s.Start())
				eventually(t, func() bool {
					done, err := r.Test()
					require.NoError(t, err)
					return done
				})
				require.NoError(t, s.WaitContext(within(t)))
			},
		} {
			s1, _ := send(t, a, b.Rank(), 8, OnStream(2*i))
			s2, _ := send(t, a, b.Rank(), 8, OnStream(2*i+1))
			r1, _ := receive(t, b, a.Rank(), 8, OnStream(2*i))
			r2, _ := receive(t, b, a.Rank(), 8, OnStream(2*i+1), Cancellable())
			all, err := b.Multiple(r1, r2)
			require.NoError(t, err)
			require.NoError(t, all.Start())
			done := all.Done()
			require.NoError(t, s1.Run(within(t)))
			eventually(t, func() bool { return !r1.incomplete() && b.herald.sleeper.Load() != nil })
			open(t, done)
			last(s2, r2)
			closes(t, done)
			complete(t, all)
		}
	})
}

// TestDoneTaken: a Test that reports the completion closes the channel, which another goroutine may wait
// for; the next start has a new one.
func TestDoneTaken(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		s, r := sendReceive(t, a, b, 8)
		closes(t, r.Done())
		var before <-chan struct{}
		for range 100 {
			require.NoError(t, r.Start())
			done := r.Done()
			require.NotEqual(t, before, done)
			open(t, done)
			require.NoError(t, s.Run(within(t)))
			require.NoError(t, r.WaitContext(within(t)))
			select {
			case <-done:
			default:
				require.Fail(t, "the channel is open after Wait")
			}
			before = done
		}
	})
}

// TestDoneAfterWait: a wait by the program that has slept and ended before the message leaves it to the
// herald again.
func TestDoneAfterWait(t *testing.T) {
	t.Setenv(EnvWait, "sleep")
	everywhere(t, func(t *testing.T, a, b *Node) {
		deep(a, b)
		for i, size := range []int{8, 300_000} {
			s, r := sendReceive(t, a, b, size, OnStream(i))
			require.NoError(t, r.Start())
			before := b.Stats().Sleeps
			done := r.Done()
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() { over <- r.WaitContext(ctx) }()
			eventually(t, func() bool { return b.Stats().Sleeps > before+1 }) // the herald sleeps, too
			cancel()
			require.ErrorIs(t, <-over, context.Canceled)
			open(t, done)
			require.NoError(t, s.Start())
			closes(t, done)
			complete(t, r)
			require.NoError(t, s.WaitContext(within(t)))
		}
	})
}

// TestDoneEnds: the end of the peer and that of the node close the channels, and the next Test says why.
func TestDoneEnds(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		for _, waits := range []string{"spin", "sleep"} {
			nodes := join(t, 3, WithProviders(provider), WithWait(waits))
			var handles []*Handle
			var channels []<-chan struct{}
			for rank := range 2 {
				x, _ := receive(t, nodes[2], rank, 8)
				y, _ := receive(t, nodes[2], rank, 300_000)
				s, _ := send(t, nodes[2], rank, 300_000)
				for _, h := range []*Handle{x, y, s} {
					require.NoError(t, h.Start())
					handles, channels = append(handles, h), append(channels, h.Done())
				}
			}
			require.NoError(t, nodes[0].Close())
			for i := range 3 {
				closes(t, channels[i])
				done, err := handles[i].Test()
				require.True(t, done)
				require.ErrorIs(t, err, ErrPeerLeft)
				open(t, channels[3+i])
			}
			over := make(chan error, 1)
			go func() { over <- nodes[2].Close() }()
			for i := range 3 {
				closes(t, channels[3+i])
				done, err := handles[3+i].Test()
				require.True(t, done)
				require.ErrorIs(t, err, ErrClosed)
				closes(t, handles[3+i].Done())
			}
			require.ErrorIs(t, <-over, ErrActive)
		}
	})
}

// TestDoneUnderUse: the program may test and wait for a handle, start it again, and start others, while
// the herald makes progress on it.
func TestDoneUnderUse(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		const rounds = 100
		sizes := []int{8, 3000, 20_000, 300_000}
		errs := make(chan error)
		for side, n := range []*Node{a, b} {
			for i, size := range sizes {
				l := Contiguous(allocate(t, n, size, i != 2))
				declare, peer := n.DeclareSend, b.Rank()
				if side == 1 {
					declare, peer = n.DeclareReceive, a.Rank()
				}
				h, err := declare(l, peer, OnStream(i))
				require.NoError(t, err)
				random := rand.New(rand.NewPCG(uint64(side), uint64(i)))
				go func() { errs <- useDone(within(t), random, rounds, h) }()
			}
		}
		for range 2 * len(sizes) {
			require.NoError(t, <-errs)
		}
	})
}

func useDone(ctx context.Context, random *rand.Rand, rounds int, h *Handle) error {
	for range rounds {
		if err := h.Start(); err != nil {
			return err
		}
		var done <-chan struct{}
		if random.IntN(4) > 0 {
			done = h.Done()
		}
		switch over, err := false, error(nil); random.IntN(4) {
		case 0:
			if err := h.WaitContext(ctx); err != nil {
				return err
			}
		case 1:
			if _, err := WaitAny(ctx, h); err != nil {
				return err
			}
		case 2:
			for ; !over; over, err = h.Test() {
				if err != nil || ctx.Err() != nil {
					return fmt.Errorf("test: %w, %w", err, ctx.Err())
				}
			}
		default:
			select {
			case <-h.Done():
			case <-ctx.Done():
				return ctx.Err()
			}
			if over, err = h.Test(); !over || err != nil {
				return fmt.Errorf("over: %v, %w", over, err)
			}
		}
		if done != nil {
			select {
			case <-done:
			default:
				return fmt.Errorf("the channel is open after a wait")
			}
		}
	}
	return nil
}
