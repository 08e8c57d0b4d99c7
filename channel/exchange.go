package channel

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// Exchange is one round of an allgather through the rendezvous of the job: every rank
// contributes data, at most 1 MiB, and receives the data of all ranks, indexed by rank,
// when all have contributed. It takes milliseconds and needs no connection to any peer:
// use it for setup before channels can be declared, and for reports. All ranks must
// make the same calls in the same order; concurrent calls take turns. When Exchange
// returns, data may be reused, and the result belongs to the caller.
//
// Errors: an [*Error] that wraps [ErrInvalid] if data is too long (nothing was
// contributed), [ErrAborted], [ErrClosed], one that names the rank that
// died, left or gave up, or that of ctx. If ctx ends, this rank has given up: this
// round and all later ones fail at all ranks.
func (n *Node) Exchange(ctx context.Context, data []byte) ([][]byte, error) {
	defer n.begin("exchange").end()
	return n.exchange(ctx, data)
}

func (n *Node) exchange(ctx context.Context, data []byte) ([][]byte, error) {
	if err := n.call(); err != nil { // the rank has left when Close goes on
		return nil, nodeError("exchange", err)
	}
	defer n.calls.Done()
	ctx, done := n.whileOpen(ctx)
	defer done()
	all, err := n.job.Exchange(ctx, data)
	if err == nil {
		return all, nil
	}
	abort, of := (*boot.AbortError)(nil), (*boot.RankError)(nil)
	switch {
	case errors.As(err, &abort):
		err = fmt.Errorf("%w: %w", ErrAborted, err)
	case errors.Is(err, ErrClosed):
		err = ErrClosed
	case errors.Is(err, boot.ErrTooLarge):
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	e := &Error{Op: "exchange", Rank: -1, Stream: -1, Err: named(err)}
	if errors.As(err, &of) {
		e.Rank = of.Rank
	}
	return nil, e
}

// named is what the rendezvous says of a rank, by an error of this package if that rank is gone.
func named(err error) error {
	switch {
	case errors.Is(err, boot.ErrLeft):
		return fmt.Errorf("%w: %w", ErrPeerLeft, err)
	case errors.Is(err, boot.ErrDied):
		return fmt.Errorf("%w: %w", ErrPeerDied, err)
	}
	return err
}
