//go:build unix

package channel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// meetAll exchanges messages of several sizes with every other rank, checks every
// byte, and reports the provider of each peer. After args[0] rounds it ends or, with a second
// argument, goes on until it fails and says why.
func meetAll(ctx context.Context, n *Node, args []string) error {
	sizes := []int{8, 3000, 100_000, 200_000}
	var handles, receives []*Handle
	var in, out [][]byte
	var from []int
	for peer := range n.Size() {
		if peer == n.Rank() {
			continue
		}
		for i, size := range sizes {
			m := Must(n.Alloc(size))
			a, b := m.Bytes(), make([]byte, size)
			if i == len(sizes)-1 {
				a = make([]byte, size) // which the peer does not reach
			}
			s := Must(n.DeclareSend(Contiguous(a), peer, OnStream(i)))
			r := Must(n.DeclareReceive(Contiguous(b), peer, OnStream(i)))
			handles, receives = append(handles, s), append(receives, r)
			out, in, from = append(out, a), append(in, b), append(from, peer)
		}
	}
	all := Must(n.Multiple(append(handles, receives...)...))
	for round := 0; ; round++ {
		if round == number(args[0]) {
			for _, p := range n.Stats().Peers {
				fmt.Printf("rank %d reaches %d through %s, which is %s\n", n.Rank(), p.Rank, p.Provider, p.State)
			}
			fmt.Printf("process %d\n", os.Getpid())
			err := n.Report(os.Stdout)
			if err == nil {
				err = n.job.Barrier(ctx) // or the others would see the first rank leave
			}
			if err != nil || len(args) == 1 {
				return err
			}
			fmt.Println("all have met")
		}
		for i, b := range out {
			paint(b, n.Rank(), round, i%len(sizes))
		}
		if err := errors.Join(all.Start(), all.WaitContext(ctx)); err != nil {
			if len(args) == 1 {
				return err
			}
			fmt.Printf("rank %d ended: %s\n", n.Rank(), strings.ReplaceAll(err.Error(), "\n", "; "))
			return nil
		}
		for i, b := range in {
			want := make([]byte, len(b))
			paint(want, from[i], round, i%len(sizes))
			if string(want) != string(b) {
				return fmt.Errorf("round %d: %d bytes from rank %d are wrong", round, len(b), from[i])
			}
		}
	}
}
