package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/examples/wilson/dirac"
	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/internal/pages"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/nersc"
	"github.com/sluice-hpc/sluice/examples/wilson/philox"
	"github.com/sluice-hpc/sluice/examples/wilson/solver"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
	"github.com/sluice-hpc/sluice/qmp"
)

// session is a run of the program on one node.
type session struct {
	*options
	comm     *qmp.Comm
	sums     *global.Sums
	lattice  *lattice.Lattice
	field    *gauge.Field
	header   nersc.Header // of -in; of the field that is written, unless there are sweeps
	sequence int          // of the field: sweeps that it has seen
	out      io.Writer
	progress *progress
	report   report
}

// run does what the options say, and prints on node 0. Collective. Errors of type *qmp.Error are
// local to this node; others are the same on all nodes.
func run(o *options, comm *qmp.Comm) (err error) {
	s := &session{options: o, comm: comm, sums: global.New(comm, o.sumKind), out: io.Discard}
	if comm.IsPrimaryNode() {
		s.out = os.Stdout
	}
	if o.scaling != "" {
		if comm.IsPrimaryNode() {
			err = scaling(s.out, o.scaling, o.reports)
		}
		return s.sums.Agree(err, 0)
	}
	s.progress = newProgress(comm.IsPrimaryNode())
	defer s.progress.clear()

	var file *nersc.File
	if o.in != "" {
		file, err = nersc.Open(o.in)
		if err == nil {
			defer file.Close()
		}
		if err = s.sums.Agree(err, 0); err != nil {
			return err
		}
	}
	if err := s.divide(file); err != nil {
		return err
	}
	if s.field, err = gauge.New(comm, s.lattice); err != nil {
		return err
	}
	defer func() {
		if e := s.field.Close(); err == nil {
			err = e
		}
	}()
	for _, step := range []func() error{
		func() error { return s.begin(file) },
		s.heatbath,
		s.measure,
		s.write,
		s.solve,
		s.save,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// divide divides the lattice among the nodes.
func (s *session) divide(file *nersc.File) error {
	extents := s.extents
	switch {
	case file != nil && extents != (lattice.Dims{}) && extents != file.Header.Dims:
		return fmt.Errorf("-lattice: it must be that of %s, %v", s.in, file.Header.Dims)
	case file != nil:
		extents = file.Header.Dims
	case extents == (lattice.Dims{}):
		extents = defaultExtents
	}
	if s.geometry != (lattice.Dims{}) {
		if n := s.comm.NumberOfNodes(); s.geometry.Product() != n {
			return fmt.Errorf("-geom: a grid of %v has %d nodes, but the job has %d", s.geometry, s.geometry.Product(), n)
		}
		if _, err := lattice.New(extents, s.geometry, lattice.Dims{}); err != nil {
			return fmt.Errorf("-geom: %w", err)
		}
		if err := s.comm.DeclareLogicalTopology(s.geometry[:]); err != nil {
			return err
		}
	}
	if err := s.comm.LayoutGrid(extents[:], qmp.MinimalSurface()); err != nil {
		return err
	}
	var grid, at lattice.Dims
	copy(grid[:], s.comm.LogicalDimensions())
	copy(at[:], s.comm.LogicalCoordinates())
	var err error
	if s.lattice, err = lattice.New(extents, grid, at); err != nil {
		return err
	}
	s.report.divided(s.lattice)
	fmt.Fprintf(s.out, "lattice      %v on a grid of %v nodes, %v each\n", extents, grid, s.lattice.Local)
	return nil
}

// begin makes the initial field.
func (s *session) begin(file *nersc.File) error {
	began := time.Now()
	if file != nil {
		file.Tolerance = s.tolerance
		err := file.Read(s.field, s.sums)
		if s.comm.IsPrimaryNode() {
			for _, w := range file.Warnings {
				fmt.Fprintf(os.Stderr, "wilson: warning: %s: %s\n", s.in, w)
			}
		}
		if err != nil {
			return err
		}
		s.header = file.Header
		s.sequence, _ = file.Header.Sequence()
		fmt.Fprintf(s.out, "gauge field  read from %s in %s: %v, %d rows; %s verified\n", s.in, seconds(time.Since(began)), file.Header.Format, file.Header.Rows, strings.Join(file.Header.Verifies(), ", "))
		return nil
	}
	fmt.Fprintf(s.out, "gauge field  %s start, seed %d\n", s.start, s.seed)
	if s.start == startCold {
		return s.field.Cold()
	}
	return s.field.Hot(s.seed)
}

func (s *session) heatbath() error {
	if s.sweeps == 0 {
		return nil
	}
	began := time.Now()
	for i := range s.sweeps {
		s.sequence++
		if err := s.field.Heatbath(s.seed, uint32(s.sequence), s.beta); err != nil {
			return err
		}
		s.progress.show(float64(i+1)/float64(s.sweeps), "sweep %d of %d", i+1, s.sweeps)
	}
	s.progress.clear()
	spent := time.Since(began)
	links := float64(lattice.Axes * s.lattice.Sites() * s.sweeps)
	fmt.Fprintf(s.out, "heat-bath    %d sweeps at β = %v in %s, %.2f µs per link and node\n", s.sweeps, s.beta, seconds(spent), spent.Seconds()*1e6/links)
	return nil
}

func (s *session) measure() (err error) {
	if s.report.Plaquette, s.report.LinkTrace, err = s.sums.Averages(s.field); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "plaquette    %.17g\n", s.report.Plaquette)
	fmt.Fprintf(s.out, "link trace   %.17g\n", s.report.LinkTrace)
	return nil
}

func (s *session) write() error {
	if s.options.out == "" {
		return nil
	}
	began := time.Now()
	h := s.header
	if s.in == "" || s.sweeps > 0 {
		h = nersc.Header{
			SequenceNumber: strconv.Itoa(s.sequence),
			EnsembleLabel:  fmt.Sprintf("Wilson gauge action, beta = %v", s.beta),
			Creator:        "wilson, an example of sluice",
			CreationDate:   time.Now().UTC().Format(time.RFC3339),
			Boundary:       [lattice.Axes]string(slices.Repeat([]string{"PERIODIC"}, lattice.Axes)),
		}
	}
	h.Rows, h.Format = s.rows, s.format
	if err := nersc.Write(s.options.out, h, s.field, s.sums); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "written      %s in %s\n", s.options.out, seconds(time.Since(began)))
	return nil
}

// sourceStream keeps the random numbers of the source apart from those of package gauge.
const sourceStream = 1 << 16

// rightHandSide returns b at the sites of this node.
func (s *session) rightHandSide() []su3.Spinor {
	b := pages.Make[su3.Spinor](s.lattice.Sites())
	for i := range b {
		global := s.lattice.GlobalIndex(s.lattice.Local.Coords(i))
		switch {
		case s.source == sourceRandom:
			r := philox.New(s.seed, uint32(global), sourceStream, 0)
			for c := range b[i] {
				for k := range b[i][c] {
					b[i][c][k] = complex(r.Normal())
				}
			}
		case global == 0:
			b[i][0][0] = 1
		}
	}
	return b
}

func (s *session) solve() (err error) {
	if s.kappa == 0 {
		return nil
	}
	d, err := dirac.New(s.comm, s.field, s.kappa, dirac.Options{Antiperiodic: !s.periodic, SelfMessages: s.selfMessages})
	if err != nil {
		return err
	}
	defer func() {
		if e := d.Close(); err == nil {
			err = e
		}
	}()
	x, b := pages.Make[su3.Spinor](s.lattice.Sites()), s.rightHandSide()
	solve := solver.New(s.sums, len(b))
	o := solver.Options{Tolerance: s.tolerance, MaxIterations: s.maxIterations}
	o.Progress = func(iteration int, residual float64) {
		s.progress.show(converged(residual, s.tolerance), "iteration %d, residual %.1e", iteration, residual)
	}
	machine := s.comm.Machine()
	machine.ProfControl(1)
	defer machine.ProfControl(0)
	if err := d.Apply(x, b); err != nil { // connects to the neighbours
		return err
	}
	clear(x)
	if err := s.comm.Barrier(); err != nil {
		return err
	}
	machine.ResetTotalTime()
	s.sums.Reset()
	d.ResetTimes()
	began := time.Now()
	result, err := solve.Solve(d, x, b, o)
	spent, communicated := time.Since(began), machine.TotalTime()
	s.progress.clear()
	if err != nil {
		return err
	}
	s.report.solved(&result)
	fmt.Fprintf(s.out, "solution     κ = %v: %d iterations of the conjugate gradient on D†D, %d restarts, %s\n", s.kappa, result.Iterations(), result.Restarts, seconds(spent))
	fmt.Fprintf(s.out, "             ‖b - D·x‖ / ‖b‖ = %.3e, recomputed; ‖x‖ = %.17g\n", result.TrueResidual, result.Norm)
	if !(result.TrueResidual <= s.tolerance) || math.IsNaN(result.Norm) {
		return fmt.Errorf("the solution's residual is %v", result.TrueResidual)
	}
	return s.times(d, b, spent, communicated)
}
