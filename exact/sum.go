package exact

// Sum returns the float64 nearest to the sum of the elements of x, as
// [Accumulator.Round] rounds it. It does not depend on their order.
func Sum(x []float64) float64 {
	var a Accumulator
	a.AddSlice(x)
	return a.Round()
}

// Dot returns the float64 nearest to the inner product of x and y, as
// [Accumulator.Round] rounds it. It panics if the lengths differ.
func Dot(x, y []float64) float64 {
	var a Accumulator
	a.AddProducts(x, y)
	return a.Round()
}
