package impi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// filled returns n bytes that depend on a seed.
func filled(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seed + i + i>>8)
	}
	return b
}

// TestEagerEverywhere: two ranks that send before they receive, up to the packet length, get
// through wherever they are, whether they wait, or look from time to time; one byte more and a
// send is complete when it is received.
func TestEagerEverywhere(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Comm) {
		ctx := within(t)
		send := map[string]func(c *Comm, data []byte, to, tag int) error{
			"wait": func(c *Comm, data []byte, to, tag int) error { return c.Send(ctx, data, to, tag) },
			"test": func(c *Comm, data []byte, to, tag int) error {
				req, err := c.Isend(data, to, tag)
				for done := false; !done && err == nil && ctx.Err() == nil; {
					done, _, err = req.Test()
				}
				return errors.Join(err, ctx.Err())
			},
		}
		for name, send := range send {
			for i, n := range []int{1, 8 << 10, 16<<10 + 1, 32_000, 60_000, 64 << 10} {
				exchange := func(c *Comm, to int) func() error {
					return func() error {
						mine, theirs := filled(n, c.Rank()), filled(n, to)
						if err := send(c, mine, to, i); err != nil {
							return fmt.Errorf("%s, %d bytes: %w", name, n, err)
						}
						clear(mine) // it is the user's again
						got := make([]byte, n)
						if st, err := c.Recv(ctx, got, to, AnyTag); err != nil || st.Len != n || st.Tag != i || !bytes.Equal(got, theirs) {
							return fmt.Errorf("%s, %d bytes: received %d with tag %d: %w", name, n, st.Len, st.Tag, err)
						}
						return nil
					}
				}
				both(t, exchange(a, b.Rank()), exchange(b, a.Rank()))
			}
		}
		long := isend(t, a, filled(64<<10+1, 3), b.Rank(), 9)
		sync := issend(t, a, filled(20_000, 4), b.Rank(), 9)
		require.NoError(t, a.Send(ctx, filled(20_000, 5), b.Rank(), 9)) // behind them
		for _, q := range []Request{long, sync} {
			pending(t, q)
		}
		for i, n := range []int{64<<10 + 1, 20_000, 20_000} {
			got := make([]byte, n)
			received(t, b, got, a.Rank(), 9)
			require.True(t, bytes.Equal(filled(n, 3+i), got))
		}
		require.NoError(t, WaitAll(ctx, nil, long, sync))
	})
}

// TestEagerToPoller: a receiver that probes for one message all the time fetches others, too.
func TestEagerToPoller(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		ctx := within(t)
		both(t, func() error {
			return errors.Join(a.Send(ctx, filled(20_000, 1), b.Rank(), 7), a.Send(ctx, []byte{1}, b.Rank(), 8))
		}, func() error {
			for ctx.Err() == nil {
				if there, _, err := b.Iprobe(a.Rank(), 8); err != nil || there {
					return err
				}
			}
			return ctx.Err()
		})
	})
}

// TestEagerToLeaver: a receiver that leaves fails no send that was complete, or is about
// to be.
func TestEagerToLeaver(t *testing.T) {
	seldomAt(t, places[1:], func(t *testing.T, p place) {
		jobs := join(t, p)
		t.Cleanup(func() { closeAll(t, jobs) })
		sent := isend(t, jobs[0].World(), filled(20_000, 1), 1, 7)
		left := make(chan error)
		go func() { left <- jobs[1].Close(context.WithoutCancel(t.Context())) }()
		completed(t, sent)
		require.NoError(t, jobs[0].Close(context.WithoutCancel(t.Context())))
		require.NoError(t, <-left)
	})
}

// TestEagerBounded: what is fetched takes half of the memory for what waits; sends beyond are
// complete when they are received, and no connection fails.
func TestEagerBounded(t *testing.T) {
	const n, unexpected = 60_000, 1_000_000
	w := worlds(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}, Unexpected: unexpected}})
	a, b := w[0], w[1]
	ctx := within(t)
	var list []Request
	for i := range 2 * unexpected / n / 3 {
		list = append(list, isend(t, a, filled(n, i), b.Rank(), i))
	}
	for i := range unexpected / 4 / n {
		_, err := list[i].Wait(ctx)
		require.NoError(t, err, i)
	}
	last := list[len(list)-1]
	pending(t, last)
	for i := range list { // the last first
		i = len(list) - 1 - i
		got := make([]byte, n)
		received(t, b, got, a.Rank(), i)
		require.True(t, bytes.Equal(filled(n, i), got))
	}
	require.NoError(t, WaitAll(ctx, nil, list...))
	for _, c := range []*Comm{a, b} {
		c.e.lock.Lock()
		require.Zero(t, c.p.pair(int32(1-c.Rank())).held)
		c.e.lock.Unlock()
	}
}

// TestFetch: whatever happens to a message while it is being fetched: a receive comes
// meanwhile, and another probes; it is dropped with its communicator; its connection ends.
func TestFetch(t *testing.T) {
	const n = 50_000
	for _, c := range []struct {
		name string
		// meanwhile is called with the lock of b's engine.
		meanwhile func(t *testing.T, b *Comm, m *message)
		then      func(t *testing.T, b *Comm)
		lost      bool
	}{
		{"nothing", func(*testing.T, *Comm, *message) {}, func(t *testing.T, b *Comm) {
			got := make([]byte, n)
			received(t, b, got, AnySource, 7)
			require.True(t, bytes.Equal(filled(n, 1), got))
		}, false},
		{"received", func(t *testing.T, b *Comm, m *message) {
			there := probe{c: b, src: -1, tag: 7}
			require.True(t, there.over())
			got := make([]byte, n)
			_, ok := b.recvNow(got, AnySource, 7, true)
			require.False(t, ok)
			r, err := b.startReceive(b.match, got, nil, AnySource, 7)
			require.NoError(t, err)
			require.False(t, r.over())
			t.Cleanup(func() {
				st, err := Request{r, r.gen}.Wait(context.WithoutCancel(t.Context()))
				require.NoError(t, err)
				require.Equal(t, n, st.Len)
				require.True(t, bytes.Equal(filled(n, 1), got))
			})
		}, func(*testing.T, *Comm) {}, false},
		{"truncated", func(t *testing.T, b *Comm, m *message) {
			got := make([]byte, 10_000)
			r, err := b.startReceive(b.match, got, nil, AnySource, 7)
			require.NoError(t, err)
			t.Cleanup(func() {
				_, err := Request{r, r.gen}.Wait(context.WithoutCancel(t.Context()))
				require.ErrorIs(t, err, ErrTruncated)
				require.True(t, bytes.Equal(filled(n, 1)[:len(got)], got))
			})
		}, func(*testing.T, *Comm) {}, false},
		{"dropped", func(_ *testing.T, b *Comm, m *message) {
			b.match.takeMessage(m)
			b.match.dropMessage(m)
		}, func(t *testing.T, b *Comm) {
			nothing(t, b, AnySource, AnyTag)
		}, false},
		{"lost", func(_ *testing.T, b *Comm, m *message) { m.pair.link.lost(io.ErrUnexpectedEOF) }, func(t *testing.T, b *Comm) {
			_, err := b.Recv(within(t), make([]byte, n), 0, 7)
			require.ErrorIs(t, err, ErrPeerDied)
		}, true},
		{"lost, received", func(t *testing.T, b *Comm, m *message) {
			r, err := b.startReceive(b.match, make([]byte, n), nil, 0, 7)
			require.NoError(t, err)
			m.pair.link.lost(io.ErrUnexpectedEOF)
			require.True(t, r.over())
			_, err = r.collect()
			require.ErrorIs(t, err, ErrPeerDied)
		}, func(*testing.T, *Comm) {}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := worlds(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
			a, b := w[0], w[1]
			// The lock keeps a from sending what is fetched.
			a.e.lock.Lock()
			r, err := a.startSend(a.match, filled(n, 1), nil, 1, 7, false)
			require.NoError(t, err)
			sent := Request{r, r.gen}
			b.e.lock.Lock()
			p := b.p.pair(0)
			b.e.lock.Unlock()
			ranks.Eventually(t, func() bool {
				b.e.lock.Lock()
				defer b.e.lock.Unlock()
				b.e.progress()
				b.e.fetchOwed()
				m := b.match.all.head
				if m == nil {
					return false
				}
				require.NotNil(t, m.fetch)
				c.meanwhile(t, b, m)
				return true
			})
			a.e.lock.Unlock()
			_, err = sent.Wait(within(t))
			if !c.lost || err != nil && !errors.Is(err, ErrPeerDied) { // it may have left before
				require.NoError(t, err)
			}
			c.then(t, b)
			if !c.lost {
				ranks.Eventually(t, func() bool {
					b.e.lock.Lock()
					defer b.e.lock.Unlock()
					b.e.progress()
					return p.held == 0
				})
			}
		})
	}
}
