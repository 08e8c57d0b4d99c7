package gauge

import "github.com/sluice-hpc/sluice/examples/wilson/su3"

// Planes is the number of planes that a plaquette can lie in.
const Planes = 6

// Plaquettes sets sums, which has an element for each site of this rank, to the sum of
// Re tr U over the plaquettes U of that site, one in each plane. The average plaquette
// is the sum over all sites of all ranks, divided by [Planes] and 3 and their number.
// The field must have been exchanged.
func (f *Field) Plaquettes(sums []float64) {
	k := 0
	for i := range f.interior() {
		sums[k] = f.plaquettes(i)
		k++
	}
}

func (f *Field) plaquettes(i int) (sum float64) {
	for mu := range f.links {
		for nu := range mu {
			a := su3.Mul(&f.links[mu][i], &f.links[nu][i+f.stride[mu]])
			b := su3.Mul(&f.links[nu][i], &f.links[mu][i+f.stride[nu]])
			sum += su3.ReTraceMulAdjoint(&a, &b)
		}
	}
	return sum
}

// Traces sets sums, which has an element for each site of this rank, to the sum of Re
// tr U over the four links U of that site.
func (f *Field) Traces(sums []float64) {
	k := 0
	for i := range f.interior() {
		sums[k] = 0
		for mu := range f.links {
			sums[k] += f.links[mu][i].ReTrace()
		}
		k++
	}
}

// staple returns the sum of what closes the six plaquettes of a link: their traces add
// up to that of the link times the staple.
func (f *Field) staple(i, mu int) (sum su3.Matrix) {
	for nu := range f.links {
		if nu == mu {
			continue
		}
		up, left, right := i+f.stride[mu], i+f.stride[nu], i
		a := su3.MulAdjoint(&f.links[nu][up], &f.links[mu][left])
		a = su3.MulAdjoint(&a, &f.links[nu][right])
		sum.Add(&a)
		down := i - f.stride[nu]
		a = su3.Mul(&f.links[mu][down], &f.links[nu][down+f.stride[mu]])
		a = su3.AdjointMul(&a, &f.links[nu][down])
		sum.Add(&a)
	}
	return sum
}
