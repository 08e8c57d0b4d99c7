// Wilson is quantum chromodynamics on a lattice, over package qmp: it reads gauge fields
// in NERSC's archive format or makes them by a heat-bath, measures the average
// plaquette, and solves D·x = b for Wilson's Dirac operator.
//
//	sluice run -n 8 wilson -lattice 8x8x8x16 -beta 5.7 -sweeps 20 -kappa 0.15 -plot residual.svg
//	mpiexec -n 4 wilson -in lat.4000 -geom 1x1x2x2 -kappa 0.13
//
// Files of MILC, CPS, Chroma, Grid and the like are read as they are: what is odd about
// one is a warning on standard error, and what its header says beside the field is written
// again by -out, but for checksums of their own, unless sweeps have made another field of
// it. A file of doubles that were
// computed in single precision needs -tolerance 1e-5, which holds for its links and
// averages as for the solution.
//
// Any launcher will do that channel.Join knows; alone it is one node. The plaquette, the
// history of the residual and the norm of the solution have the same bits for any number
// of nodes and on any grid: sites are computed by the same operations everywhere, and
// what is summed over them is summed exactly before it is rounded once (package exact).
//
// What is exact costs more than what is rounded: of an iteration at 8x8x8x16 half, the
// norm of a field being the sum of 24 squares at each site. -sums sites rounds these 24,
// in their order, and is exact over sites: as independent of the grid, and hardly slower
// than plain sums. One node and two, each on a core of an AMD EPYC (family 26), over
// shared memory, at κ = 0.125 on a field after two sweeps at β = 6:
//
//	                                   8x8x8x16        4x4x4x8
//	                                   1      2        1      2 nodes
//	an application of D, µs          540    280       25     18
//	  of all nodes, GFlop/s           21     40       28     39
//	the norm of a field, µs: exact   510    270       31     16
//	                         sites    78     40      4.9    2.6
//	                         plain    50     27      3.2    1.6
//	70 iterations, s:        exact  0.21   0.12    0.012  0.007
//	                         sites  0.12   0.06    0.006  0.006
//
// What to read: gauge, for strided messages that come straight into the field; dirac,
// for a halo exchange that goes on while the interior is computed; global, for sums
// that do not depend on the grid; nersc, for files that all nodes read and write.
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

// Exit statuses beside 0.
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
		// An error of the communication is one of this node, and the others may
		// wait for it. Others have been agreed upon.
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

// patience is how long nodes wait until node 0 has said what is wrong with all: the
// first that ends may take the others with it.
const patience = 10 * time.Second

// tell says at node 0 what is wrong at all nodes.
func tell(err error) {
	if qmp.IsPrimaryNode() {
		fmt.Fprintln(os.Stderr, "wilson:", err)
	}
	if err := qmp.WaitForBarrier(patience); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
