package channel

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/refuse"
	"github.com/sluice-hpc/sluice/internal/wait"
)

func init() {
	acts["fenced"] = act{do: fenced, prepare: func(args []string) error {
		if !refused(args[1], number(os.Getenv("SLUICE_RANK"))) {
			return nil
		}
		return refuse.Call(unix.SYS_MEMBARRIER)
	}}
}

// refused says whether a rank does without membarrier(2).
func refused(ranks string, rank int) bool { return ranks == "all" || ranks == "one" && rank == 0 }

// fenced is a halo exchange of ranks that do not spin. Both ends of a pair know
// whether one of them has no membarrier.
func fenced(ctx context.Context, n *Node, args []string) error {
	ranks := args[1]
	if n.fenced != refused(ranks, n.Rank()) {
		return fmt.Errorf("rank %d without membarrier: %v", n.Rank(), n.fenced)
	}
	n.policy = wait.NewPolicy(wait.Setting{Mode: wait.Sleeping}, 1, nil)
	if err := halo(ctx, n, number(args[0]), hooks{}); err != nil {
		return err
	}
	n.mu.Lock()
	peers := n.allPeers()
	n.mu.Unlock()
	for _, p := range peers {
		p.mu.Lock()
		got, want := p.fenced, n.fenced || refused(ranks, p.rank)
		p.mu.Unlock()
		if got != want {
			return fmt.Errorf("rank %d and %d with fences: %v, want %v", n.Rank(), p.rank, got, want)
		}
	}
	return nil
}

// TestWithoutBarriers: where all ranks, or one of them, may not call membarrier(2),
// sleepers are woken all the same.
func TestWithoutBarriers(t *testing.T) {
	need.Full(t)
	rounds := need.InLong(24, 200)
	for _, ranks := range []string{"all", "one", "none"} {
		for _, size := range []int{2, 4, 16} {
			t.Run(fmt.Sprintf("%s of %d", ranks, size), func(t *testing.T) {
				if size > 4 || size > 2 && ranks != "one" {
					need.Long(t)
				}
				r, out := run(t, "shm", size, "fenced", strconv.Itoa(rounds/size*2), ranks)
				require.Zero(t, r.ExitStatus(), out)
			})
		}
	}
}
