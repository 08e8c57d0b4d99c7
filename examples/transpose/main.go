// Transpose transposes a matrix whose rows are spread over the ranks. Look at: Alltoall, which
// gives each rank its columns, and the strided layouts, which do the same without code that packs.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/channel"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

const rows = 4 // of the matrix at each rank

func main() {
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		columns := rows * n.Size() // the matrix is square
		matrix := make([]float64, rows*columns)
		for i := range matrix {
			matrix[i] = float64(n.Rank()*rows*columns + i) // its number in the whole matrix
		}

		// By a collective: pack the block for each rank, exchange, transpose each block.
		world := channel.Must(n.World(ctx))
		out, in := make([]float64, len(matrix)), make([]float64, len(matrix))
		for i := range rows {
			for j := range columns {
				out[j/rows*rows*rows+i*rows+j%rows] = matrix[i*columns+j]
			}
		}
		if err := world.Run(ctx, channel.Alltoall(in, out)); err != nil {
			return err
		}
		byCollective := make([]float64, len(matrix))
		for i := range rows {
			for j := range columns {
				byCollective[i*columns+j] = in[j/rows*rows*rows+j%rows*rows+i]
			}
		}

		// By layouts: row i of what a rank sends to another is column i of what that receives.
		byLayouts := make([]float64, len(matrix))
		var parts []*channel.Handle
		for rank := range n.Size() {
			for i := range rows {
				row := channel.Slice(matrix[i*columns+rank*rows:][:rows])
				column := channel.StridedSlice(byLayouts, rank*rows+i, 1, rows, columns)
				parts = append(parts,
					channel.Must(n.DeclareSend(row, rank, channel.OnStream(i))),
					channel.Must(n.DeclareReceive(column, rank, channel.OnStream(i))))
			}
		}
		if err := channel.Must(n.Multiple(parts...)).Run(ctx); err != nil {
			return err
		}

		for i, x := range byLayouts {
			if want := float64(i%columns*columns + n.Rank()*rows + i/columns); x != want {
				return fmt.Errorf("element %d is %v, want %v", i, x, want)
			}
		}
		if !slices.Equal(byCollective, byLayouts) {
			return errors.New("the two ways differ")
		}
		if n.Rank() == 0 {
			fmt.Println("row 0:", byLayouts[:columns])
		}
		return nil
	})
}
