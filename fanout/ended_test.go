package fanout

import (
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
				s, err := NewSupplier(world, Workers(2))
				if err != nil {
					return err
				}
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
			c, err := NewClient(world, From(0, 1))
			if err != nil {
				return err
			}
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

// A supplier whose workers have all left returns an error, and does not wait for more.
func TestAllWorkersLeave(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "queue": {Queue(2)}, "redeliver": {Redeliver()}} {
		t.Run(name, func(t *testing.T) {
			jobs := jobsOf(t, "shm", 2)
			ctx := ranks.Within(t)
			s, err := NewSupplier(jobs[0].World(), opts...)
			require.NoError(t, err)
			require.NoError(t, jobs[1].Close(ctx))
			for err == nil { // with a queue, until it is known
				err = s.Send(ctx, []byte("chunk"))
			}
			require.ErrorIs(t, err, ErrNoWorkers)
			require.NoError(t, s.Close())
		})
	}
}
