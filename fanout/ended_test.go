package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/jobtest"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// A supplier that has sent its end may leave the job: for a client of several suppliers that is no
// error.
func TestEndedSupplierLeaves(t *testing.T) {
	everywhere(t, func(t *testing.T, place string) {
		if place == "here" {
			return // its processes cannot leave one by one
		}
		nodes := jobtest.Join(t, 3)
		left := make(chan struct{})
		ranks.Each(t, 3, func(i int) error {
			ctx := ranks.Within(t)
			j, err := impi.FromNode(ctx, nodes[i], configOf(place))
			if err != nil {
				return err
			}
			world := j.Worlds()[0]
			if i < 2 {
				s := newSupplier(t, world, Workers(2))
				if i == 1 {
					<-left
					if err := s.Send(ctx, []byte("late")); err != nil {
						return err
					}
				}
				if err := s.End(ctx); err != nil {
					return err
				}
				if err := j.Close(ctx); err != nil {
					return err
				}
				if i == 0 {
					err = nodes[0].Close()
					close(left)
				}
				return err
			}
			c := newClient(t, world, From(0, 1))
			k, err := c.Receive(ctx)
			if err != nil {
				return err
			}
			if string(k.Bytes()) != "late" {
				return fmt.Errorf("a chunk %q", k.Bytes())
			}
			k.Release()
			if _, err := c.Receive(ctx); err != io.EOF {
				return fmt.Errorf("no end, but %w", err)
			}
			return errors.Join(c.Close(), j.Close(ctx))
		})
	})
}

// A client that waits for one supplier and leaves tells nothing to another that has ended: a later
// supplier of that rank would take it for a farewell.
func TestLeaveAfterEnd(t *testing.T) {
	w := comms(t, "here", 3)
	ctx := ranks.Within(t)
	ended := newSupplier(t, w[0], Workers(2))
	lives := newSupplier(t, w[1], Workers(2))
	c := newClient(t, w[2], From(0, 1))
	waits := make(chan struct{})
	noErrors(t, together(
		func() error { return ended.End(ctx) },
		func() error { <-waits; return lives.End(ctx) },
		func() error {
			if _, err := c.Receive(ctx); err != io.EOF {
				return fmt.Errorf("no end, but %w", err)
			}
			return c.Close()
		},
		func() error {
			defer close(waits)
			<-once(t, func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.sources[0].over && c.receiving.Load()
			}).Done()
			c.Leave()
			return nil
		}))
	const last = 99
	require.NoError(t, w[2].Send(ctx, nil, 0, last))
	for tag := -1; tag != last; {
		st, err := w[0].Recv(ctx, nil, 2, impi.AnyTag)
		require.NoError(t, err)
		tag = st.Tag
		require.NotEqual(t, TagLeave, tag)
	}
}

// Closing a supplier ends the calls that wait, whatever for, also for their turn.
func TestCloseEndsWaits(t *testing.T) {
	one := []byte("one")
	calls := map[string]func(ctx context.Context, s *Supplier) error{
		"send":       func(ctx context.Context, s *Supplier) error { return s.Send(ctx, one) },
		"send owned": func(ctx context.Context, s *Supplier) error { return s.SendOwned(ctx, nil, make([]byte, 2*shortMost)) },
		"send each": func(ctx context.Context, s *Supplier) error {
			_, err := s.SendEach(ctx, one, one)
			return err
		},
		"end": func(ctx context.Context, s *Supplier) error { return s.End(ctx) },
	}
	for name, opts := range map[string][]Option{"plain": nil, "queue": {Queue(1)}, "redeliver": {Redeliver()}, "collected": {Collected()}} {
		for of, call := range calls {
			if name == "queue" && of != "end" {
				continue // returns at once
			}
			t.Run(name+"/"+of, func(t *testing.T) {
				s := newSupplier(t, comms(t, "here", 2)[0], opts...)
				over := make(chan error, 3)
				if of == "end" {
					over = make(chan error, 1) // one that begins later has nothing to do
				}
				for range cap(over) {
					go func() { over <- call(context.Background(), s) }()
				}
				<-once(t, func() bool {
					s.mu.Lock()
					defer s.mu.Unlock()
					return s.ending || s.stop == nil && of != "end" && s.turn.taken()
				}).Done()
				require.NoError(t, s.Close())
				for range cap(over) {
					require.ErrorIs(t, <-over, ErrClosed)
				}
			})
		}
	}
	t.Run("long chunk", func(t *testing.T) {
		w := comms(t, "shm", 2)
		s := newSupplier(t, w[0])
		require.NoError(t, w[1].Send(ranks.Within(t), nil, 0, TagRequest)) // and receives nothing
		over := make(chan error, 1)
		go func() { over <- s.Send(context.Background(), make([]byte, 1<<20)) }()
		<-once(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.workers[1].counts.Requests == 1 && s.workers[1].waiting == 0
		}).Done()
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-over, ErrClosed)
	})
}

// A supplier whose workers have all left returns an error, and does not wait for more.
func TestAllWorkersLeave(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "queue": {Queue(2)}, "redeliver": {Redeliver()}} {
		t.Run(name, func(t *testing.T) {
			jobs := jobsOf(t, "shm", 2)
			ctx := ranks.Within(t)
			s := newSupplier(t, jobs[0].World(), opts...)
			require.NoError(t, jobs[1].Close(ctx))
			var err error
			for err == nil { // with a queue, until it is known
				err = s.Send(ctx, []byte("chunk"))
			}
			require.ErrorIs(t, err, ErrNoWorkers)
			require.NoError(t, s.Close())
		})
	}
}

// A worker may close its client and free the communicator before a chunk that it has asked for
// reaches it, as one does in [Map] when f fails: for the supplier it has left, and the chunk goes to
// another.
func TestFreed(t *testing.T) {
	everywhere(t, func(t *testing.T, place string) {
		for _, length := range []int{1, 100, 1 << 20} {
			w := comms(t, place, 3)
			freed := make(chan struct{})
			ranks.Each(t, len(w), func(i int) error {
				ctx := ranks.Within(t)
				comm, err := w[i].Dup(ctx)
				if err != nil {
					return err
				}
				if i == 1 {
					defer close(freed)
				}
				defer comm.Free(over(t)) // the barrier ends at once
				if i == 0 {
					s := newSupplier(t, comm, Redeliver())
					<-freed
					if err := s.Send(ctx, make([]byte, length)); err != nil {
						return err
					}
					return s.End(ctx)
				}
				c := newClient(t, comm)
				if i == 1 {
					if _, err = c.Receive(over(t)); !errors.Is(err, context.DeadlineExceeded) {
						return fmt.Errorf("receive: %w", err)
					}
					return c.Close()
				}
				<-freed
				for range 2 {
					k, e := c.Receive(ctx)
					if err = e; err != nil {
						break
					}
					if len(k.Bytes()) != length {
						return fmt.Errorf("a chunk of %d bytes in place of %d", len(k.Bytes()), length)
					}
					k.Release()
				}
				if err != io.EOF {
					return fmt.Errorf("receive: %w", err)
				}
				return c.Close()
			})
		}
	})
}
