package channel

import (
	"context"
	"fmt"

	"github.com/sluice-hpc/sluice/exact"
)

// SumExact merges the accumulators of all ranks of a group into a, at every rank:
// a.Round() is then the correctly rounded sum of all terms of all ranks. The result has
// the same bits for any number of ranks and any distribution and order of the terms, by
// any algorithm and over any provider. SumExact is an allreduce of [exact.Words] int64.
//
// Errors: those of [Group.Run]; one that wraps [exact.ErrWords] if a rank contributes
// an invalid accumulator. After an error a is unchanged.
func SumExact(ctx context.Context, g *Group, a *exact.Accumulator) error {
	w := g.words.Swap(nil)
	if w == nil {
		w = new([exact.Words]int64)
	}
	defer g.words.Store(w)
	a.Words(w)
	if err := g.Run(ctx, Allreduce(Sum, w[:], w[:])); err != nil {
		return err
	}
	if err := a.SetWords(w); err != nil {
		return groupError("sum", fmt.Errorf("%w: %w", ErrProtocol, err))
	}
	return nil
}
