package exact

// Sum returns the sum of the elements of x, rounded once as by [Accumulator.Round]. The result does
// not depend on their order.
func Sum(x []float64) float64 {
	var a Accumulator
	a.AddSlice(x)
	return a.Round()
}

// Dot returns the inner product of x and y, rounded once as by [Accumulator.Round]. It panics if
// the lengths differ.
func Dot(x, y []float64) float64 {
	var a Accumulator
	a.AddProducts(x, y)
	return a.Round()
}
