package channel

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// Exchange is one round of an allgather through the rendezvous of the job: every rank
// gives data, at most 1 MiB, and receives what each has given, by rank, when all have.
// It takes milliseconds and needs no connection to any peer: it is for what has to be
// known before channels can be declared, and for reports. All ranks have to make the
// same calls in the same order; those of several goroutines take turns. Data may be
// reused when it returns, and the result is the caller's.
//
// Errors: an [*Error] around [ErrInvalid] for data that is too long, and nothing was
// given; around [ErrAborted] or [ErrClosed]; around what package boot says of a rank
// that has died, left or given up; or around that of ctx. A rank whose ctx ends has
// given up: this round and all later ones fail for all.
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
	abort := (*boot.AbortError)(nil)
	switch {
	case errors.As(err, &abort):
		err = fmt.Errorf("%w: %w", ErrAborted, err)
	case errors.Is(err, ErrClosed):
		err = ErrClosed
	case errors.Is(err, boot.ErrTooLarge):
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil, nodeError("exchange", err)
}
