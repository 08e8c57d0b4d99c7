// Heat spreads heat over a plate, of which each rank has a tile, and draws it. Look at: Grid,
// which says which ranks are neighbours; the halo, eight messages that are one handle; and the
// picture, which rank 0 receives from the tiles straight into its rows.
package main

import (
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"

	"github.com/sluice-hpc/sluice/channel"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

const (
	side = 128      // points of a tile along each axis
	row  = side + 2 // with those of the neighbours
)

func main() {
	file := flag.String("o", "heat.png", "picture to write")
	steps := flag.Int("steps", 2000, "time steps")
	flag.Parse()
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		grid := channel.Must(channel.NewGrid(n.Size(), []int{0, 0}, nil))
		u := channel.View[float64](channel.Must(n.Alloc(8 * row * row)))
		next := make([]float64, row*row)
		for i := range side { // the left edge of each tile begins hot
			u[(i+1)*row+1] = 1
		}
		var faces []*channel.Handle
		for i, f := range []struct{ axis, step, inner, halo, stride int }{
			{0, -1, row + 1, 1, 1}, {0, 1, side*row + 1, (side+1)*row + 1, 1}, // up and down: rows
			{1, -1, row + 1, row, row}, {1, 1, row + side, row + side + 1, row}, // left and right: columns
		} {
			if peer, ok := grid.Neighbour(n.Rank(), f.axis, f.step); ok {
				faces = append(faces,
					channel.Must(n.DeclareSend(channel.StridedSlice(u, f.inner, 1, side, f.stride), peer, channel.OnStream(i))),
					channel.Must(n.DeclareReceive(channel.StridedSlice(u, f.halo, 1, side, f.stride), peer, channel.OnStream(i^1))))
			}
		}
		halo := channel.Must(n.Multiple(faces...))
		for range *steps {
			if err := halo.Run(ctx); err != nil {
				return err
			}
			for i := row; i < row*row-row; i += row {
				for j := i + 1; j <= i+side; j++ {
					next[j] = (u[j-row] + u[j+row] + u[j-1] + u[j+1]) / 4
				}
			}
			for i := row + 1; i < row*row-row; i += row {
				copy(u[i:][:side], next[i:])
			}
		}
		return draw(ctx, n, grid, u, *file)
	})
}

// draw gathers the tiles in a picture, in which the hottest point is white.
func draw(ctx context.Context, n *channel.Node, grid *channel.Grid, u []float64, file string) error {
	tile := channel.StridedSlice(u, row+1, side, side, row)
	parts := []*channel.Handle{channel.Must(n.DeclareSend(tile, 0, channel.OnStream(4)))}
	height, width := grid.Dims()[0]*side, grid.Dims()[1]*side
	all := make([]float64, height*width)
	for rank := 0; n.Rank() == 0 && rank < n.Size(); rank++ {
		at := grid.Coordinates(rank)
		place := channel.StridedSlice(all, at[0]*side*width+at[1]*side, side, side, width)
		parts = append(parts, channel.Must(n.DeclareReceive(place, rank, channel.OnStream(4))))
	}
	if err := channel.Must(n.Multiple(parts...)).Run(ctx); err != nil || n.Rank() > 0 {
		return err
	}
	most, sum := 0.0, 0.0
	for _, x := range all {
		most, sum = max(most, x), sum+x
	}
	picture := image.NewGray(image.Rect(0, 0, width, height))
	for i, x := range all {
		picture.SetGray(i%width, i/width, color.Gray{Y: uint8(255 * x / most)})
	}
	fmt.Printf("%d x %d points, heat %.6f\n", height, width, sum)
	f := channel.Must(os.Create(file))
	defer f.Close()
	return png.Encode(f, picture)
}
