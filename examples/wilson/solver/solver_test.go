package solver_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/examples/wilson/dirac"
	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/internal/single"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/philox"
	"github.com/sluice-hpc/sluice/examples/wilson/solver"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// system is a field, D on it, and a right-hand side.
type system struct {
	field *gauge.Field
	sums  *global.Sums
	d     *dirac.Operator
	b     []su3.Spinor
}

func setUp(t *testing.T, kind global.Kind, change func(*gauge.Field, []su3.Spinor)) *system {
	comm := single.Comm(t)
	s := &system{field: single.Field(t, comm, lattice.Dims{4, 4, 2, 4}), sums: global.New(comm, kind)}
	require.NoError(t, s.field.Hot(1))
	s.b = make([]su3.Spinor, s.field.Lattice.Sites())
	for i := range s.b {
		r := philox.New(2, uint32(i), 0, 0)
		for c := range s.b[i] {
			for k := range s.b[i][c] {
				s.b[i][c][k] = complex(r.Normal())
			}
		}
	}
	if change != nil {
		change(s.field, s.b)
	}
	var err error
	s.d, err = dirac.New(comm, s.field, 0.15, dirac.Options{Antiperiodic: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.d.Close()) })
	return s
}

func (s *system) solve(x []su3.Spinor, o solver.Options) (solver.Result, error) {
	return solver.New(s.sums, len(s.b)).Solve(s.d, x, s.b, o)
}

var strict = solver.Options{Tolerance: 1e-10, MaxIterations: 500}

func norm(f []su3.Spinor) float64 {
	var sum float64
	for _, y := range solver.Floats(f) {
		sum += y * y
	}
	return math.Sqrt(sum)
}

func TestSolve(t *testing.T) {
	var residuals [3][]float64
	for i, kind := range []global.Kind{global.Exact, global.Sites, global.Plain} {
		s := setUp(t, kind, nil)
		told := 0
		o := strict
		x := make([]su3.Spinor, len(s.b))
		var r solver.Result
		o.Progress = func(iteration int, residual float64) {
			told++
			require.Equal(t, told, iteration)
			require.Positive(t, residual)
		}
		r, err := s.solve(x, o)
		require.NoError(t, err)
		require.Equal(t, told, r.Iterations())
		require.InDelta(t, norm(x), r.Norm, 1e-10)
		require.Equal(t, 1.0, r.Residuals[0]) // of x = 0

		dx := make([]su3.Spinor, len(x))
		require.NoError(t, s.d.Apply(dx, x))
		difference, b := solver.Floats(dx), solver.Floats(s.b)
		for k := range difference {
			difference[k] -= b[k]
		}
		require.LessOrEqual(t, norm(dx)/norm(s.b), 1e-10)
		require.InEpsilon(t, norm(dx)/norm(s.b), r.TrueResidual, 1e-6)
		require.Zero(t, r.Restarts)
		residuals[i] = r.Residuals

		// From the solution there is nothing left to do.
		again, err := s.solve(x, strict)
		require.NoError(t, err)
		require.Zero(t, again.Iterations())
	}
	// They differ by rounding.
	for _, other := range residuals[1:] {
		for k := range min(len(residuals[0]), len(other)) {
			require.InEpsilon(t, residuals[0][k], other[k], 1e-6)
		}
	}
}

// Below what a start leaves of the residual that the iteration keeps, it starts again.
func TestRestart(t *testing.T) {
	s := setUp(t, global.Exact, nil)
	x := make([]su3.Spinor, len(s.b))
	r, err := s.solve(x, solver.Options{Tolerance: 1e-15, MaxIterations: 1000})
	if err != nil {
		require.ErrorIs(t, err, solver.ErrIterations)
	}
	require.Positive(t, r.Restarts)
	require.Less(t, r.TrueResidual, 1e-13)
}

// A gauge transformation changes the history by rounding only.
func TestGaugeInvariance(t *testing.T) {
	before := setUp(t, global.Exact, nil)
	after := setUp(t, global.Exact, func(f *gauge.Field, b []su3.Spinor) {
		require.NoError(t, f.Transform(7))
		for i := range b {
			g := f.Rotation(7, f.Lattice.Global.Coords(i))
			b[i] = su3.MulVector(&g, &b[i])
		}
	})
	a, err := before.solve(make([]su3.Spinor, len(before.b)), strict)
	require.NoError(t, err)
	b, err := after.solve(make([]su3.Spinor, len(after.b)), strict)
	require.NoError(t, err)
	require.Equal(t, a.Iterations(), b.Iterations())
	for i := range a.Residuals {
		require.InEpsilon(t, a.Residuals[i], b.Residuals[i], 1e-7, "iteration %d", i)
	}
	require.InEpsilon(t, a.Norm, b.Norm, 1e-10)
}

func TestZero(t *testing.T) {
	s := setUp(t, global.Exact, func(_ *gauge.Field, b []su3.Spinor) { clear(b) })
	x := make([]su3.Spinor, len(s.b))
	x[0][0][0] = 1
	r, err := s.solve(x, strict)
	require.NoError(t, err)
	require.Equal(t, solver.Result{Residuals: []float64{0}}, r)
	require.Zero(t, norm(x))
}

func TestNotConverged(t *testing.T) {
	s := setUp(t, global.Exact, nil)
	r, err := s.solve(make([]su3.Spinor, len(s.b)), solver.Options{Tolerance: 1e-10, MaxIterations: 3})
	require.ErrorIs(t, err, solver.ErrIterations)
	require.ErrorContains(t, err, "in 3 iterations")
	require.Equal(t, 3, r.Iterations())
	require.InEpsilon(t, r.Residuals[3], r.TrueResidual, 1e-12)
}

func TestBreakdown(t *testing.T) {
	s := setUp(t, global.Exact, func(f *gauge.Field, _ []su3.Spinor) {
		f.Link(lattice.Dims{1, 2, 1, 0}, 2)[1][1] = complex(math.NaN(), 0)
	})
	_, err := s.solve(make([]su3.Spinor, len(s.b)), strict)
	require.ErrorIs(t, err, solver.ErrBreakdown)
}
