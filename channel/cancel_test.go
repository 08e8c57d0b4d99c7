package channel

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// cancelSizes are inline, eager and longer messages.
var cancelSizes = []int{8, 1000, 9000, 300_000}

// cancellable declares a receive that can be cancelled.
func cancellable(t testing.TB, at *Node, from, size int, own bool) (*Handle, []byte) {
	b := allocate(t, at, size, own)
	return declareReceive(t, at, Contiguous(b), from, Cancellable()), b
}

// TestCancel: a receive that is cancelled is as if it had not been started, whether the ranks are connected
// or not: the message goes to the next one.
func TestCancel(t *testing.T) {
	for _, size := range cancelSizes {
		for _, own := range []bool{true, false} {
			t.Run(fmt.Sprint(size, own), func(t *testing.T) {
				everywhere(t, func(t *testing.T, a, b *Node) {
					out := allocate(t, a, size, own)
					s := declareSend(t, a, Contiguous(out), b.Rank())
					first, in := cancellable(t, b, a.Rank(), size, own)
					second, other := cancellable(t, b, a.Rank(), size, own)
					cancelled, err := first.Cancel()
					require.NoError(t, err)
					require.False(t, cancelled, "it is idle")
					for round := range 3 {
						startAll(t, first, second)
						done := first.Done()
						_, err := first.Cancel()
						require.ErrorIs(t, err, ErrInvalid)
						require.ErrorContains(t, err, fmt.Sprintf("start %d of the stream is the last", 2+2*round))
						for _, h := range []*Handle{second, first} {
							cancelled, err := h.Cancel()
							require.NoError(t, err)
							require.True(t, cancelled)
							require.False(t, h.Active())
						}
						closes(t, done)
						startAll(t, second, first)
						for i, got := range [][]byte{other, in} {
							out[size-1] = byte(2*round + i + 1)
							require.NoError(t, s.Start())
							require.NoError(t, []*Handle{second, first}[i].WaitContext(within(t)))
							require.NoError(t, s.WaitContext(within(t)))
							require.Equal(t, byte(2*round+i+1), got[size-1])
						}
					}
				})
			})
		}
	}
}

// TestCancelRace: while messages come, each is received once and in order, whatever is cancelled.
func TestCancelRace(t *testing.T) {
	count := need.InShort[uint64](60, 300)
	for _, size := range cancelSizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			everywhere(t, func(t *testing.T, a, b *Node) {
				s, out := send(t, a, b.Rank(), size)
				sent := make(chan error, 1)
				go func() {
					for i := range count {
						binary.NativeEndian.PutUint64(out[size-8:], i)
						if err := s.Run(t.Context()); err != nil {
							sent <- err
							return
						}
					}
					sent <- nil
				}()
				r, in := cancellable(t, b, a.Rank(), size, size != 9000)
				random := rand.New(rand.NewPCG(1, uint64(size)))
				for i := uint64(0); i < count; {
					require.NoError(t, r.Start())
					if random.IntN(4) == 0 {
						r.Done()
					}
					for random.IntN(3) > 0 && r.Active() {
						done, err := r.Test()
						require.NoError(t, err)
						if done {
							break
						}
					}
					cancelled := false
					if r.Active() {
						var err error
						cancelled, err = r.Cancel()
						require.NoError(t, err)
						require.Equal(t, cancelled, !r.Active())
					}
					if cancelled {
						continue
					}
					require.NoError(t, r.WaitContext(within(t)))
					require.Equal(t, i, binary.NativeEndian.Uint64(in[size-8:]))
					i++
				}
				require.NoError(t, <-sent)
			})
		})
	}
}

// TestCancelRefused: what cannot be cancelled.
func TestCancelRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		_, err := a.DeclareSend(Contiguous(make([]byte, 8)), b.Rank(), Cancellable())
		require.ErrorIs(t, err, ErrInvalid)
		s, r := sendReceive(t, a, b, 8)
		for _, h := range []*Handle{s, r} {
			require.NoError(t, h.Start())
			_, err := h.Cancel()
			require.ErrorIs(t, err, ErrInvalid)
			require.NoError(t, h.WaitContext(within(t)))
		}
		c, _ := cancellable(t, b, a.Rank(), 300_000, true)
		require.NoError(t, c.Start())
		long, _ := send(t, a, b.Rank(), 300_000)
		require.NoError(t, long.Start())
		closes(t, c.Done())
		cancelled, err := c.Cancel()
		require.NoError(t, err)
		require.False(t, cancelled, "it is complete")
		complete(t, c)
		require.NoError(t, long.WaitContext(within(t)))
		require.NoError(t, c.Close())
		_, err = c.Cancel()
		require.ErrorIs(t, err, ErrClosed)
		require.NoError(t, b.Close())
		_, err = r.Cancel()
		require.ErrorIs(t, err, ErrClosed)
	})
}
