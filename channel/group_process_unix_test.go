//go:build unix

package channel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

func init() {
	acts["collect"] = act{do: collectives}
	acts["perish"] = act{do: perish}
}

// collectives carries out collectives, each rank in a process of its own, and sums what
// cancels but for a little.
func collectives(ctx context.Context, n *Node, args []string) error {
	g := Must(n.World(ctx))
	if err := runTrials(ctx, g, trials(7, n.Size(), number(args[0]), 9000)); err != nil {
		return err
	}
	var a exact.Accumulator
	terms := []float64{1e300, 1, float64(n.Rank()), 1e-300, -1e300}
	for i := range terms { // in another order everywhere
		a.Add(terms[(i+n.Rank())%len(terms)])
	}
	if err := SumExact(ctx, g, &a); err != nil {
		return err
	}
	if want := float64(n.Size() + n.Size()*(n.Size()-1)/2); a.Round() != want {
		return fmt.Errorf("exact sum %v, want %v", a.Round(), want)
	}
	return nil
}

// Collectives between processes, also more than there are CPUs, over every provider.
func TestCollectivesProcesses(t *testing.T) {
	count := need.InLong("20", "60")
	processes(t, func(t *testing.T, provider string, run runner) {
		for _, size := range []int{2, 3, 5, 8} {
			t.Run(strconv.Itoa(size), func(t *testing.T) {
				if size == 2 || size == 8 || size > 3 && provider != "shm" {
					need.Long(t) // TestCollectives has as many over tcp
				}
				if size > 3 || provider == "tcp" {
					need.Full(t)
				}
				r, out := run(t, size, "collect", count)
				require.Zero(t, r.ExitStatus(), out)
			})
		}
	})
}

// perish does collectives until the rank of the first argument kills itself in the
// one of the second; the others say what they have seen of it.
func perish(ctx context.Context, n *Node, args []string) error {
	victim, fatal := number(args[0]), number(args[1])
	g, err := n.World(ctx) // which may not be made here when it is at the victim
	list := trials(uint64(fatal), n.Size(), fatal+1, 9000)
	for i := 0; err == nil; i++ {
		if n.Rank() == victim && i == fatal {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		c := &list[min(i, fatal)]
		if i >= fatal { // all ranks are needed
			c = &colltest.Reference{Kind: coll.Allreduce, Seed: 1, Size: n.Size(), Count: 10 * (1 + fatal%2000)}
		}
		o, _, _ := operation(c, g.Rank(), func(n int) []byte { return make([]byte, n) })
		err = g.Run(ctx, o)
	}
	var e *Error
	if errors.As(err, &e) && (errors.Is(err, ErrPeerDied) || errors.Is(err, ErrUnreachable)) && e.Rank == victim {
		return nil
	}
	return fmt.Errorf("rank %d of a job whose rank %d died: %w", n.Rank(), victim, err)
}

// kill -9 at any moment: all members end with an error that names the dead one.
func TestMemberDeath(t *testing.T) {
	rounds, last := 2, 20
	if need.WantLong() {
		rounds, last = 10, 60
	}
	processes(t, func(t *testing.T, provider string, run runner) {
		for i := range rounds {
			size := []int{4, 2, 3, 5}[i%4]
			victim := rand.IntN(size)
			r, out := run(t, size, "perish", strconv.Itoa(victim), strconv.Itoa(rand.IntN(last)))
			for rank, status := range r.Status {
				want := 0
				if rank == victim {
					want = 137
				}
				require.Equal(t, want, status, "rank %d\n%s", rank, out)
			}
		}
	})
}
