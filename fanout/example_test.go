package fanout_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/impi"
)

// Each word goes to the worker that asks first, and the words come back in capitals, in order.
// In a real job each rank is a process of its own, and workers may be killed.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	node, err := channel.Join(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close()
	job, err := impi.FromNode(ctx, node, impi.Config{Processes: 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer job.Close(ctx)
	var wg sync.WaitGroup
	for _, world := range job.Worlds() {
		wg.Go(func() {
			// One communicator for chunks, one for results.
			in, err := world.Dup(ctx)
			if err != nil {
				fmt.Println(err)
				return
			}
			out, err := world.Dup(ctx)
			if err == nil && world.Rank() == 0 {
				err = capitals(ctx, in, out, "each chunk goes to the worker that asks")
			} else if err == nil {
				err = capitalise(ctx, in, out)
			}
			if err != nil {
				fmt.Println(world.Rank(), err)
			}
		})
	}
	wg.Wait()
	// Output: EACH CHUNK GOES TO THE WORKER THAT ASKS
}

// capitals supplies the words, and collects the results.
func capitals(ctx context.Context, in, out *impi.Comm, text string) error {
	supplier, err := fanout.NewSupplier(in, fanout.Queue(4), fanout.Collected())
	if err != nil {
		return err
	}
	collector, err := fanout.NewCollector(out, fanout.AcknowledgeBy(supplier.Acknowledge))
	if err != nil {
		return err
	}
	supplied := make(chan error, 1)
	go func() {
		for _, word := range strings.Fields(text) {
			if err := supplier.Send(ctx, []byte(word)); err != nil {
				supplied <- err
				return
			}
		}
		supplied <- supplier.End(ctx)
	}()
	var words []string
	for {
		result, err := collector.Receive(ctx)
		if err == io.EOF {
			fmt.Println(strings.Join(words, " "))
			return <-supplied
		}
		if err != nil {
			return err
		}
		words = append(words, string(result.Bytes()))
		if err := result.Release(); err != nil {
			return err
		}
	}
}

// capitalise is a worker.
func capitalise(ctx context.Context, in, out *impi.Comm) error {
	client, err := fanout.NewClient(in, fanout.Numbered(), fanout.Window(2))
	if err != nil {
		return err
	}
	results, err := fanout.NewResults(out)
	if err != nil {
		return err
	}
	err = client.Each(ctx, time.Second, func(k fanout.Chunk) error {
		return results.Send(ctx, k.Seq(), []byte(strings.ToUpper(string(k.Bytes()))))
	})
	return errors.Join(err, results.End(ctx))
}
