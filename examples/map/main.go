// Map has workers turn words into capitals, and prints them in order. Look at: fanout.Map, which
// gives the chunk of a worker that dies to another. Run it for ten seconds with
//
//	PAUSE=300ms sluice run -n 4 --on-failure=continue ./map
//
// and kill one of the ranks 1 to 3 by its process number.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/impi"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

func main() {
	words := bytes.FieldsSeq(bytes.Repeat([]byte("each word goes to the next worker that asks "), 11))
	pause, _ := time.ParseDuration(os.Getenv("PAUSE")) // for each word
	upper := func(word []byte) ([]byte, error) { time.Sleep(pause); return bytes.ToUpper(word), nil }
	show := func(i uint64, word []byte) error { _, err := fmt.Printf("%d %s\n", i, word); return err }
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		fmt.Fprintf(os.Stderr, "rank %d is process %d\n", n.Rank(), os.Getpid())
		job := channel.Must(impi.FromNode(ctx, n, impi.Config{}))
		defer job.Close(ctx)
		return fanout.Map(ctx, job.World(), words, upper, show)
	})
}
