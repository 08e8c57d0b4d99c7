// Package snippets holds the code of the pages in docs, so that it compiles: the test of the pages
// looks up each of their blocks here.
package snippets

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/impi"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

func Start() {
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		fmt.Println("rank", n.Rank(), "of", n.Size())
		return nil
	})
}

func StartMessages() {
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		job, err := impi.FromNode(ctx, n, impi.Config{})
		if err != nil {
			return err
		}
		defer job.Close(ctx)
		return work(ctx, job.World())
	})
}

func work(context.Context, *impi.Comm) error { return nil }

func PingPong(ctx context.Context, comm *impi.Comm, buf []byte) error {
	if comm.Rank() == 0 {
		if err := comm.Send(ctx, buf, 1, 7); err != nil {
			return err
		}
		_, err := comm.Recv(ctx, buf, 1, 7)
		return err
	}
	if _, err := comm.Recv(ctx, buf, 0, 7); err != nil {
		return err
	}
	return comm.Send(ctx, buf, 0, 7)
}

func Persistent(ctx context.Context, n *channel.Node, out, in []float64, right, left, steps int) error {
	send := channel.Must(n.DeclareSend(channel.Slice(out), right))
	receive := channel.Must(n.DeclareReceive(channel.Slice(in), left))
	both := channel.Must(n.Multiple(send, receive))
	for range steps {
		if err := both.Start(); err != nil {
			return err
		}
		compute()
		if err := both.WaitContext(ctx); err != nil {
			return err
		}
	}
	return both.Close()
}

func compute() {}

func Halo(ctx context.Context, n *channel.Node, u []float64, rows, columns int) error {
	grid := channel.Must(channel.NewGrid(n.Size(), []int{0, 0}, []bool{true, true}))
	left, _ := grid.Neighbour(n.Rank(), 1, -1)
	right, _ := grid.Neighbour(n.Rank(), 1, 1)
	// Column 1 goes to the left, into the last column of that neighbour.
	send := channel.Must(n.DeclareSend(channel.StridedSlice(u, 1, 1, rows, columns), left))
	receive := channel.Must(n.DeclareReceive(channel.StridedSlice(u, columns-1, 1, rows, columns), right))
	return channel.Must(n.Multiple(send, receive)).Run(ctx)
}

const tagTask, tagResult, tagStop = 1, 2, 3

func Master(ctx context.Context, comm *impi.Comm, tasks [][]byte, take func([]byte)) error {
	result := make([]byte, 1<<20)
	for busy := comm.Size() - 1; busy > 0; {
		st, err := comm.Recv(ctx, result, impi.AnySource, tagResult) // a worker's first is empty
		if err != nil {
			return err
		}
		take(result[:st.Len])
		tag, task := tagStop, []byte(nil)
		if len(tasks) > 0 {
			tag, task, tasks = tagTask, tasks[0], tasks[1:]
		} else {
			busy--
		}
		if err := comm.Send(ctx, task, st.Source, tag); err != nil {
			return err
		}
	}
	return nil
}

func Farm(ctx context.Context, comm *impi.Comm, tasks func(func([]byte) bool)) error {
	solve := func(task []byte) ([]byte, error) { return task, nil }
	return fanout.Map(ctx, comm, tasks, solve, func(i uint64, result []byte) error {
		_, err := fmt.Printf("%d: %s\n", i, result)
		return err
	})
}

func Collectives(ctx context.Context, n *channel.Node, x, sum, all []float64) error {
	world, err := n.World(ctx)
	if err != nil {
		return err
	}
	return errors.Join(
		world.Run(ctx, channel.Barrier()),
		world.Run(ctx, channel.Broadcast(x, 0)),
		world.Run(ctx, channel.Allreduce(channel.Sum, sum, x)),
		world.Run(ctx, channel.Allgather(all, x)),
	)
}

func InPlace(ctx context.Context, world *channel.Group, x []float64) error {
	return world.Run(ctx, channel.Allreduce(channel.Sum, x, x))
}

func Declared(ctx context.Context, world *channel.Group, x []float64, steps int) error {
	sum, err := world.Declare(channel.Allreduce(channel.Sum, x, x))
	if err != nil {
		return err
	}
	defer sum.Close()
	for range steps {
		if err := sum.Start(); err != nil {
			return err
		}
		compute()
		if err := sum.WaitContext(ctx); err != nil {
			return err
		}
	}
	return nil
}

func Split(ctx context.Context, n *channel.Node, world *channel.Group) error {
	rows, err := world.Split(ctx, n.Rank()/4, n.Rank())
	if err != nil {
		return err
	}
	defer rows.Close()
	return rows.Run(ctx, channel.Barrier())
}

func Probe(comm *impi.Comm, buf []byte) (impi.Request, error) {
	found, st, err := comm.Iprobe(impi.AnySource, 7)
	if err != nil || !found {
		return impi.Request{}, err
	}
	return comm.Irecv(buf[:st.Len], st.Source, st.Tag)
}

func Requests(ctx context.Context, comm *impi.Comm, out, in []byte, peer int) error {
	receive, err := comm.Irecv(in, peer, 7)
	if err != nil {
		return err
	}
	send, err := comm.Isend(out, peer, 7)
	if err != nil {
		return err
	}
	return impi.WaitAll(ctx, nil, receive, send)
}

func Column(ctx context.Context, comm *impi.Comm, u, in []float64, rows, columns, peer int) error {
	receive, err := comm.Irecv(channel.Bytes(in), peer, 7)
	if err != nil {
		return err
	}
	send, err := comm.IsendLayout(channel.StridedSlice(u, 1, 1, rows, columns), peer, 7)
	if err != nil {
		return err
	}
	return impi.WaitAll(ctx, nil, receive, send)
}

func SendReceive(ctx context.Context, n *channel.Node, out, in []byte, left, right int) error {
	return n.Sendrecv(ctx, out, right, in, left)
}
