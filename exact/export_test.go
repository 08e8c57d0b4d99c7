package exact

// Kernels are the sets of instructions by which this CPU can sum slices, the plain one first.
func Kernels() []kernels { return append([]kernels{plain}, runnable()...) }

func (k kernels) String() string { return [...]string{"plain", "avx2", "avx512"}[k] }

// AddSlice and AddProducts are those of the accumulator, by these instructions.
func (k kernels) AddSlice(a *Accumulator, x []float64)       { a.addSlice(k, x) }
func (k kernels) AddProducts(a *Accumulator, x, y []float64) { a.addProducts(k, x, y) }

const (
	SumFrom    = sumFrom
	SumBlock   = sumBlock
	SumStretch = sumStretch
	DotStretch = dotStretch
)
