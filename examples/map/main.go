// Map has workers turn words into capitals, and prints them in order. Look at: fanout.Map, which
// gives the chunk of a worker that dies to another; try
//
//	sluice run -n 4 --on-failure=continue ./map
//
// with more words, and kill one of the ranks 1 to 3.
package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/impi"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

func main() {
	words := bytes.Fields([]byte("each word goes to the next worker that asks"))
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		job := channel.Must(impi.FromNode(ctx, n, impi.Config{}))
		defer job.Close(ctx)
		upper := func(word []byte) ([]byte, error) { return bytes.ToUpper(word), nil }
		return fanout.Map(ctx, job.World(), slices.Values(words), upper, func(i uint64, word []byte) error {
			fmt.Printf("%d %s\n", i, word)
			return nil
		})
	})
}
