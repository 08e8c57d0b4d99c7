package impi

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// cancelled takes a request back and says whether that was successful.
func cancelled(t testing.TB, q Request) bool {
	t.Helper()
	require.NoError(t, q.Cancel())
	require.NoError(t, q.Cancel()) // says no more
	return completed(t, q).Cancelled
}

func TestCancelReceive(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		got := make([]byte, 8)
		for _, src := range []int{0, AnySource} {
			first := irecv(t, b, got, src, 0)
			second := irecv(t, b, got, src, AnyTag)
			require.True(t, cancelled(t, first))
			require.NoError(t, a.Send(within(t), make([]byte, 3), 1, 0))
			settle(t, a, b)
			require.False(t, cancelled(t, second)) // it has the message
		}
		nothing(t, b, AnySource, AnyTag)
	})
}

// TestCancelSend: a message that no receive has matched is cancelled, and no receive sees it any
// more.
func TestCancelSend(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		for _, n := range []int{0, 8, 5000, long} {
			for _, sync := range []bool{false, true} {
				for _, matched := range []bool{false, true} {
					start := a.Isend
					if sync {
						start = a.Issend
					}
					got := make([]byte, n)
					var r Request
					var err error
					if matched {
						r = irecv(t, b, got, 0, 0)
					}
					msg := pattern(n, 1)
					q, err := start(msg, 1, 0)
					require.NoError(t, err)
					settle(t, a, b)
					require.Equal(t, !matched, cancelled(t, q), "%d bytes, synchronous %v, matched %v", n, sync, matched)
					if matched {
						completed(t, r)
						require.Equal(t, msg, got)
					}
					nothing(t, b, AnySource, AnyTag)
				}
			}
		}
	})
}

// TestCancelUnsent: what waits for its turn has not left.
func TestCancelUnsent(t *testing.T) {
	seldomAt(t, places[1:], func(t *testing.T, p place) {
		p.config.AckMark, p.config.HiWater = 2, 2
		w := worlds(t, p)
		a, b := w[0], w[1]
		l := a.e.links[1]
		// Nothing is read while the lock of b is held, so nothing is acknowledged.
		b.e.lock.Lock()
		var sent []Request
		for range l.hiWater + 3 {
			q, err := a.Issend(make([]byte, 8), 1, 0)
			if err != nil {
				b.e.lock.Unlock()
				require.NoError(t, err)
			}
			sent = append(sent, q)
		}
		last := sent[len(sent)-1]
		err := last.Cancel()
		ok, st, terr := last.Test()
		b.e.lock.Unlock()
		require.NoError(t, err)
		require.NoError(t, terr)
		require.True(t, ok)
		require.True(t, st.Cancelled)
		for range sent[1:] {
			received(t, b, make([]byte, 8), 0, 0)
		}
		require.NoError(t, WaitAll(within(t), nil, sent[:len(sent)-1]...))
		settle(t, a, b)
		nothing(t, b, 0, 0)
	})
}

// TestCancelRace: whatever a cancel and a receive that meet agree on, both ends say
// the same.
func TestCancelRace(t *testing.T) {
	rounds := need.ByForm(20, 40, 300)
	eachWay(t, func(t *testing.T, a, b *Comm) {
		r := rand.New(rand.NewPCG(4, 4))
		for round := range rounds {
			n := []int{8, 5000, long}[r.IntN(3)]
			start := a.Isend
			if r.IntN(2) == 0 {
				start = a.Issend
			}
			msg, got := pattern(n, uint64(round)), make([]byte, n)
			var taken bool
			var in Request
			both(t, func() error {
				q, err := start(msg, 1, 0)
				if err != nil {
					return err
				}
				q.Cancel()
				st, err := q.Wait(within(t))
				taken = st.Cancelled
				return err
			}, func() (err error) {
				in, err = b.Irecv(got, 0, 0)
				return err
			})
			settle(t, a, b)
			if taken {
				require.True(t, cancelled(t, in))
				continue
			}
			require.Equal(t, Status{Len: n}, completed(t, in))
			require.Equal(t, msg, got)
		}
	})
}
