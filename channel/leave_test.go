package channel

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestCloseUnderUse closes a node while its handles are waited for, tested and started. These
// calls return ErrClosed, touch nothing that is gone, and report no message as complete that has
// not been moved.
func TestCloseUnderUse(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		rounds := need.InLong(3, 15)
		for round := range rounds {
			nodes := join(t, 2, WithProviders(provider))
			a, b := nodes[0], nodes[1]
			ping, pong := sendReceive(t, a, b, 8, OnStream(100))
			startAll(t, ping, pong)
			require.NoError(t, pong.WaitContext(within(t))) // connected
			var users, inside sync.WaitGroup
			use := func(do func() error) {
				inside.Add(1)
				users.Go(func() {
					inside.Done()
					require.ErrorIs(t, do(), ErrClosed)
				})
			}
			for i := range 2 {
				large, _ := send(t, a, 1, 1<<20, OnStream(i)) // without a receive
				require.NoError(t, large.Start())
				packed := declareSend(t, a, Contiguous(make([]byte, 3*pipeMost)), 1, OnStream(10+i))
				require.NoError(t, packed.Start())
				for _, h := range []*Handle{large, packed} {
					use(func() error {
						for {
							if done, err := h.Test(); done {
								return err
							}
							runtime.Gosched() // Close has to have its turn
						}
					})
				}
				r, _ := receive(t, a, 1, 100_000, OnStream(i))
				require.NoError(t, r.Start())
				use(r.Wait)
				group, err := a.Multiple(func() []*Handle {
					s, _ := send(t, a, 1, 100_000, OnStream(20+i))
					r, _ := receive(t, a, 1, 8, OnStream(20+i))
					return []*Handle{s, r}
				}()...)
				require.NoError(t, err)
				require.NoError(t, group.Start())
				use(group.Wait)
				eager, _ := send(t, a, 1, 8, OnStream(30+i))
				use(func() error {
					for {
						if err := eager.Start(); err != nil && !errors.Is(err, ErrActive) {
							return err
						}
						eager.Test()
						runtime.Gosched()
					}
				})
			}
			inside.Wait()
			for range round % 5 { // at other moments
				runtime.Gosched()
			}
			if err := a.Close(); !errors.Is(err, ErrActive) {
				require.NoError(t, err)
			}
			users.Wait()
			require.ErrorIs(t, ping.Start(), ErrClosed)
			require.NoError(t, b.Close())
		}
	})
}

// TestStartOfGone: a receive from a peer that has left is an error at once, unless
// its message is here.
func TestStartOfGone(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		nodes := join(t, 2, WithProviders(provider))
		a, b := nodes[0], nodes[1]
		s, r, out, in := sendReceiveBytes(t, a, b, 8)
		require.NoError(t, s.Start())
		require.NoError(t, r.Run(within(t)))
		require.NoError(t, s.WaitContext(within(t)))
		out[0] = 7
		require.NoError(t, s.Run(within(t)))
		require.NoError(t, a.Close())
		late, _ := receive(t, b, 0, 8, OnStream(1))
		if late.Start() == nil {
			require.ErrorIs(t, late.WaitContext(within(t)), ErrPeerLeft)
		} // known now
		require.NoError(t, r.Run(within(t)))
		require.Equal(t, byte(7), in[0])
		require.ErrorIs(t, r.Start(), ErrPeerLeft)
		require.ErrorIs(t, late.Start(), ErrPeerLeft)
	})
}

// TestGateTorn: a gate that is being opened for another start says nothing.
func TestGateTorn(t *testing.T) {
	var g gate
	g.open(1, where{handle: 7}, 100)
	_, n, ok := g.read(1)
	require.True(t, ok)
	require.EqualValues(t, 100, n)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for k := range uint64(100_000) {
			g.open(k+2, where{uint32(k + 2), uint32(k + 2), k + 2}, int(k+2))
		}
	}()
	for k := uint64(2); k < 100_000; {
		w := atomic.LoadUint64(&g.word)
		if at, n, ok := g.read(w); ok && w != 0 && w != 1 {
			require.Equal(t, where{uint32(w), uint32(w), w}, at)
			require.EqualValues(t, w, n)
			k = w
		}
		select {
		case <-done:
			return
		default:
		}
	}
	<-done
}

// TestFirstCancelled: Close names the first of the sends that it cancels: the one declared first.
func TestFirstCancelled(t *testing.T) {
	nodes := join(t, 2, WithProviders("shm"))
	talk(t, nodes[0], nodes[1])
	for stream := range 10 {
		s, _ := send(t, nodes[0], 1, 20_000, OnStream(stream+100))
		require.NoError(t, s.Start())
	}
	require.ErrorContains(t, nodes[0].Close(), "cancelled: 10; wait for sends before Close; the first: channel: close send to rank 1, stream 100, ")
}
