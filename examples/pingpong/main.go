// Pingpong has pairs of ranks pass 100 numbers to and fro, and prints half the time of a round
// trip. Look at: Alloc, whose memory moves without being packed, and the handles, which are
// declared once and run ten thousand times each.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	_ "github.com/sluice-hpc/sluice/verbs/all" // shared memory, RDMA and TCP
)

func main() {
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		x := channel.View[float64](channel.Must(n.Alloc(8 * 100)))
		peer, half := n.Size()-1-n.Rank(), (n.Size()+1)/2 // ranks below half begin with a send
		send := channel.Must(n.DeclareSend(channel.Slice(x), peer))
		turns := []*channel.Handle{send, channel.Must(n.DeclareReceive(channel.Slice(x), peer))}
		start := time.Now()
		for i := range 20_000 {
			if err := turns[(i+n.Rank()/half)%2].Run(ctx); err != nil {
				return err
			}
		}
		fmt.Printf("ranks %d and %d: %v\n", n.Rank(), peer, time.Since(start)/20_000)
		return nil
	})
}
