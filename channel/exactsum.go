package channel

import (
	"context"
	"fmt"

	"github.com/sluice-hpc/sluice/exact"
)

// SumExact merges the accumulators of all ranks of a group, at every rank: the i-th of each call into
// sums[i], whose Round is then the correctly rounded sum of all terms of all ranks. The result has the same
// bits for any number of ranks and any distribution and order of the terms, by any algorithm and over any
// provider. All ranks pass as many accumulators; several together take little longer than one. Without any,
// nothing is sent.
//
// SumExact is an allreduce of 1 + 15·len(sums) int64 while the sums lie where those of the calls before did:
// within 192 bits below their highest, and 32 above. Else another one follows, of [exact.Words] int64 each.
//
// Errors: those of [Group.Run]; one that wraps [exact.ErrWords] if a rank contributes an invalid
// accumulator. After an error the sums are unchanged.
func SumExact(ctx context.Context, g *Group, sums ...*exact.Accumulator) error {
	s := g.sums.Swap(busySums)
	switch s {
	case busySums:
		return groupError("sum", errShared)
	case nil:
		s = &exactSums{}
	}
	defer g.sums.Store(s)
	return s.merge(ctx, g, sums)
}

// busySums takes the place of those of a group while a goroutine is in SumExact.
var busySums = &exactSums{}

const (
	sumWords = exact.Words - exact.FlagWords // of a sum
	// A narrow message says how many sums of how many ranks are too wide for it; then for each sum where
	// its words begin, and the square of that, so that all ranks see whether all begin there; and its
	// narrow words.
	narrowHead  = 1
	narrowWords = 8
	narrowEach  = 2 + exact.FlagWords + narrowWords
	// firstLow is where sums are expected that nothing is known of: from 2^-134 on.
	firstLow = 63
	// After vainMost narrow messages in vain, in a row, only one call in vainEvery tries one.
	vainMost  = 2
	vainEvery = 16
	// narrowFull: from there on the last of the narrow words, which may be up to 2^32 at each rank, is soon
	// too large.
	narrowFull = 1 << 16
	// keptSums: the memory for more is given back.
	keptSums = 16
)

// exactSums is what a group knows of the sums of its calls of SumExact. It follows from their results, so
// that all ranks know the same.
type exactSums struct {
	low   []int // where the narrow words of the i-th sum begin
	vain  int   // narrow messages in vain, in a row
	calls uint64

	words   []int64
	results []exact.Accumulator
}

func (s *exactSums) merge(ctx context.Context, g *Group, sums []*exact.Accumulator) error {
	n := len(sums)
	if n == 0 {
		return nil
	}
	for len(s.low) < n {
		s.low = append(s.low, firstLow)
	}
	if len(s.results) < n {
		s.results = make([]exact.Accumulator, n)
	}
	if n > keptSums {
		defer func() { s.results, s.words = nil, nil }()
	}
	merged := false
	if s.vain < vainMost || s.calls%vainEvery == vainEvery-1 {
		var err error
		if merged, err = s.narrow(ctx, g, sums); err != nil {
			return err
		}
	}
	if !merged {
		if err := s.wide(ctx, g, sums); err != nil {
			return err
		}
	}
	s.calls++ // not after an error: it may be that of this rank alone, because another goroutine uses the group
	for i, a := range sums {
		*a = s.results[i]
		if merged {
			continue
		}
		if low, high := a.Span(); high >= low {
			s.low[i] = min(max(high+2-narrowWords, 0), sumWords-narrowWords) // a word more than now
		}
	}
	return nil
}

// buffer returns so many words.
func (s *exactSums) buffer(n int) []int64 {
	if len(s.words) < n {
		s.words = make([]int64, n)
	}
	return s.words[:n]
}

// run adds up the words of all ranks.
func (s *exactSums) run(ctx context.Context, g *Group, words []int64) error {
	return g.Run(ctx, Allreduce(Sum, words, words))
}

// narrow merges the sums if the narrow words of all ranks hold them.
func (s *exactSums) narrow(ctx context.Context, g *Group, sums []*exact.Accumulator) (merged bool, _ error) {
	words := s.buffer(narrowHead + len(sums)*narrowEach)
	words[0] = 0
	for i, a := range sums {
		w, low := words[narrowHead+i*narrowEach:][:narrowEach], s.low[i]
		w[0], w[1] = int64(low), int64(low*low)
		if !a.NarrowWords(w[2:], low) {
			words[0]++
		}
	}
	if err := s.run(ctx, g, words); err != nil {
		return false, err
	}
	ranks := int64(g.Size())
	merged = words[0] == 0
	for i := range sums {
		w, low := words[narrowHead+i*narrowEach:], int64(s.low[i])
		merged = merged && w[0] == ranks*low && w[1] == ranks*low*low
	}
	if !merged {
		s.vain++
		return false, nil
	}
	s.vain = 0
	for i := range sums {
		w := words[narrowHead+i*narrowEach:][2:narrowEach]
		if err := s.results[i].SetNarrowWords(w, s.low[i]); err != nil {
			return false, invalidSum(err)
		}
		if last := w[len(w)-1]; (last >= narrowFull || last < -narrowFull) && s.low[i] < sumWords-narrowWords {
			s.low[i]++
		}
	}
	return true, nil
}

// wide merges any sums.
func (s *exactSums) wide(ctx context.Context, g *Group, sums []*exact.Accumulator) error {
	words := s.buffer(len(sums) * exact.Words)
	of := func(i int) *[exact.Words]int64 { return (*[exact.Words]int64)(words[i*exact.Words:]) }
	for i, a := range sums {
		a.Words(of(i))
	}
	if err := s.run(ctx, g, words); err != nil {
		return err
	}
	for i := range sums {
		if err := s.results[i].SetWords(of(i)); err != nil {
			return invalidSum(err)
		}
	}
	return nil
}

func invalidSum(err error) error { return groupError("sum", fmt.Errorf("%w: %w", ErrProtocol, err)) }
