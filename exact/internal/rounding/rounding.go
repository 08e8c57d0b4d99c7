// Package rounding has the loops that benchmarks of exact sums are measured against: sums of
// float64 as fast as a CPU rounds them.
package rounding

// Loop sums slices whose length is a positive multiple of 64, the same for both.
type Loop struct {
	Name string
	Sum  func(x []float64) float64
	Dot  func(x, y []float64) float64
}

var loops = []Loop{{"go", sum, dot}}

// Loops are those that this CPU can run.
func Loops() []Loop { return loops }

func sum(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}

func dot(x, y []float64) (s float64) {
	for i, v := range x {
		s += v * y[i]
	}
	return s
}
