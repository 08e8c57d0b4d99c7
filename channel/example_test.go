package channel_test

import (
	"context"
	"fmt"
	"log"
	"math"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/exact"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

// Every rank sends a column of its matrix to the next rank and receives one into
// a row. Run alone, as here, a program is a job of one, whose next rank is itself;
// "sluice run -n 4 program" makes four.
func Example() {
	ctx := context.Background()
	node, err := channel.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	const n = 4
	memory, err := node.Alloc(2 * n * n * 8)
	if err != nil {
		log.Fatal(err)
	}
	bytes := memory.Bytes()
	matrix, row := bytes[:n*n*8], bytes[n*n*8:][:n*8]
	for i := range matrix {
		matrix[i] = byte(i / 8) // element number i of one byte each, for show
	}

	next, last := (node.Rank()+1)%node.Size(), (node.Rank()+node.Size()-1)%node.Size()
	column := channel.Strided(matrix, 1*8, 8, n, n*8) // column 1: n blocks of 8 bytes, a row apart
	send, err := node.DeclareSend(column, next)
	if err != nil {
		log.Fatal(err)
	}
	receive, err := node.DeclareReceive(channel.Contiguous(row), last)
	if err != nil {
		log.Fatal(err)
	}
	both, err := node.Multiple(send, receive)
	if err != nil {
		log.Fatal(err)
	}
	for range 1000 { // declared once, started many times
		if err := both.Start(); err != nil {
			log.Fatal(err)
		}
		if err := both.Wait(); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(row[0], row[8], row[16], row[24])
	// Output: 1 5 9 13
}

// A slice of any type without pointers can be sent, wherever it lies.
func ExampleBytes() {
	node, err := channel.Join(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	out, in := []float64{3.25, -1}, make([]float64, 2)
	send, err := node.DeclareSend(channel.Contiguous(channel.Bytes(out)), node.Rank())
	if err != nil {
		log.Fatal(err)
	}
	receive, err := node.DeclareReceive(channel.Contiguous(channel.Bytes(in)), node.Rank())
	if err != nil {
		log.Fatal(err)
	}
	if err := send.Start(); err != nil {
		log.Fatal(err)
	}
	if err := receive.Start(); err != nil {
		log.Fatal(err)
	}
	if err := channel.WaitAll(send, receive); err != nil {
		log.Fatal(err)
	}
	fmt.Println(in)
	// Output: [3.25 -1]
}

// All ranks add up a vector, once and then again and again; and a sum of which the
// rounding does not depend on how many ranks there are.
func ExampleGroup() {
	ctx := context.Background()
	node, err := channel.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	world, err := node.World(ctx)
	if err != nil {
		log.Fatal(err)
	}

	part := []float64{1, 2, 3}
	total := make([]float64, 3)
	if err := world.Run(ctx, channel.Allreduce(channel.Sum, total, part)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(total) // of a job of one rank

	step, err := world.Declare(channel.Allreduce(channel.Max, total, part))
	if err != nil {
		log.Fatal(err)
	}
	defer step.Close()
	for range 1000 {
		if err := step.Start(); err != nil {
			log.Fatal(err)
		}
		if err := step.WaitContext(ctx); err != nil {
			log.Fatal(err)
		}
	}

	var sum exact.Accumulator
	sum.AddSlice([]float64{1e100, 1, -1e100})
	if err := channel.SumExact(ctx, world, &sum); err != nil {
		log.Fatal(err)
	}
	fmt.Println(sum.Round())

	var square exact.Complex // of the norm of a vector of which each rank has a part
	x := []complex64{3, 4i}
	exact.AddInner(&square, x, x)
	if err := channel.SumExact(ctx, world, &square.Re, &square.Im); err != nil { // one reduction
		log.Fatal(err)
	}
	fmt.Println(math.Sqrt(real(square.Round())))
	// Output:
	// [1 2 3]
	// 1
	// 5
}
