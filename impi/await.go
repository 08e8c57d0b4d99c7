package impi

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// await returns a context for a wait for the other hosts, of which missing returns those that are still
// awaited. Each [Config.PeerTimeout] it asks of each of them whether it has ended, and ends if one has;
// its cause names the host. The wait for others is logged, at doubling pauses.
func (r *roster) await(ctx context.Context, c *Config, missing func() []int, ended endedFunc) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for round := 1; ; round++ {
			patience, stop := wait.Patience(ctx, cmp.Or(c.warnAfter, c.PeerTimeout))
			<-patience.Done()
			stop()
			if ctx.Err() != nil {
				return
			}
			if err := r.silent(ctx, c, missing(), ended, round&(round-1) == 0); err != nil {
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

// endedFunc returns why a host is not awaited further, or nil.
type endedFunc func(ctx context.Context, host int) error

// ended is an endedFunc for hosts that are connected: their connections end with them.
func (r *roster) ended(ctx context.Context, host int) error {
	_, err := r.asked(ctx, host)
	return err
}

// asked returns what the rendezvous says of a host. False: there is none to ask.
func (r *roster) asked(ctx context.Context, host int) (bool, error) {
	if r.gone == nil {
		return false, nil
	}
	err := r.gone(ctx, host)
	if errors.Is(err, boot.ErrUnknown) {
		return false, nil
	}
	return true, err
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
	return &Error{Op: "connect", Rank: r.first(host), Tag: -1, Err: fmt.Errorf("%w: IMPI host %d: %w", ErrUnreachable, host, limits.Files(err))}
}

// silent returns the reason why hosts that have not answered in time will not do so, and logs the wait
// before it finds out if told so.
func (r *roster) silent(ctx context.Context, c *Config, hosts []int, ended endedFunc, log bool) error {
	if len(hosts) == 0 {
		return nil
	}
	if log { // first: an answer may take a while
		c.Log.Warn("impi: hosts do not answer while this one connects to them; still waiting: none is known to have ended", "hosts", len(hosts), "first", hosts[0])
	}
	for _, i := range hosts {
		if err := ended(ctx, i); err != nil {
			return r.unreachable(i, err)
		}
	}
	return nil
}
