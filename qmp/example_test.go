package qmp_test

import (
	"fmt"
	"log"
	"os"

	"github.com/sluice-hpc/sluice/qmp"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

// A lattice is divided among the nodes; each sends the last plane of its part to the
// next node along every axis, and receives one into its halo. Run alone, as here, a
// program is one node, whose neighbours are itself; "sluice run -n 8 program" makes
// eight.
func Example() {
	if _, err := qmp.Init(&os.Args, qmp.ThreadMultiple); err != nil {
		log.Fatal(err)
	}
	defer qmp.Finalize()
	if err := qmp.LayoutGrid([]int{8, 8, 8, 16}); err != nil {
		log.Fatal(err)
	}
	extent, sites := qmp.SubgridDimensions(), qmp.NumberOfSubgridSites()

	memory, err := qmp.AllocateMemory(8 * 2 * sites) // a field, and room for its halo
	if err != nil {
		log.Fatal(err)
	}
	defer memory.Close()
	field := qmp.View[float64](memory)
	for i := range sites {
		field[i] = 1
	}

	var handles []*qmp.Handle
	halo := field[sites:]
	inner := 1 // sites in a row of all faster axes
	for axis, n := range extent {
		face := sites / n
		// The last plane: a block of inner sites in every inner*n of them.
		plane, err := qmp.DeclareStridedMsgMem(field[(n-1)*inner:sites], 8*inner, face/inner, 8*inner*n)
		if err != nil {
			log.Fatal(err)
		}
		room, err := qmp.DeclareMsgMem(halo[:face])
		if err != nil {
			log.Fatal(err)
		}
		send, err := qmp.DeclareSendRelative(plane, axis, qmp.Plus, qmp.DefaultPriority)
		if err != nil {
			log.Fatal(err)
		}
		receive, err := qmp.DeclareReceiveRelative(room, axis, qmp.Minus, qmp.DefaultPriority)
		if err != nil {
			log.Fatal(err)
		}
		handles = append(handles, send, receive)
		halo, inner = halo[face:], inner*n
	}
	exchange, err := qmp.DeclareMultiple(handles...)
	if err != nil {
		log.Fatal(err)
	}
	defer exchange.CloseAll()

	for range 1000 { // declared once, started many times
		if err := exchange.Start(); err != nil {
			log.Fatal(err)
		}
		if err := exchange.Wait(); err != nil {
			log.Fatal(err)
		}
	}
	sum := 0.0
	for _, x := range field {
		sum += x
	}
	if err := qmp.SumDouble(&sum); err != nil {
		log.Fatal(err)
	}
	if qmp.IsPrimaryNode() {
		fmt.Println(extent, sum)
	}
	// Output: [8 8 8 16] 11776
}
