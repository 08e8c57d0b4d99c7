// Package global computes sums over all sites of all nodes: exact ones, which have the same bits
// on every grid, and plain ones.
package global

import (
	"time"

	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
	"github.com/sluice-hpc/sluice/qmp"
)

// MaxSquares is the largest number of sums that Squares computes.
const MaxSquares = 2

// Sums computes sums over the nodes of a communicator. It belongs to one goroutine at a time.
type Sums struct {
	comm   *qmp.Comm
	kind   Kind
	parts  [MaxSquares]exact.Accumulator
	all    [MaxSquares]*exact.Accumulator // parts
	values [1]float64
	sites  []float64 // the squares of each site

	// Local is the time spent on sums over the sites of this node, Global that on sums over all
	// nodes. Count is the number of sums.
	Local, Global time.Duration
	Count         int
}

// New returns sums of a kind.
func New(comm *qmp.Comm, kind Kind) *Sums {
	s := &Sums{comm: comm, kind: kind}
	for i := range s.parts {
		s.all[i] = &s.parts[i]
	}
	return s
}

// Reset sets the counters to zero.
func (s *Sums) Reset() { s.Local, s.Global, s.Count = 0, 0, 0 }

// Total returns the sum of the elements of x of all nodes; x has one element for each site.
// Collective. Errors: those of the communication.
func (s *Sums) Total(x []float64) (float64, error) {
	began := time.Now()
	sum := s.values[:1]
	if s.kind == Plain {
		sum[0] = total(x)
	} else {
		s.parts[0].Reset()
		s.parts[0].AddSlice(x)
	}
	err := s.reduce(began, sum)
	return sum[0], err
}

// Squares sets each element of dst, at most MaxSquares, to the sum of the squares of the elements
// of a field of all nodes. A field has as many elements for each site as a spinor. Squares
// allocates only the first time. Collective. Errors: those of the communication.
func (s *Sums) Squares(dst []float64, fields ...[]float64) error {
	began := time.Now()
	for i, x := range fields {
		switch s.kind {
		case Exact:
			s.parts[i].Reset()
			s.parts[i].AddProducts(x, x)
		case Sites:
			s.parts[i].Reset()
			s.sites = s.sites[:0]
			for ; len(x) > 0; x = x[su3.Floats:] {
				s.sites = append(s.sites, squares(x[:su3.Floats]))
			}
			s.parts[i].AddSlice(s.sites)
		case Plain:
			dst[i] = squares(x)
		}
	}
	return s.reduce(began, dst)
}

// reduce adds up the sums of the nodes, the local parts of which are in sums or parts.
func (s *Sums) reduce(began time.Time, sums []float64) (err error) {
	summed := time.Now()
	switch {
	case s.kind == Plain:
		err = s.comm.SumDoubleArray(sums)
	default:
		err = s.comm.SumExact(s.all[:len(sums)]...)
	}
	if s.kind != Plain && err == nil {
		for i := range sums {
			sums[i] = s.parts[i].Round()
		}
	}
	s.Local += summed.Sub(began)
	s.Global += time.Since(summed)
	s.Count += len(sums)
	return err
}

// total adds up x. Four sums at a time: a processor begins the next addition before the
// last one is done.
func total(x []float64) float64 {
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		a, b, c, d = a+x[0], b+x[1], c+x[2], d+x[3]
	}
	for _, y := range x {
		a += y
	}
	return (a + b) + (c + d)
}

// squares adds up the squares of the elements of x, as total does.
func squares(x []float64) float64 {
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		a += float64(x[0] * x[0])
		b += float64(x[1] * x[1])
		c += float64(x[2] * x[2])
		d += float64(x[3] * x[3])
	}
	for _, y := range x {
		a += float64(y * y)
	}
	return (a + b) + (c + d)
}
