//go:build unix

package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// poison is the one of poisonChunks that kills its workers.
const (
	poison       = 7
	poisonChunks = 60
)

// A chunk that kills its workers is given up after three of them, and no other chunk, with
// any window; the others are done, and End names it.
func TestPoison(t *testing.T) {
	const workers = 5
	const place = "shm"
	needApart(t, place)
	names := []string{"poison", "poison, window", "poison, batch"}
	if testing.Short() {
		names = names[:1]
	}
	for _, name := range names {
		status, out := apart(t, name, place, 1+workers, 0)
		require.Zero(t, status[0], out)
		dead := 0
		for _, s := range status[1:] {
			require.Contains(t, []int{0, killed}, s, out)
			if s == killed {
				dead++
			}
		}
		require.Equal(t, DefaultAttempts, dead, out)
	}
}

// poisonAct: rank 0 supplies to workers with that window.
func poisonAct(window, batch int) act {
	return func(ctx context.Context, w *impi.Comm, _ *rand.Rand) error {
		if w.Rank() > 0 {
			opts := []ClientOption{Window(window)}
			if batch > 0 {
				opts = append(opts, Numbered())
			}
			c := ranks.Must(NewClient(w, opts...))
			err := c.Each(ctx, ranks.Limit, func(k Chunk) error {
				if k.Seq() == poison {
					return syscall.Kill(os.Getpid(), syscall.SIGKILL)
				}
				return nil
			})
			return errors.Join(err, c.Close())
		}
		s := ranks.Must(NewSupplier(w, Redeliver(), Queue(window-1), Batch(batch)))
		for i := range poisonChunks {
			if err := s.Send(ctx, fmt.Append(nil, i)); err != nil {
				return err
			}
		}
		err := s.End(ctx)
		var e *HopelessError
		if !errors.As(err, &e) || *e != (HopelessError{poison, DefaultAttempts}) || s.Stats().GivenUp != 1 {
			return fmt.Errorf("end: %w, %d given up", err, s.Stats().GivenUp)
		}
		return s.End(ctx)
	}
}

// closing is a worker that closes its client whenever it has that chunk, and then makes another
// client; it returns the chunks that it has processed.
func closing(ctx context.Context, w *impi.Comm, bad string, opts ...ClientOption) (done []string, clients int, err error) {
	for {
		c, err := NewClient(w, opts...)
		if err != nil {
			return done, clients, err
		}
		clients++
		failed := errors.New("it cannot be done")
		err = c.Each(ctx, ranks.Limit, func(k Chunk) error {
			if string(k.Bytes()) == bad {
				return failed
			}
			done = append(done, string(k.Bytes()))
			return nil
		})
		if e := c.Close(); e != nil || err != failed {
			return done, clients, errors.Join(err, e)
		}
	}
}

// Only chunks that a worker has begun count, not those that wait in its window: with one attempt
// and with the default number, and with any window, exactly one chunk is given up, by its number.
func TestAttempts(t *testing.T) {
	for _, attempts := range []int{1, 2, DefaultAttempts} {
		for _, opts := range [][]ClientOption{{Window(1)}, {Numbered(), Window(8)}} {
			for _, queue := range []int{0, 20} {
				w := comms(t, "here", 3) // the last may always ask, and does when all is done
				ctx := ranks.Within(t)
				s := newSupplier(t, w[0], Redeliver(), Attempts(attempts), Queue(queue), Batch(40))
				drained := make(chan struct{})
				const count = 20
				var done []string
				var clients int
				noErrors(t, together(func() error {
					var err error
					for i := 0; i < count && err == nil; i++ {
						err = s.Send(ctx, fmt.Append(nil, i))
					}
					err = errors.Join(err, s.Drain(ctx))
					close(drained)
					var e *HopelessError
					if !errors.As(err, &e) || *e != (HopelessError{3, attempts}) {
						return fmt.Errorf("drained: %w", err)
					}
					return s.End(ctx)
				}, func() (err error) {
					done, clients, err = closing(ctx, w[1], "3", opts...)
					return err
				}, func() error {
					<-drained
					_, _, err := closing(ctx, w[2], "")
					return err
				}))
				require.Equal(t, 1+attempts, clients)
				once := map[string]bool{"3": true}
				for _, d := range done {
					once[d] = true
				}
				require.Len(t, once, count)
			}
		}
	}
}

// A worker that is rank 0 has done what it has acknowledged, as any: when its client is closed, only
// the rest is given to the next.
func TestWorkerZero(t *testing.T) {
	w := comms(t, "here", 3) // the last may always ask
	ctx := ranks.Within(t)
	s := newSupplier(t, w[1], Redeliver(), Attempts(2))
	drained := make(chan struct{})
	var done []string
	noErrors(t, together(func() error {
		var err error
		for i := 0; i < 10 && err == nil; i++ {
			err = s.Send(ctx, fmt.Append(nil, i))
		}
		err = errors.Join(err, s.Drain(ctx))
		close(drained)
		var e *HopelessError
		if !errors.As(err, &e) || *e != (HopelessError{3, 2}) {
			return fmt.Errorf("drained: %w", err)
		}
		return s.End(ctx)
	}, func() (err error) {
		done, _, err = closing(ctx, w[0], "3", From(1))
		return err
	}, func() error {
		<-drained
		_, _, err := closing(ctx, w[2], "", From(1))
		return err
	}))
	require.Equal(t, []string{"0", "1", "2", "4", "5", "6", "7", "8", "9"}, done)
	require.Zero(t, s.Stats().Unacknowledged)
}

// A collector waits for the result of each chunk: one that is given up ends the supplier,
// which names it at once.
func TestAttemptsCollected(t *testing.T) {
	w := comms(t, "here", 3) // the last may always ask: else no worker is left between two clients
	in, out := dup(t, w), dup(t, w)
	ctx := ranks.Within(t)
	s := newSupplier(t, in[0], Collected(), Attempts(2))
	c := newCollector(t, out[0], AcknowledgeBy(s.Acknowledge))
	r := newResults(t, out[1])
	last := newResults(t, out[2])
	noErrors(t, together(func() error {
		if err := s.Send(ctx, []byte("bad")); err != nil {
			return err
		}
		err := s.End(ctx)
		var e *HopelessError
		if !errors.As(err, &e) || *e != (HopelessError{0, 2}) {
			return fmt.Errorf("end: %w", err)
		}
		if err = s.Send(ctx, []byte("another")); !errors.As(err, &e) {
			return fmt.Errorf("send: %w", err)
		}
		return s.Close()
	}, func() error {
		for range 2 {
			c := newClient(t, in[1])
			if _, err := c.Receive(ctx); err != nil {
				return err
			}
			if err := c.Close(); err != nil {
				return err
			}
		}
		return r.End(ctx)
	}, func() error { return last.End(ctx) }))
	_, err := c.Receive(ctx)
	require.Equal(t, io.EOF, err)
}

// A worker that has processed a chunk and closes its client does not count against it, even if the
// result has not been collected yet.
func TestCloseBeforeCollected(t *testing.T) {
	w := comms(t, "here", 3)
	ctx := ranks.Within(t)
	s := newSupplier(t, w[0], Collected(2), Queue(2))
	require.NoError(t, s.Send(ctx, []byte("chunk")))
	for range 2 * DefaultAttempts {
		c := newClient(t, w[1], Numbered())
		k := received(t, ctx, c)
		k.Release()
		require.NoError(t, c.Close())
		ranks.Eventually(t, func() bool { return s.Stats().Workers[0].Held == 0 })
	}
	require.NoError(t, s.Acknowledge(0))
	require.NoError(t, s.Drain(ctx))
	require.NoError(t, s.Close())
}

// A client that has left, and closes before it has received its end, leaves no end for the next
// client of its rank.
func TestNoStaleEnd(t *testing.T) {
	for _, queue := range []int{0, 10} {
		w := comms(t, "here", 2)
		ctx := ranks.Within(t)
		s := newSupplier(t, w[0], Redeliver(), Queue(queue))
		const count = 6
		closed := make(chan struct{})
		got := map[uint64]bool{}
		noErrors(t, together(func() error {
			for i := range count {
				err := s.Send(ctx, fmt.Append(nil, i))
				for errors.Is(err, ErrNoWorkers) && ctx.Err() == nil { // between two clients
					err = s.Send(ctx, fmt.Append(nil, i))
				}
				if err != nil {
					return err
				}
			}
			<-closed
			err := s.End(ctx)
			for errors.Is(err, ErrNoWorkers) && ctx.Err() == nil {
				err = s.End(ctx)
			}
			return err
		}, func() error {
			c := newClient(t, w[1], Window(3))
			for i := range 2 {
				k, err := c.Receive(ctx)
				if err != nil {
					return err
				}
				got[k.Seq()] = true
				k.Release()
				if i == 0 {
					c.Leave() // which the second Receive says
				}
			}
			err := c.Close()
			close(closed)
			if err != nil {
				return err
			}
			c = newClient(t, w[1], Window(3))
			err = c.Each(ctx, ranks.Limit, func(k Chunk) error {
				got[k.Seq()] = true
				return nil
			})
			return errors.Join(err, c.Close())
		}))
		require.Len(t, got, count)
	}
}

// When no worker is left, the error also names the chunk that was given up.
func TestNoWorkersNamesHopeless(t *testing.T) {
	w, list := strangers(t, 2)
	ctx := ranks.Within(t)
	s := newSupplier(t, w, Redeliver(), OneAtATime(), Attempts(2), Queue(5))
	for _, chunk := range []string{"bad", "good"} {
		require.NoError(t, s.Send(ctx, []byte(chunk)))
	}
	dies := func(string) bool { return true }
	require.NoError(t, list[0].work(dies))
	ranks.Eventually(t, func() bool { return s.Stats().Workers[0].State == Lost })
	require.NoError(t, list[1].work(dies))
	err := s.Drain(ctx)
	require.ErrorIs(t, err, ErrNoWorkers)
	var e *HopelessError
	require.ErrorAs(t, err, &e)
	require.Equal(t, HopelessError{0, 2}, *e)
	require.NoError(t, s.Close())
}

// When no worker is left, the error names the chunk that they died with.
func TestNoWorkersNames(t *testing.T) {
	w, list := strangers(t, 2)
	ctx := ranks.Within(t)
	s := newSupplier(t, w, Redeliver(), OneAtATime())
	dies := func(chunk string) bool { return chunk == "bad" }
	errs := together(
		func() error {
			if err := s.Send(ctx, []byte("good")); err != nil {
				return err
			}
			if err := s.Send(ctx, []byte("bad")); err != nil {
				return err
			}
			return s.End(ctx)
		},
		func() error { return list[0].work(dies) },
		func() error { return list[1].work(dies) })
	require.ErrorIs(t, errs[0], ErrNoWorkers)
	require.ErrorContains(t, errs[0], "2 of them had chunk 1")
	require.NoError(t, s.Close())
}

// A client that closes tells its supplier in any case: End does not wait for it, and the chunks
// that it has not released go to another.
func TestCloseTells(t *testing.T) {
	type worker = func(ctx context.Context, w *impi.Comm) error
	closes := func(leave bool) worker {
		return func(ctx context.Context, w *impi.Comm) error {
			c := newClient(t, w, Window(3))
			k, err := c.Receive(ctx)
			if err != nil {
				return err
			}
			if leave {
				k.Release()
				c.Leave()
			}
			return c.Close()
		}
	}
	for name, first := range map[string]worker{
		"never asked": func(_ context.Context, w *impi.Comm) error {
			c, err := NewClient(w)
			return errors.Join(err, c.Close())
		},
		"left": closes(true),
		"lent": closes(false),
		"too long": func(ctx context.Context, w *impi.Comm) error {
			c := newClient(t, w, Longest(100))
			if _, err := c.Receive(ctx); !errors.Is(err, ErrProtocol) {
				return fmt.Errorf("too long: %w", err)
			}
			return c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, opts := range [][]Option{{Redeliver()}, {Redeliver(), Queue(10)}} {
				w := comms(t, "here", 3)
				ctx := ranks.Within(t)
				s := newSupplier(t, w[0], opts...)
				const count, n = 6, 100_000 // longer than what is sent without being asked for
				closed := make(chan struct{})
				got := map[string]int{}
				noErrors(t, together(
					func() error {
						for i := range count {
							if err := s.Send(ctx, append(fmt.Appendf(nil, "%d:", i), make([]byte, n*rand.IntN(2)+200)...)); err != nil {
								return err
							}
						}
						return s.End(ctx)
					},
					func() error {
						defer close(closed)
						return first(ctx, w[1])
					},
					func() error {
						<-closed // it has the first
						c := newClient(t, w[2])
						err := c.Each(ctx, ranks.Limit, func(k Chunk) error {
							got[string(k.Bytes()[:2])]++
							return nil
						})
						return errors.Join(err, c.Close())
					}))
				if name == "left" {
					got["0:"]++
				}
				require.Len(t, got, count)
				require.Equal(t, Left, min(s.Stats().Workers[0].State, Left))
				require.Zero(t, s.Stats().Unacknowledged)
			}
		})
	}
}
