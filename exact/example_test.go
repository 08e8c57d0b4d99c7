package exact_test

import (
	"fmt"

	"github.com/sluice-hpc/sluice/exact"
)

// The terms differ by more than float64 holds. The plain sum loses the small ones.
func Example() {
	x := []float64{1e100, 1, -1e100, 0x1p-60}
	plain := 0.0
	for _, v := range x {
		plain += v
	}
	fmt.Println(plain)
	fmt.Println(exact.Sum(x) == 1) // 1 + 2^-60 rounds to 1
	// Output:
	// 8.673617379884035e-19
	// true
}

// A product is not rounded, and neither overflows nor underflows.
func ExampleDot() {
	fmt.Println(exact.Dot([]float64{1e300, 3, 1e300}, []float64{1e300, 4, -1e300}))
	// Output: 12
}

// Goroutines, or processes, sum what is theirs. How the terms are divided, and in
// what order the parts are merged, changes nothing.
func ExampleAccumulator_Merge() {
	var evens, odds, all exact.Accumulator
	for i := range 1000 {
		x := 1 / float64(i+1)
		if i%2 == 0 {
			evens.Add(x)
		} else {
			odds.Add(x)
		}
		all.Add(x)
	}
	odds.Merge(&evens)
	fmt.Println(odds.Round(), odds.Round() == all.Round())
	// Output: 7.485470860550345 true
}

// Ranks exchange words, and any reduction that adds int64 merges their sums.
func ExampleAccumulator_Words() {
	terms := [][]float64{{1e20, 0.1}, {}, {-1e20}, {0.2}} // of four ranks
	var reduced [exact.Words]int64
	for _, x := range terms {
		var a exact.Accumulator
		a.AddSlice(x)
		var w [exact.Words]int64
		a.Words(&w)
		for i, v := range w { // what an allreduce of int64 does
			reduced[i] += v
		}
	}
	var sum exact.Accumulator
	if err := sum.SetWords(&reduced); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sum.Round())
	// Output: 0.30000000000000004
}

func ExampleAccumulator_AppendBinary() {
	var a, b exact.Accumulator
	a.AddSlice([]float64{1e20, 1})
	saved, _ := a.AppendBinary(nil) // the error is always nil
	if err := b.UnmarshalBinary(saved); err != nil {
		fmt.Println(err)
		return
	}
	b.Add(-1e20) // goes on where a was
	fmt.Println(len(saved), b.Round())
	// Output: 16 1
}
