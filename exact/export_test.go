package exact

// Kernels are the sets of instructions by which this CPU can sum slices, the plain one first.
func Kernels() []kernels { return append([]kernels{plain}, runnable()...) }

func (k kernels) String() string { return [...]string{"plain", "avx2", "avx512"}[k] }

// AddSlice and AddProducts are those of the accumulator, by these instructions.
func (k kernels) AddSlice(a *Accumulator, x []float64)       { a.addSlice(k, x) }
func (k kernels) AddProducts(a *Accumulator, x, y []float64) { a.addProducts(k, x, y) }

// AddStridedBy and the others are the functions of almost the same names, by these instructions.
func AddStridedBy[T Float](k kernels, a *Accumulator, x []T, stride int) { addStrided(k, a, x, stride) }
func AddProductsStridedBy[T Float](k kernels, a *Accumulator, x []T, strideX int, y []T, strideY int) {
	addProductsStrided(k, a, x, strideX, y, strideY)
}
func AddComplexBy[T ComplexNumber](k kernels, c *Complex, x []T)  { addComplex(k, c, x) }
func AddInnerBy[T ComplexNumber](k kernels, c *Complex, x, y []T) { addInner(k, c, x, y) }

// AddLevels adds x, and the products of x and y, by the kernels of several levels, and says how many of
// each they have left, which it adds one by one.
func (k kernels) AddLevels(a *Accumulator, x, y []float64) (terms, products int) {
	a.noteTerms(x)
	left := a.addLevels(k, x, nil)
	terms = len(left)
	for _, v := range left {
		a.Add(v)
	}
	a.noteProducts(x, y)
	left = a.addLevels(k, x, y)
	products = len(left)
	for i, v := range left {
		a.AddProduct(v, y[len(x)-products+i])
	}
	return terms, products
}

const (
	WideBlock  = wideBlock
	SumFrom    = sumFrom
	SumBlock   = sumBlock
	SumStretch = sumStretch
	DotStretch = dotStretch
)

// Extent is the extent of the exponents of x, or of the products of x and y.
func (k kernels) Extent(x, y []float64) (low, high int) { return k.extent(x, y, 1) }
