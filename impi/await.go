package impi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// await returns a context for a wait for the other hosts, of which missing returns those that are still
// awaited. Where nothing would say that a host has ended, it ends with [Config.PeerTimeout];
// else when one of them has, and each time that takes as long is logged. Its cause names the host.
func (r *roster) await(ctx context.Context, c *Config, missing func() []int) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(cmp.Or(c.warnAfter, c.PeerTimeout))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := r.silent(ctx, c, missing()); err != nil {
				cancel(err)
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-over
	}
}

// cause returns the reason why a host was not awaited further, else err.
func (r *roster) cause(ctx context.Context, err error) error {
	if gone := (*Error)(nil); errors.As(context.Cause(ctx), &gone) {
		return gone
	}
	return err
}

// unreachable is the error of a host that could not be connected.
func (r *roster) unreachable(host int, err error) error {
	return &Error{Op: "connect", Rank: r.first(host), Tag: -1, Err: fmt.Errorf("%w: IMPI host %d: %w", ErrUnreachable, host, err)}
}

// silent returns the reason why hosts that have not answered in time will not do so.
func (r *roster) silent(ctx context.Context, c *Config, hosts []int) error {
	if len(hosts) == 0 {
		return nil
	}
	late := fmt.Errorf("%w: not all hosts connected within %v", ErrTimeout, c.PeerTimeout)
	if r.gone == nil {
		return r.unreachable(hosts[0], late)
	}
	asking, cancel := context.WithTimeout(ctx, c.PeerTimeout)
	defer cancel()
	for _, i := range hosts {
		switch err := r.gone(asking, i); {
		case errors.Is(err, boot.ErrUnknown):
			return r.unreachable(i, fmt.Errorf("%w; %w", late, err))
		case err != nil:
			return r.unreachable(i, err)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	c.Log.Warn("impi: hosts do not answer while this one connects to them; as far as is known they have not ended, so they are waited for", "hosts", len(hosts), "first", hosts[0])
	return nil
}
