// Pingpong has pairs of ranks pass 1,000 numbers to and fro, and prints half the time of a round
// trip. Look at: Alloc, whose memory moves without being packed, and the handles, which are
// declared once and run ten thousand times.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	_ "github.com/sluice-hpc/sluice/verbs/all" // shared memory, RDMA and TCP
)

const rounds = 10_000

func main() {
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		peer := n.Rank() ^ 1
		if peer >= n.Size() {
			return nil // the last of an odd number of ranks
		}
		x := channel.View[float64](channel.Must(n.Alloc(8 * 1000)))
		first := channel.Must(n.DeclareSend(channel.Slice(x), peer))
		second := channel.Must(n.DeclareReceive(channel.Slice(x), peer))
		if n.Rank() > peer {
			first, second = second, first
		}
		start := time.Now()
		for range rounds {
			if err := errors.Join(first.Run(ctx), second.Run(ctx)); err != nil {
				return err
			}
		}
		if n.Rank() < peer {
			fmt.Printf("ranks %d and %d: %v\n", n.Rank(), peer, time.Since(start)/(2*rounds))
		}
		return nil
	})
}
