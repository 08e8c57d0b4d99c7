// Package solver solves D·x = b for the spinor field x, by conjugate gradient on D†D.
package solver

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/internal/pages"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// Operator is D. Its methods set out to D·in or D†·in. They are collective.
type Operator interface {
	Apply(out, in []su3.Spinor) error
	ApplyAdjoint(out, in []su3.Spinor) error
}

// Options say when to stop, and how to report progress.
type Options struct {
	Tolerance     float64 // ‖b - D·x‖ / ‖b‖ to reach
	MaxIterations int
	Progress      func(iteration int, residual float64) // after each; may be nil
}

// Result describes a solution.
type Result struct {
	// Residuals is ‖r‖/‖b‖ before the first iteration and after each, where r is the recursively
	// updated b - D·x.
	Residuals []float64
	// TrueResidual is ‖b - D·x‖/‖b‖, computed from the final x.
	TrueResidual float64
	Norm         float64 // ‖x‖
	Restarts     int     // from the true residual, after rounding had led away from it
}

// Iterations returns the number of iterations; each applies D and D†.
func (r *Result) Iterations() int { return len(r.Residuals) - 1 }

// Errors of Solve.
var (
	ErrIterations = errors.New("solver: it has not converged")
	ErrBreakdown  = errors.New("solver: breakdown")
)

// maxRestarts is more than any system needs that can be solved in double precision: each restart
// reduces the residual further, after rounding had stopped its decrease.
const maxRestarts = 5

// Solver has the fields that a solution needs, for the sites of this node. It belongs to one
// goroutine at a time.
type Solver struct {
	sums       *global.Sums
	r, s, p, q []su3.Spinor
}

// New allocates a solver.
func New(sums *global.Sums, sites int) *Solver {
	field := func() []su3.Spinor { return pages.Make[su3.Spinor](sites) }
	return &Solver{sums: sums, r: field(), s: field(), p: field(), q: field()}
}

// Floats returns the numbers of a field; they share its memory.
func Floats(f []su3.Spinor) []float64 {
	return unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(f))), su3.Floats*len(f))
}

// Solve sets x to the solution of D·x = b, starting from the given x. It uses the conjugate
// gradient on the normal equations D†D·x = D†b, in the form that keeps the residual of the
// system itself. (M. R. Hestenes and E. Stiefel, J. Res. Natl. Bur.
// Stand. 49 (1952) 409, section 10; Å. Björck, Numerical Methods for Least Squares
// Problems, 1996, section 7.4)
//
// Collective, with the same options everywhere; an iteration does not allocate.
// Errors: those of D and of the sums; [ErrIterations]; [ErrBreakdown], if D is singular or not a
// number. The result describes the x that was reached, even after an error.
func (v *Solver) Solve(d Operator, x, b []su3.Spinor, o Options) (res Result, err error) {
	var norms [2]float64
	if err := v.sums.Squares(norms[:1], Floats(b)); err != nil {
		return res, err
	}
	normB := math.Sqrt(norms[0])
	if normB == 0 {
		clear(x)
		res.Residuals = []float64{0}
		return res, nil
	}
	res.Residuals = make([]float64, 0, o.MaxIterations+1)
	for pass := 0; ; pass++ {
		gamma, err := v.restart(d, x, b, norms[:])
		if err != nil {
			return res, err
		}
		res.TrueResidual = math.Sqrt(norms[0]) / normB
		if pass == 0 {
			res.Residuals = append(res.Residuals, res.TrueResidual)
		}
		if err := v.sums.Squares(norms[:1], Floats(x)); err != nil {
			return res, err
		}
		res.Norm = math.Sqrt(norms[0])
		switch {
		case res.TrueResidual <= o.Tolerance:
			return res, nil
		case math.IsNaN(res.TrueResidual):
			return res, fmt.Errorf("%w: the residual is not a number", ErrBreakdown)
		case res.Iterations() >= o.MaxIterations || res.Restarts == maxRestarts:
			return res, fmt.Errorf("%w to %.1e in %d iterations: the residual is %.1e", ErrIterations, o.Tolerance, res.Iterations(), res.TrueResidual)
		}
		if pass > 0 {
			res.Restarts++
		}
		if err := v.iterate(d, x, gamma, normB, o, &res); err != nil {
			return res, err
		}
	}
}

// restart sets r to b - D·x, s and p to D†·r. It returns ‖s‖², and ‖r‖² in norms[0].
func (v *Solver) restart(d Operator, x, b []su3.Spinor, norms []float64) (gamma float64, err error) {
	if err := d.Apply(v.q, x); err != nil {
		return 0, err
	}
	subtract(Floats(v.r), Floats(b), Floats(v.q))
	if err := d.ApplyAdjoint(v.s, v.r); err != nil {
		return 0, err
	}
	copy(v.p, v.s)
	if err := v.sums.Squares(norms[:2], Floats(v.r), Floats(v.s)); err != nil {
		return 0, err
	}
	return norms[1], nil
}

// iterate goes on until the residual that it keeps is small enough.
func (v *Solver) iterate(d Operator, x []su3.Spinor, gamma, normB float64, o Options, res *Result) error {
	var norms [2]float64
	for res.Iterations() < o.MaxIterations {
		if err := d.Apply(v.q, v.p); err != nil {
			return err
		}
		if err := v.sums.Squares(norms[:1], Floats(v.q)); err != nil {
			return err
		}
		alpha := gamma / norms[0]
		if math.IsNaN(alpha) || math.IsInf(alpha, 0) {
			return fmt.Errorf("%w in iteration %d: ‖D†r‖² = %v, ‖Dp‖² = %v", ErrBreakdown, res.Iterations()+1, gamma, norms[0])
		}
		addScaled(Floats(x), alpha, Floats(v.p))
		addScaled(Floats(v.r), -alpha, Floats(v.q))
		if err := d.ApplyAdjoint(v.s, v.r); err != nil {
			return err
		}
		if err := v.sums.Squares(norms[:], Floats(v.r), Floats(v.s)); err != nil {
			return err
		}
		residual := math.Sqrt(norms[0]) / normB
		res.Residuals = append(res.Residuals, residual)
		if o.Progress != nil {
			o.Progress(res.Iterations(), residual)
		}
		if residual <= o.Tolerance {
			return nil
		}
		scaleAdd(Floats(v.p), norms[1]/gamma, Floats(v.s))
		gamma = norms[1]
	}
	return nil
}

// subtract sets z to x - y.
func subtract(z, x, y []float64) {
	x, y = x[:len(z)], y[:len(z)]
	for i := range z {
		z[i] = x[i] - y[i]
	}
}

// addScaled adds a·y to x.
func addScaled(x []float64, a float64, y []float64) {
	y = y[:len(x)]
	for i := range x {
		x[i] += float64(a * y[i])
	}
}

// scaleAdd sets x to a·x + y.
func scaleAdd(x []float64, a float64, y []float64) {
	y = y[:len(x)]
	for i := range x {
		x[i] = float64(a*x[i]) + y[i]
	}
}
