package impi

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// divided splits communicators, and returns what each member gets.
func divided(t testing.TB, comms []*Comm, color, key func(rank int) int) []*Comm {
	t.Helper()
	list := make([]*Comm, len(comms))
	all(t, comms, func(c *Comm) (err error) {
		list[c.Rank()], err = c.Split(within(t), color(c.Rank()), key(c.Rank()))
		return err
	})
	return list
}

func TestSplit(t *testing.T) {
	for _, p := range []place{{"here", 1, 5, Config{}}, {"tcp", 5, 1, Config{Providers: []string{}}}, {"shm 3×2", 3, 2, Config{Providers: []string{"shm"}}}} {
		t.Run(p.name, func(t *testing.T) {
			p.needs(t)
			switch p.name {
			case "tcp": // the messages are those of any Comm
				need.Long(t)
			case "shm 3×2":
				need.Full(t)
			}
			w := worlds(t, p)
			size := len(w)
			// 0, 2, 4 the other way round; 3 and 5 as they are; 1 in none.
			parts := divided(t, w, func(rank int) int {
				if rank == 1 {
					return -1
				}
				return rank % 2
			}, func(rank int) int {
				if rank%2 == 0 {
					return -rank
				}
				return 7
			})
			require.Nil(t, parts[1])
			var even, odd []*Comm
			for rank := size - 1; rank >= 0; rank-- {
				if rank%2 == 0 {
					even = append(even, parts[rank])
				}
			}
			for rank := 3; rank < size; rank += 2 {
				odd = append(odd, parts[rank])
			}
			for _, group := range [][]*Comm{even, odd} {
				for i, c := range group {
					require.Same(t, w[c.Ranks()[i]].Job(), c.Job())
					require.Equal(t, i, c.Rank())
					require.Equal(t, len(group), c.Size())
				}
			}
			ranks := even[0].Ranks()
			require.Equal(t, size-1-(size-1)%2, ranks[0])
			require.Equal(t, 0, ranks[len(ranks)-1])
			sums(t, w, even, odd)
			// A message is in its communicator alone.
			ctx := within(t)
			both(t, func() error {
				if err := even[0].Send(ctx, []byte{2}, 1, 5); err != nil {
					return err
				}
				return w[ranks[0]].Send(ctx, []byte{1}, ranks[1], 5)
			}, func() error {
				b := make([]byte, 1)
				st, err := w[ranks[1]].Recv(ctx, b, AnySource, AnyTag)
				if err != nil {
					return err
				}
				require.Equal(t, Status{Source: ranks[0], Tag: 5, Len: 1}, st)
				require.Equal(t, []byte{1}, b)
				st, err = even[1].Recv(ctx, b, AnySource, AnyTag)
				require.Equal(t, Status{Source: 0, Tag: 5, Len: 1}, st)
				require.Equal(t, []byte{2}, b)
				return err
			})
			all(t, even, func(c *Comm) error { return c.Free(ctx) })
			_, err := even[0].Isend(nil, 1, 0)
			require.ErrorIs(t, err, ErrClosed)
			require.ErrorIs(t, even[0].Run(ctx, channel.Barrier()), ErrClosed)
			require.NoError(t, even[0].Free(ctx))
			require.ErrorIs(t, w[0].Free(ctx), ErrInvalid)
			sums(t, w, odd)
		})
	}
}

// TestDupOfMany: communicators of different sets of members, made at the same time,
// have contexts of their own.
func TestDupOfMany(t *testing.T) {
	need.Full(t)
	each := need.InLong(4, 10)
	w := worlds(t, place{"", 4, 1, Config{Providers: []string{}}})
	a := divided(t, w, func(rank int) int { return rank / 2 }, func(rank int) int { return rank })
	b := divided(t, w, func(rank int) int { return rank % 2 }, func(rank int) int { return rank })
	var mu sync.Mutex
	made := map[int][]*Comm{}
	var wg sync.WaitGroup
	for _, list := range [][]*Comm{w, a, b} {
		for rank, c := range list {
			wg.Go(func() {
				for range each {
					d, err := c.Dup(within(t))
					if err != nil {
						t.Errorf("rank %d: %v", rank, err)
						return
					}
					mu.Lock()
					made[rank] = append(made[rank], d)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	for rank, list := range made {
		require.Len(t, list, 3*each)
		seen := map[uint64]bool{}
		for _, c := range list {
			require.False(t, seen[c.cid], "rank %d has two communicators with context %d", rank, c.cid)
			seen[c.cid] = true
		}
	}
}

// TestFreeDrops: what waits in a communicator ends with it.
func TestFreeDrops(t *testing.T) {
	seldomAt(t, places, func(t *testing.T, p place) {
		w := worlds(t, p)
		ctx := within(t)
		d := make([]*Comm, 2)
		all(t, w, func(c *Comm) (err error) {
			d[c.Rank()], err = c.Dup(ctx)
			return err
		})
		require.NoError(t, d[0].Send(ctx, make([]byte, 100), 1, 1))
		q := irecv(t, d[1], nil, 0, 2)
		var sends []Request
		for _, n := range []int{0, 5000, long} {
			sends = append(sends, issend(t, d[0], make([]byte, n), 1, 1))
		}
		s := isend(t, d[0], make([]byte, long), 1, 1)
		sends = append(sends, s)
		contexts := len(w[1].p.matchers)
		all(t, d, func(c *Comm) error { return c.Free(ctx) })
		_, err := q.Wait(ctx)
		require.ErrorIs(t, err, ErrClosed)
		require.Len(t, w[1].p.matchers, contexts-2)
		for _, pair := range w[1].p.pairs {
			if pair != nil {
				require.Zero(t, pair.held)
			}
		}
		for _, s := range sends { // no process will receive them
			_, err := s.Wait(ctx)
			requireError(t, err, ErrPeerLeft, 1)
		}
		settle(t, w[0], w[1])
	})
}

// TestFreedAlready: a message comes when the communicator has been freed.
func TestFreedAlready(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		const cid = firstCID + 100
		for _, n := range []int{0, 5000, long} {
			from, to := ahead(a, cid+uint64(2*n), 0, 1), ahead(b, cid+uint64(2*n), 0, 1)
			to.e.lock.Lock()
			to.match.drop()
			to.coll.drop()
			to.e.lock.Unlock()
			for _, start := range []func([]byte, int, int) (Request, error){from.Issend, from.Isend} {
				q, err := start(make([]byte, n), 1, 0)
				require.NoError(t, err)
				_, err = q.Wait(within(t))
				if err != nil {
					requireError(t, err, ErrPeerLeft, 1)
				} else { // eager
					require.Less(t, n, long)
				}
				q = issend(t, from, make([]byte, n), 1, 0)
				require.NoError(t, q.Cancel())
				st, err := q.Wait(within(t))
				require.True(t, st.Cancelled || errors.Is(err, ErrPeerLeft), "%v", err)
			}
		}
		settle(t, a, b)
	})
}

func TestOurs(t *testing.T) {
	w := worlds(t, place{"", 2, 1, Config{Providers: []string{}}})
	require.Same(t, w[0], w[0].Ours(), "no member is foreign")

	jobs := join(t, place{"", 3, 2, Config{Providers: []string{}}})
	w = nil
	for _, j := range jobs {
		j.roster.hosts[1].foreign = true // what only communicators are to see
		w = append(w, j.Worlds()...)
	}
	ours := []*Comm{w[0].Ours(), w[1].Ours(), w[4].Ours(), w[5].Ours()}
	require.Same(t, ours[0], w[0].Ours())
	require.Equal(t, []int{0, 1, 4, 5}, ours[2].Ranks())
	_, err := w[0].Dup(within(t))
	require.ErrorIs(t, err, ErrForeign)
	_, err = w[0].Split(within(t), 1, 1)
	require.ErrorIs(t, err, ErrForeign)
	sums(t, ours)
	parts := divided(t, ours, func(rank int) int { return rank % 2 }, func(rank int) int { return rank })
	sums(t, ours, []*Comm{parts[0], parts[2]}, []*Comm{parts[1], parts[3]})
	for _, j := range jobs {
		j.roster.hosts[1].foreign = false
	}
	closeAll(t, jobs)
}
