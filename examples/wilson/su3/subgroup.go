package su3

import "math"

// SU2 is the matrix a0 + i(a1 σ1 + a2 σ2 + a3 σ3), σ being Pauli's. It is in SU(2) if
// the squares of its elements add up to 1.
type SU2 [4]float64

// Subgroups is the number of SU(2) subgroups that ExtractSU2 and LeftMulSU2 know.
const Subgroups = 3

// planes are the rows and columns that a subgroup acts on.
var planes = [Subgroups][2]int{{0, 1}, {0, 2}, {1, 2}}

// ExtractSU2 returns the matrix k·v, v in SU(2) and k >= 0, for which Re tr(α·a) is
// Re tr(α·k·v) and a constant, for every α of a subgroup.
// (N. Cabibbo and E. Marinari, Phys. Lett. B 119 (1982) 387)
func ExtractSU2(a *Matrix, subgroup int) SU2 {
	i, j := planes[subgroup][0], planes[subgroup][1]
	return SU2{
		(real(a[i][i]) + real(a[j][j])) / 2,
		(imag(a[i][j]) + imag(a[j][i])) / 2,
		(real(a[i][j]) - real(a[j][i])) / 2,
		(imag(a[i][i]) - imag(a[j][j])) / 2,
	}
}

// LeftMulSU2 sets a to α·a, α being an element of a subgroup.
func (a *Matrix) LeftMulSU2(alpha SU2, subgroup int) {
	i, j := planes[subgroup][0], planes[subgroup][1]
	ii, ij := complex(alpha[0], alpha[3]), complex(alpha[2], alpha[1])
	for c := range 3 {
		x, y := a[i][c], a[j][c]
		a[i][c] = mul(ii, x) + mul(ij, y)
		a[j][c] = mulConj(y, ii) - mulConj(x, ij)
	}
}

// Norm returns the square root of the determinant of a.
func (a *SU2) Norm() float64 {
	return math.Sqrt(float64(a[0]*a[0]) + float64(a[1]*a[1]) + float64(a[2]*a[2]) + float64(a[3]*a[3]))
}

// MulAdjoint returns a·b†.
func (a *SU2) MulAdjoint(b *SU2) SU2 {
	// (a0 + i a·σ)(b0 - i b·σ) = a0 b0 + a·b + i(b0 a - a0 b + a×b)·σ
	return SU2{
		float64(a[0]*b[0]) + float64(a[1]*b[1]) + float64(a[2]*b[2]) + float64(a[3]*b[3]),
		float64(a[1]*b[0]) - float64(a[0]*b[1]) + (float64(a[2]*b[3]) - float64(a[3]*b[2])),
		float64(a[2]*b[0]) - float64(a[0]*b[2]) + (float64(a[3]*b[1]) - float64(a[1]*b[3])),
		float64(a[3]*b[0]) - float64(a[0]*b[3]) + (float64(a[1]*b[2]) - float64(a[2]*b[1])),
	}
}
