package snippets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/qmp"
	"github.com/sluice-hpc/sluice/verbs"
)

func Face(ctx context.Context, sites, east, west, steps int) error {
	node, err := channel.Join(ctx) // which rank this is, and how many there are
	if err != nil {
		return err
	}
	defer node.Close()
	field := channel.Must(node.Alloc(sites * 192)) // memory that moves without an intermediate copy
	halo := make([]byte, 4096*192)
	face := channel.Strided(field.Bytes(), 15*192, 192, 4096, 16*192)
	send := channel.Must(node.DeclareSend(face, east, channel.OnStream(1)))
	receive := channel.Must(node.DeclareReceive(channel.Contiguous(halo), west, channel.OnStream(1)))
	both := channel.Must(node.Multiple(send, receive))

	for range steps {
		if err := both.Start(); err != nil { // does not wait
			return err
		}
		compute()
		if err := both.Wait(); err != nil { // or Test, or WaitContext with a deadline
			return err
		}
	}
	return nil
}

func Select(ctx context.Context, request *channel.Handle, tick *time.Ticker, question []byte, answer func([]byte), report func()) error {
	for {
		select {
		case <-request.Done(): // the message is complete: Wait returns at once
			if err := request.Wait(); err != nil {
				return err
			}
			answer(question)
			if err := request.Start(); err != nil {
				return err
			}
		case <-tick.C:
			report()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func Group(ctx context.Context, node *channel.Node, total, part, parameters, r2 []float64, sum *exact.Accumulator) error {
	world := channel.Must(node.World(ctx)) // all ranks; connects those of this host
	if err := world.Run(ctx, channel.Allreduce(channel.Sum, total, part)); err != nil {
		return err
	}
	if err := world.Run(ctx, channel.Broadcast(parameters, 0)); err != nil { // slices of anything without pointers
		return err
	}
	rows := channel.Must(world.Split(ctx, node.Rank()/8, node.Rank())) // by color and key
	defer rows.Close()

	norm := channel.Must(rows.Declare(channel.Allreduce(channel.Sum, r2, r2))) // in place, declared once
	if err := norm.Start(); err != nil {                                       // does not wait
		return err
	}
	compute()
	if err := norm.WaitContext(ctx); err != nil { // or Test
		return err
	}
	return channel.SumExact(ctx, world, sum) // an exact.Accumulator of all ranks
}

func Interoperable(ctx context.Context, buf, msg []byte, dst, src []float64, dest int) error {
	job, err := impi.Join(ctx, "192.168.1.7:20000", impi.Config{Client: 0, Key: 271828}) // an IMPI server
	if err != nil {
		return err
	}
	defer job.Close(ctx)
	world := job.World()

	q := channel.Must(world.Irecv(buf, impi.AnySource, 7))
	if err := world.Send(ctx, msg, dest, 7); err != nil {
		return err
	}
	st := channel.Must(q.Wait(ctx))
	fmt.Println(st.Source, st.Tag, st.Len)
	return world.Run(ctx, channel.Allreduce(channel.Sum, dst, src)) // an operation of channel
}

func Supply(ctx context.Context, comm, out *impi.Comm, header, body []byte, work func([]byte) []byte) error {
	if comm.Rank() == 0 { // the supplier, which also collects
		supplier := channel.Must(fanout.NewSupplier(comm, fanout.Queue(64), fanout.Collected()))
		collector := channel.Must(fanout.NewCollector(out, fanout.AcknowledgeBy(supplier.Acknowledge)))
		if err := supplier.Send(ctx, header, body); err != nil { // waits while the queue is full
			return err
		}
		go supplier.End(ctx) // one end for each worker
		for {
			result, err := collector.Receive(ctx) // in the order of the chunks
			if err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			fmt.Println(len(result.Bytes()))
			if err := result.Release(); err != nil {
				return err
			}
		}
	}
	client := channel.Must(fanout.NewClient(comm, fanout.Numbered(), fanout.Window(4)))
	results := channel.Must(fanout.NewResults(out))
	if err := client.Each(ctx, 0, func(k fanout.Chunk) error { return results.Send(ctx, k.Seq(), work(k.Bytes())) }); err != nil {
		return err
	}
	return results.End(ctx)
}

func Lattice(sites, steps int, norm float64) error {
	if _, err := qmp.Init(&os.Args, qmp.ThreadMultiple); err != nil { // takes -qmp-geom, -qmp-job and so on
		return err
	}
	defer qmp.Finalize()
	if err := qmp.LayoutGrid([]int{24, 24, 24, 48}, qmp.MinimalSurface()); err != nil {
		return err
	}
	fmt.Println(qmp.SubgridDimensions()) // this node's part of the lattice

	memory := channel.Must(qmp.AllocateMemory(sites * 192)) // moves without an intermediate copy
	halo := make([]float64, 4096*24)                        // a slice of any type without pointers
	face := channel.Must(qmp.DeclareStridedMsgMem(memory.Bytes()[15*192:], 192, 4096, 16*192))
	room := channel.Must(qmp.DeclareMsgMem(halo))
	send := channel.Must(qmp.DeclareSendRelative(face, 0, qmp.Plus, qmp.DefaultPriority))
	receive := channel.Must(qmp.DeclareReceiveRelative(room, 0, qmp.Minus, qmp.DefaultPriority))
	both := channel.Must(qmp.DeclareMultiple(send, receive))

	for range steps {
		if err := both.Start(); err != nil {
			return err
		}
		compute()
		if err := both.Wait(); err != nil { // 10 minutes at most, or SetWaitTimeout
			return err
		}
		if err := qmp.SumDouble(&norm); err != nil { // or SumDoubleExtended, which is exact
			return err
		}
	}
	return nil
}

func QueuePair(exchange func(mine []byte) (theirs []byte), wcs []verbs.WC) error {
	dev := channel.Must(verbs.Find("shm")) // or "ibv", "mlx5_0", "tcp", "tcp_eth0" and so on
	ctx := channel.Must(dev.Open(verbs.Config{}))
	defer ctx.Close() // closes everything made from it
	pd := channel.Must(ctx.AllocPD())
	cq := channel.Must(ctx.CreateCQ(64, nil))
	qp := channel.Must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4}}))
	mr := channel.Must(pd.AllocMR(1<<20, verbs.AccessAll)) // memory that the provider moves fastest

	mine := channel.Must(qp.Endpoint())
	theirs, err := verbs.ParseEndpoint(exchange(channel.Must(mine.MarshalBinary())))
	if err != nil { // hostile bytes are an error, never a panic
		return err
	}
	if err := qp.Connect(theirs, verbs.ConnectAttr{}); err != nil {
		return err
	}
	channel.Must(qp.PostRecv([]verbs.RecvWR{{WRID: 1, SGList: []verbs.SGE{mr.SGE(0, 4096)}}}))
	channel.Must(qp.PostSend([]verbs.SendWR{{WRID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{mr.SGE(8192, 100)}}}))
	_, err = cq.Poll(wcs) // never blocks; cq.Wait(ctx, wcs) does
	return err
}

func Sums(x, y []float64, other *exact.Accumulator) {
	var sum exact.Accumulator // ready for use; a plain value
	sum.AddSlice(x)           // or Add
	sum.AddProducts(x, y)     // an inner product; no overflow, no underflow
	sum.Merge(other)
	fmt.Println(sum.Round()) // exact.Sum(x), exact.Dot(x, y) for short

	var words [exact.Words]int64 // 1112 bytes, which merge by addition:
	sum.Words(&words)            // reduce them as int64, then SetWords
}

func Events(ctx context.Context, file io.Reader, path string, classify func([]byte) []byte) error {
	output := channel.Must(pipeline.Create(path))
	p, err := pipeline.New(pipeline.Config{
		Sources: []pipeline.Source{pipeline.File(file, pipeline.FileOptions{}).Next},
		Workers: 4,
		NewWorker: func(context.Context, int) (pipeline.Worker, error) {
			return pipeline.Items(ring.V12, 0, func(it *ring.Item) (keep bool, err error) {
				it.Header.Extension = classify(it.Body)
				return it.Type != ring.PeriodicScalers, nil
			}), nil
		},
		Sink: output.Sink,
	})
	if err != nil {
		return err
	}
	// p.Drain and p.Stats meanwhile
	if err := p.Run(ctx); err != nil {
		return errors.Join(err, output.Discard())
	}
	return output.Commit()
}

func solve(context.Context, *channel.Node) error { return nil }

func Profiled(ctx context.Context, n *channel.Node) error {
	file, err := os.Create(fmt.Sprintf("cpu.%d", n.Rank()))
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return err
	}
	err = solve(ctx, n)
	pprof.StopCPUProfile()
	return errors.Join(err, file.Close())
}
