package nersc

import (
	"iter"

	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
)

// run is sites of a node that lie together, in a file as well as at the node.
type run struct {
	local, global int // number of the first, at the node and in the whole lattice
	sites         int
}

// runs yields the sites of a node in their order, in runs that are as long as can be.
func runs(l *lattice.Lattice) iter.Seq[run] {
	return func(yield func(run) bool) {
		sites := 1
		for a := range lattice.Axes {
			sites *= l.Local[a]
			if l.Grid[a] > 1 {
				break // the next along the axis after it is of another node
			}
		}
		for at := 0; at < l.Sites(); at += sites {
			if !yield(run{at, l.GlobalIndex(l.Local.Coords(at)), sites}) {
				return
			}
		}
	}
}
