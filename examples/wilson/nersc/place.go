package nersc

import (
	"iter"

	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
)

// run is a sequence of sites of a node that are contiguous in a file and on the node.
type run struct {
	local, global int // number of the first, at the node and in the whole lattice
	sites         int
}

// runs yields the sites of a node in order, in runs that are as long as possible.
func runs(l *lattice.Lattice) iter.Seq[run] {
	return func(yield func(run) bool) {
		sites := 1
		for a := range lattice.Axes {
			sites *= l.Local[a]
			if l.Grid[a] > 1 {
				break // the next site along the following axis is on another node
			}
		}
		for at := 0; at < l.Sites(); at += sites {
			if !yield(run{at, l.GlobalIndex(l.Local.Coords(at)), sites}) {
				return
			}
		}
	}
}
