// Package su3 is the algebra of lattice QCD: 3x3 complex matrices, among them those
// of SU(3), and spinors with colour.
//
// Nothing is fused: every product is rounded before it is added, as the conversions
// float64(x*y) ask for (The Go Programming Language Specification, Floating-point
// operators). A result then has the same bits wherever in a program it is computed.
package su3

import "math"

// Matrix is a 3x3 complex matrix, row by row.
type Matrix [3][3]complex128

// Identity is the unit matrix.
var Identity = Matrix{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}

// mul is a·b, not fused.
func mul(a, b complex128) complex128 {
	return complex(
		float64(real(a)*real(b))-float64(imag(a)*imag(b)),
		float64(real(a)*imag(b))+float64(imag(a)*real(b)))
}

// mulConj is a·conj(b), not fused.
func mulConj(a, b complex128) complex128 {
	return complex(
		float64(real(a)*real(b))+float64(imag(a)*imag(b)),
		float64(imag(a)*real(b))-float64(real(a)*imag(b)))
}

func conj(a complex128) complex128 { return complex(real(a), -imag(a)) }

// norm2 is |a|².
func norm2(a complex128) float64 {
	return float64(real(a)*real(a)) + float64(imag(a)*imag(a))
}

// Mul returns a·b.
func Mul(a, b *Matrix) (c Matrix) {
	for i := range 3 {
		for j := range 3 {
			c[i][j] = mul(a[i][0], b[0][j]) + mul(a[i][1], b[1][j]) + mul(a[i][2], b[2][j])
		}
	}
	return c
}

// MulAdjoint returns a·b†.
func MulAdjoint(a, b *Matrix) (c Matrix) {
	for i := range 3 {
		for j := range 3 {
			c[i][j] = mulConj(a[i][0], b[j][0]) + mulConj(a[i][1], b[j][1]) + mulConj(a[i][2], b[j][2])
		}
	}
	return c
}

// AdjointMul returns a†·b.
func AdjointMul(a, b *Matrix) (c Matrix) {
	for i := range 3 {
		for j := range 3 {
			c[i][j] = mulConj(b[0][j], a[0][i]) + mulConj(b[1][j], a[1][i]) + mulConj(b[2][j], a[2][i])
		}
	}
	return c
}

// Adjoint returns a†.
func Adjoint(a *Matrix) (c Matrix) {
	for i := range 3 {
		for j := range 3 {
			c[i][j] = conj(a[j][i])
		}
	}
	return c
}

// Add adds b to a.
func (a *Matrix) Add(b *Matrix) {
	for i := range 3 {
		for j := range 3 {
			a[i][j] += b[i][j]
		}
	}
}

// ReTrace returns the real part of the trace of a.
func (a *Matrix) ReTrace() float64 { return real(a[0][0]) + real(a[1][1]) + real(a[2][2]) }

// ReTraceMulAdjoint returns the real part of the trace of a·b†.
func ReTraceMulAdjoint(a, b *Matrix) float64 {
	var t float64
	for i := range 3 {
		for j := range 3 {
			t += float64(real(a[i][j])*real(b[i][j])) + float64(imag(a[i][j])*imag(b[i][j]))
		}
	}
	return t
}

// Det returns the determinant of a.
func (a *Matrix) Det() complex128 {
	var c [3]complex128
	cross(&c, &a[0], &a[1])
	return mulConj(a[2][0], c[0]) + mulConj(a[2][1], c[1]) + mulConj(a[2][2], c[2])
}

// cross sets c to the conjugate of the cross product of a and b, which is the third
// row of a matrix of SU(3) whose others are a and b.
func cross(c, a, b *[3]complex128) {
	for i := range 3 {
		j, k := (i+1)%3, (i+2)%3
		c[i] = conj(mul(a[j], b[k]) - mul(a[k], b[j]))
	}
}

// CompleteRows sets the third row to the one that a matrix of SU(3) with the first
// two has.
func (a *Matrix) CompleteRows() { cross(&a[2], &a[0], &a[1]) }

// Reunitarise makes a a matrix of SU(3) again from its first two rows, by the method
// of Gram and Schmidt. They must be linearly independent.
func (a *Matrix) Reunitarise() {
	normalise(&a[0])
	var p complex128
	for j := range 3 {
		p += mulConj(a[1][j], a[0][j])
	}
	for j := range 3 {
		a[1][j] -= mul(p, a[0][j])
	}
	normalise(&a[1])
	a.CompleteRows()
}

func normalise(v *[3]complex128) {
	n := math.Sqrt(norm2(v[0]) + norm2(v[1]) + norm2(v[2]))
	for j := range 3 {
		v[j] = complex(real(v[j])/n, imag(v[j])/n)
	}
}

// Deviation says how far a is from SU(3): the largest modulus of an element of
// a·a† - 1, and of det a - 1. It is NaN if an element of a is, or infinite.
func (a *Matrix) Deviation() float64 {
	b := MulAdjoint(a, a)
	d := math.Sqrt(norm2(a.Det() - 1))
	for i := range 3 {
		for j := range 3 {
			e := b[i][j]
			if i == j {
				e -= 1
			}
			d = max(d, math.Sqrt(norm2(e))) // NaN if either is
		}
	}
	if math.IsInf(d, 0) {
		return math.NaN()
	}
	return d
}
