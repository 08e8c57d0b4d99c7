// Masterworker has a master hand tasks to workers, in messages with tags, as programs for MPI
// do: together they count the primes below a million. Look at: AnySource and the tags. The program in
// examples/map survives the death of a worker.
package main

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

const tasks, span = 1000, 1000 // tasks, and the numbers of each

const tagTask, tagResult, tagStop = 1, 2, 3

func main() {
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		job, err := impi.FromNode(ctx, n, impi.Config{})
		if err != nil {
			return err
		}
		defer job.Close(ctx)
		world := job.World()
		switch {
		case world.Size() == 1:
			total := 0 // without a worker
			for task := range tasks {
				total += primes(task)
			}
			fmt.Println(total, "primes")
		case world.Rank() == 0:
			return master(ctx, world)
		default:
			return worker(ctx, world)
		}
		return nil
	})
}

// master answers each result with the next task, or with the order to stop.
func master(ctx context.Context, world *impi.Comm) error {
	var message [8]byte
	var task, total int
	give := func(worker int) error {
		if task == tasks {
			return world.Send(ctx, nil, worker, tagStop)
		}
		binary.LittleEndian.PutUint64(message[:], uint64(task))
		task++
		return world.Send(ctx, message[:], worker, tagTask)
	}
	for worker := 1; worker < world.Size(); worker++ {
		if err := give(worker); err != nil {
			return err
		}
	}
	for range tasks {
		status, err := world.Recv(ctx, message[:], impi.AnySource, tagResult)
		if err != nil {
			return err
		}
		total += int(binary.LittleEndian.Uint64(message[:]))
		if err := give(status.Source); err != nil {
			return err
		}
	}
	fmt.Println(total, "primes")
	return nil
}

func worker(ctx context.Context, world *impi.Comm) error {
	for message := make([]byte, 8); ; {
		status, err := world.Recv(ctx, message, 0, impi.AnyTag)
		if err != nil || status.Tag == tagStop {
			return err
		}
		count := primes(int(binary.LittleEndian.Uint64(message)))
		binary.LittleEndian.PutUint64(message, uint64(count))
		if err := world.Send(ctx, message, 0, tagResult); err != nil {
			return err
		}
	}
}

func primes(task int) (count int) {
next:
	for i := max(2, task*span); i < (task+1)*span; i++ {
		for d := 2; d*d <= i; d++ {
			if i%d == 0 {
				continue next
			}
		}
		count++
	}
	return count
}
