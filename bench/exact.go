package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"

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

func declareExact(_ context.Context, b *bed, _ *measurement) series {
	s := &exactSeries{group: b.group}
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

func (s *exactSeries) run(n int, samples []int64) {
	repeat(n, samples, func() {
		s.total = s.own
		must(channel.SumExact(context.Background(), s.group, &s.total))
	})
}

func (s *exactSeries) close()   {}
func (s *exactSeries) prepare() { s.total.Reset() }

// check compares the sum with that of numbers wide enough to be exact.
func (s *exactSeries) check() {
	var lists [][]float64
	for rank := range s.group.Size() {
		lists = append(lists, exactTermsOf(rank, s.group.Size()))
	}
	checkExact(s.total.Round(), lists...)
}

const longAddSlice = `The terms are of one sign and exponent, which takes longest of long slices.
The sum is compared with one of numbers that are wide enough.`

// addSliceSeries adds the same terms up again and again.
type addSliceSeries struct {
	memory []byte
	terms  []float64
	sum    exact.Accumulator
}

func declareAddSlice(_ context.Context, b *bed, m *measurement) series {
	memory, _ := b.memory(&m.spec, m.bytes, 0)
	return &addSliceSeries{memory: memory, terms: doubles(memory)}
}

func (s *addSliceSeries) run(n int, samples []int64) {
	repeat(n, samples, func() {
		s.sum.Reset()
		s.sum.AddSlice(s.terms)
	})
}

func (s *addSliceSeries) close() {}

// prepare makes terms in [1, 2).
func (s *addSliceSeries) prepare() {
	const one = 0x3ff << 52
	fillPattern(s.memory, seedFor(0, len(s.memory), patternAddSlice))
	for i := range s.terms {
		b := s.memory[i*doubleBytes:]
		binary.NativeEndian.PutUint64(b, one|binary.NativeEndian.Uint64(b)>>12)
	}
	s.sum.Reset()
}

func (s *addSliceSeries) check() { checkExact(s.sum.Round(), s.terms) }

// checkExact compares a sum of terms with that of numbers wide enough to be exact.
func checkExact(got float64, lists ...[]float64) {
	const precision = 4400 // bits: the range of float64 twice, and carries
	sum, term := new(big.Float).SetPrec(precision), new(big.Float)
	for _, terms := range lists {
		for _, x := range terms {
			sum.Add(sum, term.SetFloat64(x))
		}
	}
	want, _ := sum.Float64()
	if math.Float64bits(got) != math.Float64bits(want) {
		must(fmt.Errorf("exact sum is %g (%#016x), must be %g (%#016x)", got, math.Float64bits(got), want, math.Float64bits(want)))
	}
}
