// Heat spreads heat over a plate, of which each rank has a tile with a source in its middle, and
// draws it in heat.png. Look at: Grid, which says which ranks are neighbours; the halo, eight
// messages that are one handle; and the picture, which rank 0 receives from the tiles straight
// into its rows.
package main

import (
	"context"
	"fmt"
	"image"
	"image/png"
	"os"

	"github.com/sluice-hpc/sluice/channel"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

// Points of a tile along each axis, and with those of the neighbours.
const side, row = 128, side + 2

func main() {
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		grid := channel.Must(channel.NewGrid(n.Size(), []int{0, 0}, nil))
		u := channel.View[float64](channel.Must(n.Alloc(8 * row * row)))
		var faces, tiles []*channel.Handle
		for i, f := range []struct{ axis, step, inner, halo, stride int }{
			{0, -1, row + 1, 1, 1}, {0, 1, side*row + 1, (side+1)*row + 1, 1}, // up and down: rows
			{1, -1, row + 1, row, row}, {1, 1, row + side, row + side + 1, row}, // left and right: columns
		} {
			if peer, ok := grid.Neighbour(n.Rank(), f.axis, f.step); ok {
				inner, halo := channel.StridedSlice(u, f.inner, 1, side, f.stride), channel.StridedSlice(u, f.halo, 1, side, f.stride)
				faces = append(faces, channel.Must(n.DeclareSend(inner, peer, channel.OnStream(i))))
				faces = append(faces, channel.Must(n.DeclareReceive(halo, peer, channel.OnStream(i^1))))
			}
		}
		halo := channel.Must(n.Multiple(faces...))
		for range 2000 {
			if err := halo.Run(ctx); err != nil {
				return err
			}
			for i := row; i < row*row-row; i += row {
				for j := i + 1; j <= i+side; j++ {
					u[j] = (u[j-row] + u[j+row] + u[j-1] + u[j+1]) / 4
				}
			}
			u[(row/2)*row+row/2] = 1
		}

		tile := channel.StridedSlice(u, row+1, side, side, row)
		tiles = append(tiles, channel.Must(n.DeclareSend(tile, 0, channel.OnStream(4))))
		height, width := grid.Dims()[0]*side, grid.Dims()[1]*side
		plate, picture := make([]float64, height*width), image.NewGray(image.Rect(0, 0, width, height))
		for rank := 0; n.Rank() == 0 && rank < n.Size(); rank++ {
			at := grid.Coordinates(rank)
			place := channel.StridedSlice(plate, at[0]*side*width+at[1]*side, side, side, width)
			tiles = append(tiles, channel.Must(n.DeclareReceive(place, rank, channel.OnStream(4))))
		}
		if err := channel.Must(n.Multiple(tiles...)).Run(ctx); err != nil || n.Rank() > 0 {
			return err
		}
		for i, x := range plate {
			picture.Pix[i] = uint8(min(255, 1000*x))
		}
		f := channel.Must(os.Create("heat.png"))
		defer f.Close()
		defer fmt.Println(f.Name())
		return png.Encode(f, picture)
	})
}
