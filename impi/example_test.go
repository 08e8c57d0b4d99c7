package impi_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/impi/startup"
)

// Two clients meet at a server, and each says something to the other. In real life
// the server is `sluice server -n 2`, and the clients are programs on hosts of their
// own.
func ExampleJoin() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	const key = 271828
	server := startup.Server{Clients: 2, Key: key}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := server.Serve(ctx, l); err != nil {
			fmt.Println(err)
		}
	})
	said := make([]string, 2)
	for client := range said {
		wg.Go(func() {
			var err error
			if said[client], err = talk(ctx, l.Addr().String(), impi.Config{Client: client, Key: key}); err != nil {
				fmt.Println(err)
			}
		})
	}
	wg.Wait()
	for _, s := range said {
		fmt.Println(s)
	}
	// Output:
	// rank 0 of 2 has heard: hello from 1; together they are 3
	// rank 1 of 2 has heard: hello from 0; together they are 3
}

func talk(ctx context.Context, server string, c impi.Config) (said string, err error) {
	job, err := impi.Join(ctx, server, c)
	if err != nil {
		return "", err
	}
	defer job.Close(ctx)
	world := job.World()
	other := 1 - world.Rank()
	const tag = 7
	greeting := fmt.Appendf(nil, "hello from %d", world.Rank())
	send, err := world.Isend(greeting, other, tag)
	if err != nil {
		return "", err
	}
	buf := make([]byte, 100)
	st, err := world.Recv(ctx, buf, other, tag)
	if err != nil {
		return "", err
	}
	if _, err := send.Wait(ctx); err != nil {
		return "", err
	}
	sum := []int64{int64(world.Rank()) + 1}
	if err := world.Run(ctx, channel.Allreduce(channel.Sum, sum, sum)); err != nil {
		return "", err
	}
	return fmt.Sprintf("rank %d of %d has heard: %s; together they are %d", world.Rank(), world.Size(), buf[:st.Len], sum[0]), nil
}

// The ranks that `sluice run -n 4 program`, mpiexec or srun starts need no server. No launcher has
// started this example, so it has a server.
func ExampleFromNode() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	node, err := channel.Join(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close()
	job, err := impi.FromNode(ctx, node, impi.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer job.Close(ctx)
	world := job.World()
	part, err := world.Split(ctx, world.Rank()%2, world.Rank())
	if err != nil {
		fmt.Println(err)
		return
	}
	x := []float64{1.5}
	if err := part.Run(ctx, channel.Allreduce(channel.Sum, x, x)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(world.Size(), part.Size(), x[0])
	// Output: 1 1 1.5
}
