// Cg solves Poisson's equation on a square by conjugate gradient. Look at: dot, whose sum is
// exact, so that the solution has the same bits for any number of ranks; and the halo, whose
// messages are in flight while the inner rows are computed.
package main

import (
	"context"
	"fmt"
	"math"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/exact"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

const side = 64 // points along each axis

func main() {
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		world := channel.Must(n.World(ctx))
		begin, end := side*n.Rank()/n.Size(), side*(n.Rank()+1)/n.Size() // this rank's rows
		rows := end - begin
		// p is the search direction, with one row of each neighbour.
		p := channel.View[float64](channel.Must(n.Alloc(8 * side * (rows + 2))))
		inner := p[side : side*(rows+1)]
		x, r, ap := make([]float64, len(inner)), make([]float64, len(inner)), make([]float64, len(inner))
		var faces []*channel.Handle
		for i, peer := range []int{n.Rank() - 1, n.Rank() + 1} {
			if peer >= 0 && peer < n.Size() {
				edge, halo := i*(rows-1)*side, i*(rows+1)*side
				faces = append(faces,
					channel.Must(n.DeclareSend(channel.Slice(inner[edge:][:side]), peer, channel.OnStream(i))),
					channel.Must(n.DeclareReceive(channel.Slice(p[halo:][:side]), peer, channel.OnStream(1-i))))
			}
		}
		halo := channel.Must(n.Multiple(faces...))

		dot := func(a, b []float64) float64 {
			var sum exact.Accumulator
			sum.AddProducts(a, b)
			if err := channel.SumExact(ctx, world, &sum); err != nil {
				panic(err)
			}
			return sum.Round()
		}
		for i := range r {
			r[i] = math.Sin(float64(side*begin+i) / 100) // the right-hand side
		}
		copy(inner, r)
		rr := dot(r, r)
		target, steps := 1e-20*rr, 0
		for ; rr > target; steps++ {
			if err := halo.Start(); err != nil {
				return err
			}
			laplace(ap, p, 1, rows-1) // rows that need no neighbour's
			if err := halo.WaitContext(ctx); err != nil {
				return err
			}
			laplace(ap, p, 0, 1)
			laplace(ap, p, max(rows-1, 1), rows)
			alpha, before := rr/dot(inner, ap), rr
			for i := range x {
				x[i] += alpha * inner[i]
				r[i] -= alpha * ap[i]
			}
			rr = dot(r, r)
			for i := range inner {
				inner[i] = r[i] + rr/before*inner[i]
			}
		}
		if norm := dot(x, x); n.Rank() == 0 {
			fmt.Printf("%d steps, |x|² = %x\n", steps, norm)
		}
		return nil
	})
}

// laplace applies the operator to rows of p.
func laplace(ap, p []float64, from, to int) {
	for i := from * side; i < to*side; i++ {
		at := i + side
		sum := 4*p[at] - p[at-side] - p[at+side]
		if i%side > 0 {
			sum -= p[at-1]
		}
		if i%side < side-1 {
			sum -= p[at+1]
		}
		ap[i] = sum
	}
}
