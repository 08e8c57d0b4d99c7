package snippets

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/qmp"
)

func QMPStart(size, halos int) error {
	channel.Must(qmp.Init(&os.Args, qmp.ThreadMultiple)) // takes the -qmp- options
	defer qmp.Finalize()
	if err := qmp.LayoutGrid([]int{24, 24, 24, 48}); err != nil {
		return err
	}
	sites := qmp.NumberOfSubgridSites()
	memory := channel.Must(qmp.AllocateMemory((sites + halos) * size)) // zeroed, until Finalize
	field, halo := memory.Bytes()[:sites*size], memory.Bytes()[sites*size:]
	spinors := qmp.View[complex128](memory) // the same bytes, for the computation
	clear(spinors)
	return QMPHalo(field, halo, size)
}

func QMPHalo(field, halo []byte, size int) error {
	var handles []*qmp.Handle
	inner := size // bytes of a run along all faster axes
	for axis, n := range qmp.SubgridDimensions() {
		plane, stride := len(field)/n, inner*n
		for _, sign := range []int{qmp.Minus, qmp.Plus} {
			first := (sign + 1) / 2 * (stride - inner) // of the first or the last plane
			face := channel.Must(qmp.DeclareStridedMsgMem(field[first:], inner, plane/inner, stride))
			room := channel.Must(qmp.DeclareMsgMem(halo[:plane]))
			send := channel.Must(qmp.DeclareSendRelative(face, axis, sign, 0))
			receive := channel.Must(qmp.DeclareReceiveRelative(room, axis, sign, 0))
			handles, halo = append(handles, send, receive), halo[plane:]
		}
		inner = stride
	}
	all := channel.Must(qmp.DeclareMultiple(handles...))
	defer all.CloseAll()
	if err := all.Start(); err != nil { // in every step, without declaring again
		return err
	}
	compute()
	return all.Wait()
}

func QMPSum(norm *float64, x []float64) error {
	for _, v := range x {
		*norm += v * v
	}
	return qmp.SumDouble(norm)
}

func QMPSumExact(norm *float64, x []float64) error {
	var sum exact.Accumulator
	sum.AddProducts(x, x)
	err := qmp.SumExact(&sum)
	*norm = sum.Round()
	return err
}

func QMPSplit(lattice []int, action float64) error {
	node := qmp.NodeNumber()
	half := channel.Must(qmp.DefaultComm().Split(node%2, node))
	defer half.Free()
	if err := half.LayoutGrid(lattice); err != nil {
		return err
	}
	return half.SumDouble(&action)
}

func QMPErrors(ctx context.Context, halo *qmp.Handle) error {
	err := halo.WaitTimeout(time.Minute)
	if errors.Is(err, qmp.StatusTimeout) { // the message is still active: wait again
		err = halo.WaitContext(ctx)
	}
	return err
}
