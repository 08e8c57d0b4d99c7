// Torus passes numbers round all four axes of a lattice's grid of nodes, with the calls of QMP.
// Look at: LayoutGrid, which chooses the grid; and the relative sends and receives, by axis and
// direction, which work on one node as on many.
package main

import (
	"fmt"
	"os"

	"github.com/sluice-hpc/sluice/qmp"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

func main() {
	qmp.SetErrorFunction(qmp.PrintAndExit) // as C programs do: no error returns
	qmp.Init(&os.Args, qmp.ThreadSingle)
	defer qmp.Finalize()
	qmp.LayoutGrid([]int{8, 8, 8, 16})
	dims := qmp.LogicalDimensions()

	out, in := []int64{0}, []int64{0}
	room, _ := qmp.DeclareMsgMem(in)
	message, _ := qmp.DeclareMsgMem(out)
	for axis, nodes := range dims {
		send, _ := qmp.DeclareSendRelative(message, axis, qmp.Plus, qmp.DefaultPriority)
		receive, _ := qmp.DeclareReceiveRelative(room, axis, qmp.Minus, qmp.DefaultPriority)
		both, _ := qmp.DeclareMultiple(send, receive)
		// After as many steps as there are nodes along the axis each number is back.
		in[0] = int64(qmp.NodeNumber())
		for range nodes {
			out[0] = in[0]
			both.Start()
			both.Wait()
		}
		if in[0] != int64(qmp.NodeNumber()) {
			fmt.Printf("node %d: %d came back on axis %d\n", qmp.NodeNumber(), in[0], axis)
			os.Exit(1)
		}
		both.CloseAll()
	}
	sum := float64(qmp.NumberOfSubgridSites())
	qmp.SumDouble(&sum)
	if qmp.IsPrimaryNode() {
		fmt.Printf("a grid of %v nodes, %v sites\n", dims, sum)
	}
}
