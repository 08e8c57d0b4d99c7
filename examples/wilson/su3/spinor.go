package su3

// Spinor has four spins of three colours each, the spins of a colour together: two
// spins of a colour are four float64 in a row, which is what a vector register holds.
type Spinor [3][4]complex128

// Half is the two spins that are left of a spinor by a projection (1 ± γ)/2.
type Half [3][2]complex128

// Floats is the number of float64 of a [Spinor].
const Floats = 24

// The matrices γ are those of DeGrand and Rossi, in which γ5 = γx·γy·γz·γt is diagonal:
//
//	     γx           γy           γz           γt
//	 .  .  .  i   .  .  . -1   .  .  i  .   .  .  1  .
//	 .  .  i  .   .  .  1  .   .  .  . -i   .  .  .  1
//	 . -i  .  .   .  1  .  .  -i  .  .  .   1  .  .  .
//	-i  .  .  .  -1  .  .  .   .  i  .  .   .  1  .  .
//
// (T. A. DeGrand and P. Rossi, Comput. Phys. Commun. 60 (1990) 211) So the last two
// spins of (1 ± γ)ψ are the first two, exchanged or not, times 1, -1, i or -i.

func timesI(a complex128) complex128      { return complex(-imag(a), real(a)) }
func timesMinusI(a complex128) complex128 { return complex(imag(a), -real(a)) }

// ProjectMinus sets h to the first two spins of (1-γ)·p, γ being that of an axis.
func (h *Half) ProjectMinus(p *Spinor, axis int) {
	switch axis {
	case 0:
		for c := range 3 {
			h[c][0] = p[c][0] + timesMinusI(p[c][3])
			h[c][1] = p[c][1] + timesMinusI(p[c][2])
		}
	case 1:
		for c := range 3 {
			h[c][0] = p[c][0] + p[c][3]
			h[c][1] = p[c][1] - p[c][2]
		}
	case 2:
		for c := range 3 {
			h[c][0] = p[c][0] + timesMinusI(p[c][2])
			h[c][1] = p[c][1] + timesI(p[c][3])
		}
	default:
		for c := range 3 {
			h[c][0] = p[c][0] - p[c][2]
			h[c][1] = p[c][1] - p[c][3]
		}
	}
}

// ProjectPlus sets h to the first two spins of (1+γ)·p, γ being that of an axis.
func (h *Half) ProjectPlus(p *Spinor, axis int) {
	switch axis {
	case 0:
		for c := range 3 {
			h[c][0] = p[c][0] + timesI(p[c][3])
			h[c][1] = p[c][1] + timesI(p[c][2])
		}
	case 1:
		for c := range 3 {
			h[c][0] = p[c][0] - p[c][3]
			h[c][1] = p[c][1] + p[c][2]
		}
	case 2:
		for c := range 3 {
			h[c][0] = p[c][0] + timesI(p[c][2])
			h[c][1] = p[c][1] + timesMinusI(p[c][3])
		}
	default:
		for c := range 3 {
			h[c][0] = p[c][0] + p[c][2]
			h[c][1] = p[c][1] + p[c][3]
		}
	}
}

// AddMinus adds to p the spinor (1-γ)·q whose first two spins are h.
func (p *Spinor) AddMinus(h *Half, axis int) {
	switch axis {
	case 0:
		for c := range 3 {
			p[c][0] += h[c][0]
			p[c][1] += h[c][1]
			p[c][2] += timesI(h[c][1])
			p[c][3] += timesI(h[c][0])
		}
	case 1:
		for c := range 3 {
			p[c][0] += h[c][0]
			p[c][1] += h[c][1]
			p[c][2] -= h[c][1]
			p[c][3] += h[c][0]
		}
	case 2:
		for c := range 3 {
			p[c][0] += h[c][0]
			p[c][1] += h[c][1]
			p[c][2] += timesI(h[c][0])
			p[c][3] += timesMinusI(h[c][1])
		}
	default:
		for c := range 3 {
			p[c][0] += h[c][0]
			p[c][1] += h[c][1]
			p[c][2] -= h[c][0]
			p[c][3] -= h[c][1]
		}
	}
}

// AddPlus adds to p the spinor (1+γ)·q whose first two spins are h.
func (p *Spinor) AddPlus(h *Half, axis int) {
	switch axis {
	case 0:
		for c := range 3 {
			p[c][0] += h[c][0]
			p[c][1] += h[c][1]
			p[c][2] += timesMinusI(h[c][1])
			p[c][3] += timesMinusI(h[c][0])
		}
	case 1:
		for c := range 3 {
			p[c][0] += h[c][0]
			p[c][1] += h[c][1]
			p[c][2] += h[c][1]
			p[c][3] -= h[c][0]
		}
	case 2:
		for c := range 3 {
			p[c][0] += h[c][0]
			p[c][1] += h[c][1]
			p[c][2] += timesMinusI(h[c][0])
			p[c][3] += timesI(h[c][1])
		}
	default:
		for c := range 3 {
			p[c][0] += h[c][0]
			p[c][1] += h[c][1]
			p[c][2] += h[c][0]
			p[c][3] += h[c][1]
		}
	}
}

// Gamma returns γ·p, γ being that of an axis.
func Gamma(p *Spinor, axis int) (q Spinor) {
	var plus, minus Spinor
	var h Half
	h.ProjectPlus(p, axis)
	plus.AddPlus(&h, axis)
	h.ProjectMinus(p, axis)
	minus.AddMinus(&h, axis)
	for c := range 3 {
		for s := range 4 {
			q[c][s] = complex((real(plus[c][s])-real(minus[c][s]))/2, (imag(plus[c][s])-imag(minus[c][s]))/2)
		}
	}
	return q
}

// Gamma5 returns γ5·p.
func Gamma5(p *Spinor) Spinor {
	q := *p
	for c := range 3 {
		q[c][2], q[c][3] = -p[c][2], -p[c][3]
	}
	return q
}

// mulHalf sets r to u·h. The order of the operations is that of the vector code.
func mulHalf(r *Half, u *Matrix, h *Half) {
	for i := range 3 {
		for s := range 2 {
			re := float64(real(u[i][0]) * real(h[0][s]))
			im := float64(real(u[i][0]) * imag(h[0][s]))
			re -= float64(imag(u[i][0]) * imag(h[0][s]))
			im += float64(imag(u[i][0]) * real(h[0][s]))
			re += float64(real(u[i][1]) * real(h[1][s]))
			im += float64(real(u[i][1]) * imag(h[1][s]))
			re -= float64(imag(u[i][1]) * imag(h[1][s]))
			im += float64(imag(u[i][1]) * real(h[1][s]))
			re += float64(real(u[i][2]) * real(h[2][s]))
			im += float64(real(u[i][2]) * imag(h[2][s]))
			re -= float64(imag(u[i][2]) * imag(h[2][s]))
			im += float64(imag(u[i][2]) * real(h[2][s]))
			r[i][s] = complex(re, im)
		}
	}
}

// adjointMulHalf sets r to u†·h.
func adjointMulHalf(r *Half, u *Matrix, h *Half) {
	for i := range 3 {
		for s := range 2 {
			re := float64(real(u[0][i]) * real(h[0][s]))
			im := float64(real(u[0][i]) * imag(h[0][s]))
			re += float64(imag(u[0][i]) * imag(h[0][s]))
			im -= float64(imag(u[0][i]) * real(h[0][s]))
			re += float64(real(u[1][i]) * real(h[1][s]))
			im += float64(real(u[1][i]) * imag(h[1][s]))
			re += float64(imag(u[1][i]) * imag(h[1][s]))
			im -= float64(imag(u[1][i]) * real(h[1][s]))
			re += float64(real(u[2][i]) * real(h[2][s]))
			im += float64(real(u[2][i]) * imag(h[2][s]))
			re += float64(imag(u[2][i]) * imag(h[2][s]))
			im -= float64(imag(u[2][i]) * real(h[2][s]))
			r[i][s] = complex(re, im)
		}
	}
}

// Mul sets r to u·h. r must not be h.
func (r *Half) Mul(u *Matrix, h *Half) { mulHalf(r, u, h) }

// AdjointMul sets r to u†·h. r must not be h.
func (r *Half) AdjointMul(u *Matrix, h *Half) { adjointMulHalf(r, u, h) }

// MulVector returns u·p, a rotation of the colours of p.
func MulVector(u *Matrix, p *Spinor) (q Spinor) {
	for i := range 3 {
		for s := range 4 {
			q[i][s] = mul(u[i][0], p[0][s]) + mul(u[i][1], p[1][s]) + mul(u[i][2], p[2][s])
		}
	}
	return q
}
