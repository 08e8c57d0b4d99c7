package exact

// Sum returns the sum of the elements of x, rounded once as by [Accumulator.Round]. The result does
// not depend on their order.
func Sum[T Float](x []T) float64 {
	var a Accumulator
	AddStrided(&a, x, 1)
	return a.Round()
}

// Dot returns the inner product of x and y, rounded once as by [Accumulator.Round]. It panics if
// the lengths differ.
func Dot[T Float](x, y []T) float64 {
	var a Accumulator
	AddProductsStrided(&a, x, 1, y, 1)
	return a.Round()
}
