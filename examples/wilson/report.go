package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/sluice-hpc/sluice/examples/wilson/dirac"
	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/solver"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// report is what -json writes. Numbers are written so that they are read back as they
// were, bit by bit.
type report struct {
	Lattice   lattice.Dims `json:"lattice"`
	Geometry  lattice.Dims `json:"geometry"`
	Plaquette float64      `json:"plaquette"`
	LinkTrace float64      `json:"link_trace"`

	Residuals    []float64 `json:"residuals,omitempty"` // before the first iteration, and after each
	TrueResidual float64   `json:"true_residual"`
	Norm         float64   `json:"norm"` // of the solution

	Times *times `json:"times,omitempty"`
}

// times are in seconds.
type times struct {
	Solve         float64            `json:"solve"`
	Application   float64            `json:"application"` // of D or D†
	Flops         float64            `json:"flops"`       // a second, of the operator, of all nodes
	Communication float64            `json:"communication"`
	Sums          map[string]sumTime `json:"sums"` // by their kind
}

// sumTime is what the norm of a field costs.
type sumTime struct {
	Local  float64 `json:"local"`
	Global float64 `json:"global"`
}

func (r *report) divided(l *lattice.Lattice) { r.Lattice, r.Geometry = l.Global, l.Grid }

func (r *report) solved(result *solver.Result) {
	r.Residuals, r.TrueResidual, r.Norm = result.Residuals, result.TrueResidual, result.Norm
}

// times reports what the solution has cost, of the node where it was most, and what sums
// cost of either kind.
func (s *session) times(d *dirac.Operator, b []su3.Spinor, spent, communicated time.Duration) error {
	t := &times{Solve: spent.Seconds(), Application: d.Time.Seconds() / float64(d.Applied), Communication: communicated.Seconds(), Sums: map[string]sumTime{}}
	waited := d.Waited.Seconds() / float64(d.Applied)
	sums := (s.sums.Local + s.sums.Global).Seconds()
	for _, x := range []*float64{&t.Solve, &t.Application, &t.Communication, &waited, &sums} {
		if err := s.comm.MaxDouble(x); err != nil {
			return err
		}
	}
	for _, kind := range []global.Kind{global.Exact, global.Sites, global.Plain} {
		sum, err := s.sumTime(b, kind)
		if err != nil {
			return err
		}
		t.Sums[kind.String()] = sum
	}
	t.Flops = dirac.Flops * float64(s.lattice.Global.Product()) / t.Application
	s.report.Times = t
	nodes := float64(s.comm.NumberOfNodes())
	fmt.Fprintf(s.out, "operator     %d applications, %s each, %.0f MFlop/s, %.0f per node\n", d.Applied, micro(t.Application), t.Flops/1e6, t.Flops/1e6/nodes)
	fmt.Fprintf(s.out, "             %d bytes to neighbours in each, waited for %s after the interior\n", d.Sent(), micro(waited))
	fmt.Fprintf(s.out, "sums         %d, %v, in %.3f s\n             the square of a field, at a node and over all:", s.sums.Count, s.sumKind, sums)
	for _, kind := range []string{"exact", "sites", "plain"} {
		fmt.Fprintf(s.out, "  %s %s + %s", kind, micro(t.Sums[kind].Local), micro(t.Sums[kind].Global))
	}
	fmt.Fprintln(s.out)
	fmt.Fprintf(s.out, "communication  %.3f s of %.3f s, %.1f %%, in starts, waits and global operations\n", t.Communication, t.Solve, 100*t.Communication/t.Solve)
	return nil
}

// sumRounds is how often a sum is repeated to be timed.
const sumRounds = 20

// sumTime measures what the norm of a field costs, at the node where it is most.
func (s *session) sumTime(field []su3.Spinor, kind global.Kind) (t sumTime, err error) {
	sums := global.New(s.comm, kind)
	var square [1]float64
	for i := range sumRounds + 1 {
		if i == 1 { // the first comes to memory that is cold
			sums.Reset()
		}
		if err := sums.Squares(square[:], solver.Floats(field)); err != nil {
			return t, err
		}
	}
	t = sumTime{sums.Local.Seconds() / sumRounds, sums.Global.Seconds() / sumRounds}
	if err := s.comm.MaxDouble(&t.Local); err != nil {
		return t, err
	}
	return t, s.comm.MaxDouble(&t.Global)
}

// save writes the files that node 0 writes. Collective.
func (s *session) save() error {
	var err error
	if s.comm.IsPrimaryNode() {
		err = s.saveFiles()
	}
	return s.sums.Agree(err, 0)
}

func (s *session) saveFiles() error {
	if s.plot != "" && s.report.Residuals != nil {
		title := fmt.Sprintf("Wilson operator, κ = %v, lattice %v, plaquette %.4f", s.kappa, s.lattice.Global, s.report.Plaquette)
		if err := plotResiduals(s.plot, title, s.report.Residuals, s.tolerance); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "plot         %s\n", s.plot)
	}
	if s.json == "" {
		return nil
	}
	text, err := json.MarshalIndent(&s.report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(s.json, append(text, '\n'), 0o666)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }

func micro(s float64) string { return fmt.Sprintf("%.1f µs", s*1e6) }
