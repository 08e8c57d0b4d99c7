package impi

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
)

// endless are calls that wait for rank 1.
var endless = []struct {
	name string
	call func(ctx context.Context, c *Comm) error
}{
	{"receive", func(ctx context.Context, c *Comm) error {
		_, err := c.Recv(ctx, make([]byte, 8), 1, 0)
		return err
	}},
	{"receive from any", func(ctx context.Context, c *Comm) error {
		_, err := c.Recv(ctx, make([]byte, 1<<20), AnySource, AnyTag)
		return err
	}},
	{"request", waitsForRequests(func(ctx context.Context, q []Request) error {
		_, err := q[0].Wait(ctx)
		return err
	})},
	{"any", waitsForRequests(func(ctx context.Context, q []Request) error {
		_, _, err := WaitAny(ctx, q...)
		return err
	})},
	{"some", waitsForRequests(func(ctx context.Context, q []Request) error {
		done, err := WaitSome(ctx, nil, q...)
		for _, d := range done {
			err = errors.Join(err, d.Err)
		}
		return err
	})},
	{"all", waitsForRequests(func(ctx context.Context, q []Request) error { return WaitAll(ctx, nil, q...) })},
	{"probe", func(ctx context.Context, c *Comm) error {
		_, err := c.Probe(ctx, 1, 0)
		return err
	}},
	{"probe of any", func(ctx context.Context, c *Comm) error {
		_, err := c.Probe(ctx, AnySource, AnyTag)
		return err
	}},
	{"barrier", func(ctx context.Context, c *Comm) error { return c.Run(ctx, channel.Barrier()) }},
	{"long collective", func(ctx context.Context, c *Comm) error {
		data := make([]float64, 1<<16)
		return c.Run(ctx, channel.Allreduce(channel.Sum, data, data))
	}},
	{"long broadcast", func(ctx context.Context, c *Comm) error {
		return c.Run(ctx, channel.Broadcast(make([]byte, 4<<20), 0))
	}},
	{"split", func(ctx context.Context, c *Comm) error {
		_, err := c.Split(ctx, 0, 0)
		return err
	}},
}

func waitsForRequests(wait func(context.Context, []Request) error) func(context.Context, *Comm) error {
	return func(ctx context.Context, c *Comm) error {
		var list []Request
		for tag := range 2 {
			q, err := c.Irecv(make([]byte, 8), 1, tag)
			if err != nil {
				return err
			}
			list = append(list, q)
		}
		return wait(ctx, list)
	}
}

// TestCloseEndsWaits: whatever a call waits for, it ends when its job is closed, also if the other host
// is stopped.
func TestCloseEndsWaits(t *testing.T) {
	seldomAt(t, places, func(t *testing.T, p place) {
		for _, c := range endless {
			t.Run(c.name, func(t *testing.T) {
				p.config.PeerTimeout, p.config.Wait = 2*limit, "sleep"
				jobs := join(t, p)
				stopped := jobs[len(jobs)-1].e
				if len(jobs) > 1 {
					stopped.lock.Lock()
				}
				over, ended := make(chan error, 1), make(chan error, 1)
				go func() { over <- c.call(within(t), jobs[0].World()) }()
				asleep(t, jobs[0].e)
				go func() { ended <- jobs[0].Close(context.WithoutCancel(t.Context())) }()
				err := <-over // at the latest with the context of the call
				if len(jobs) > 1 {
					stopped.lock.Unlock()
				}
				closeAll(t, jobs[1:])
				require.NoError(t, <-ended)
				require.ErrorIs(t, err, ErrClosed)
				require.ErrorContains(t, err, "closed by this process")
			})
		}
	})
}

// TestFreeEndsWaits: receives and probes end when their communicator is freed.
func TestFreeEndsWaits(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		for _, c := range endless {
			switch c.name {
			case "barrier", "long collective", "long broadcast", "split": // Free is a collective itself
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				var comms [2]*Comm
				dup := func(i int, c *Comm) func() error {
					return func() (err error) {
						comms[i], err = c.Dup(within(t))
						return err
					}
				}
				both(t, dup(0, a), dup(1, b))
				over := make(chan error, 1)
				go func() { over <- c.call(within(t), comms[0]) }()
				asleep(t, a.e)
				both(t, func() error { return comms[0].Free(within(t)) }, func() error { return comms[1].Free(within(t)) })
				err := <-over
				require.ErrorIs(t, err, ErrClosed)
				require.ErrorContains(t, err, "closed by this process")
			})
		}
	})
}
