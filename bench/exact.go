package main

import (
	"context"
	"fmt"
	"math"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/exact"
)

// exactBytes are what travels of an accumulator.
const exactBytes = exact.Words * 8

// exactTerms are the terms that a rank adds up, of each kind.
const exactTerms = 64

// exactSeries merges the accumulators of all ranks again and again. An iteration is
// a copy of the rank's own, which SumExact merges into, and the sum.
type exactSeries struct {
	group *channel.Group
	own   exact.Accumulator
	total exact.Accumulator
}

func declareExact(n *node) *exactSeries {
	s := &exactSeries{group: n.group}
	s.own.AddSlice(exactTermsOf(s.group.Rank(), s.group.Size()))
	return s
}

// exactTermsOf are terms of a rank. The large ones cancel with those of the rank
// before: what is left is 2^-600 of them.
func exactTermsOf(rank, size int) []float64 {
	large := func(rank, i int) float64 {
		w := patternWord(uint64(rank), i)
		return math.Ldexp(1+float64(w>>12)/(1<<52), int(w%600)) * float64(int(w>>10&2)-1)
	}
	var terms []float64
	for i := range exactTerms {
		small := math.Ldexp(float64(int64(patternWord(uint64(rank), exactTerms+i))), -600)
		terms = append(terms, large(rank, i), small, -large((rank+1)%size, i))
	}
	return terms
}

func (s *exactSeries) run(n int, samples []int64) error {
	t := startLaps(samples)
	for i := range n {
		s.total = s.own
		if err := channel.SumExact(context.Background(), s.group, &s.total); err != nil {
			return err
		}
		t.lap(i)
	}
	return nil
}

func (s *exactSeries) over() error   { return nil }
func (s *exactSeries) finish() error { return nil }
func (s *exactSeries) close() error  { return nil }
func (s *exactSeries) prepare()      { s.total.Reset() }

// ExactError: a sum is not the correctly rounded one.
type ExactError struct{ Got, Want float64 }

func (e *ExactError) Error() string {
	return fmt.Sprintf("exact sum is %g (%#016x), must be %g (%#016x)", e.Got, math.Float64bits(e.Got), e.Want, math.Float64bits(e.Want))
}

// check compares the sum with that of numbers wide enough to be exact.
func (s *exactSeries) check() error {
	var lists [][]float64
	for rank := range s.group.Size() {
		lists = append(lists, exactTermsOf(rank, s.group.Size()))
	}
	return checkExact(s.total.Round(), lists...)
}
