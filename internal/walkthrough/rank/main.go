// Command rank is a rank of the jobs that the tests run in containers. Usage:
//
//	rank meet        all ranks send each other messages and sum up
//	rank eat R       after that, rank R takes memory until it has no more
//	rank wait R      after that, rank R says "ready" and waits; the others want to hear from it
//	rank limits SIZE each rank says which limits it sees, and asks for SIZE bytes to share
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/limits"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

func main() { channel.Main(rank) }

// eaten is what act eat has taken.
var eaten [][]byte

func rank(ctx context.Context, n *channel.Node) error {
	if len(os.Args) < 2 {
		return errors.New("usage: rank meet, rank eat R, rank wait R, rank limits SIZE")
	}
	if err := meet(ctx, n); err != nil {
		return err
	}
	if os.Args[1] == "meet" {
		return nil
	}
	number, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return err
	}
	switch os.Args[1] {
	case "limits":
		host := limits.Host{FS: os.DirFS("/")}
		least := limits.Room{Bound: "none"}
		for i, r := range host.Memory() {
			if i == 0 || r.Most < least.Most {
				least = r
			}
		}
		fmt.Printf("rank %d: GOMAXPROCS %d, quota %g CPUs, memory %d MiB\n", n.Rank(), runtime.GOMAXPROCS(0), host.Quota().CPUs(), least.Most>>20)
		_, err := n.Alloc(number)
		fmt.Printf("rank %d: %d bytes: %v\n", n.Rank(), number, err)
		return nil
	case "eat":
		if n.Rank() == number {
			for {
				b := make([]byte, 1<<20)
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
				eaten = append(eaten, b)
			}
		}
	case "wait":
		if n.Rank() == number {
			fmt.Println("ready")
			select {}
		}
	default:
		return fmt.Errorf("no act %q", os.Args[1])
	}
	err = n.Recv(ctx, make([]byte, 1), number)
	if e, ok := errors.AsType[*channel.Error](err); ok && errors.Is(err, channel.ErrPeerDied) {
		fmt.Printf("rank %d: rank %d has died\n", n.Rank(), e.Rank)
	}
	return err
}

// meet sends a message of 1 MiB, from Alloc memory, to each other rank, and checks what comes and a sum.
func meet(ctx context.Context, n *channel.Node) error {
	const length = 1 << 20
	memory, err := n.Alloc(2 * length)
	if err != nil {
		return err
	}
	out, in := memory.Bytes()[:length], memory.Bytes()[length:]
	for i := range out {
		out[i] = byte(n.Rank() + 1)
	}
	for step := 1; step < n.Size(); step++ {
		to, from := (n.Rank()+step)%n.Size(), (n.Rank()-step+n.Size())%n.Size()
		if err := n.Sendrecv(ctx, out, to, in, from); err != nil {
			return err
		}
		if in[0] != byte(from+1) || in[length-1] != byte(from+1) {
			return fmt.Errorf("rank %d sent %d and %d, want %d", from, in[0], in[length-1], from+1)
		}
	}
	world, err := n.World(ctx)
	if err != nil {
		return err
	}
	sum := make([]int64, 1)
	if err := world.Run(ctx, channel.Allreduce(channel.Sum, sum, []int64{int64(n.Rank() + 1)})); err != nil {
		return err
	}
	fmt.Printf("rank %d of %d: the sum is %d\n", n.Rank(), n.Size(), sum[0])
	for _, p := range n.Stats().Peers {
		fmt.Printf("rank %d reaches %d through %s\n", n.Rank(), p.Rank, p.Provider)
	}
	return nil
}
