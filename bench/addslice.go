package main

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/exact"
)

// newAddSliceCommand measures what a rank does before an exact sum of all ranks.
func newAddSliceCommand(out *outputOptions) *cobra.Command {
	cmd := newPatternCommand(out, patternAddSlice, "Add terms to an exact sum, on one core", `The terms are of one sign and exponent, which takes longest of long slices.
The sum is compared with one of numbers that are wide enough.`)
	cmd.Flags().Lookup("memory").Hidden = true
	return cmd
}

// addSliceSeries adds the same terms up again and again.
type addSliceSeries struct {
	memory []byte
	terms  []float64
	sum    exact.Accumulator
}

func declareAddSlice(m *measurement, arena []byte) *addSliceSeries {
	return &addSliceSeries{memory: arena[:m.bytes], terms: doubles(arena[:m.bytes])}
}

func (s *addSliceSeries) run(n int, _ []int64) error {
	for range n {
		s.sum.Reset()
		s.sum.AddSlice(s.terms)
	}
	return nil
}

func (s *addSliceSeries) over() error   { return nil }
func (s *addSliceSeries) finish() error { return nil }
func (s *addSliceSeries) close() error  { return nil }

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

func (s *addSliceSeries) check() error { return checkExact(s.sum.Round(), s.terms) }

// checkExact compares a sum of terms with that of numbers wide enough to be exact.
func checkExact(got float64, lists ...[]float64) error {
	const precision = 4400 // bits: the range of float64 twice, and carries
	sum, term := new(big.Float).SetPrec(precision), new(big.Float)
	for _, terms := range lists {
		for _, x := range terms {
			sum.Add(sum, term.SetFloat64(x))
		}
	}
	want, _ := sum.Float64()
	if math.Float64bits(got) != math.Float64bits(want) {
		return &ExactError{got, want}
	}
	return nil
}
