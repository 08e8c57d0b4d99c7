// Wilson does lattice quantum chromodynamics over package qmp. It reads gauge fields in
// NERSC's archive format, or makes them with a heat-bath, measures the average plaquette,
// and solves D·x = b for Wilson's Dirac operator.
//
//	sluice run -n 8 wilson -lattice 8x8x8x16 -beta 5.7 -sweeps 20 -kappa 0.15 -plot residual.svg
//	mpiexec -n 4 wilson -in lat.4000 -geom 1x1x2x2 -kappa 0.13
//
// It reads files of MILC, CPS, Chroma, Grid and similar programs unchanged. It prints a
// warning on standard error for anything unusual, and -out writes the other header fields
// again, except checksums of other programs, unless sweeps have changed the field. A file of
// doubles that were computed in single precision needs -tolerance 1e-5, which applies to its
// links and averages as well as to the solution.
//
// It runs under any launcher that channel.Join knows; alone it is one node. The plaquette,
// the history of the residual and the norm of the solution have the same bits for any number
// of nodes and on any grid: the same operations compute a site everywhere, and sums over
// sites are exact before they are rounded once (package exact).
//
// Exact sums cost a twentieth to a quarter of a solve (docs/wilson.md). -sums sites
// rounds the 24 squares of each site, in their order, and is exact over sites: it is also independent of
// the grid.
//
// What to read: gauge, for strided messages received straight into the field; dirac, for a
// halo exchange that overlaps with the computation of the interior; global, for sums that do
// not depend on the grid; nersc, for files that all nodes read and write.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/sluice-hpc/sluice/qmp"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

// Exit statuses other than 0.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(program(os.Args)) }

// program is main, with its exit status.
func program(args []string) int {
	if _, err := qmp.Init(&args, qmp.ThreadSingle); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	status := exitFailed
	o, err := parseOptions(args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		if qmp.IsPrimaryNode() {
			fmt.Print(usage())
		}
		status = 0
	case err != nil:
		status = exitUsage
		tell(err)
	default:
		if err = run(o, qmp.DefaultComm()); err == nil {
			status = 0
			break
		}
		// An error of the communication is local to this node, and others may wait for it.
		// All nodes have agreed on any other error.
		var failed *qmp.Error
		if errors.As(err, &failed) {
			qmp.AbortString(exitFailed, err.Error())
		}
		tell(err)
	}
	if err := qmp.Finalize(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	return status
}

// patience is how long nodes wait until node 0 has printed a common error: a launcher may end
// all nodes when the first one ends.
const patience = 10 * time.Second

// tell prints, on node 0, an error that all nodes have.
func tell(err error) {
	if qmp.IsPrimaryNode() {
		fmt.Fprintln(os.Stderr, "wilson:", err)
	}
	if err := qmp.WaitForBarrier(patience); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
