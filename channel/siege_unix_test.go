//go:build unix

package channel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// siege is a job in which ranks 0 and 1 survive. They exchange halos with each other,
// and at the same time each with each of the others, which are killed at random
// moments. What concerns a dead rank fails; the exchange of the survivors goes on.
func siege(ctx context.Context, n *Node, args []string) error {
	if v := n.Rank(); v > 1 {
		r := rand.New(rand.NewPCG(uint64(number(args[0])), uint64(v)))
		fatal, delay := 1+r.IntN(number(args[1])/5), time.Duration(r.IntN(5000))*time.Microsecond
		up := make(chan struct{})
		go halo(ctx, n, 1_000_000, hooks{ring: []int{0, v}, before: func(round int) {
			if round == 1 {
				close(up)
			}
		}})
		return halo(ctx, n, 1_000_000, hooks{ring: []int{1, v}, before: func(round int) {
			if round == fatal {
				if v%2 == 0 { // not while it connects
					<-up
				}
				time.AfterFunc(delay, func() {
					fmt.Printf("rank %d dies at %d\n", v, time.Now().UnixNano())
					syscall.Kill(os.Getpid(), syscall.SIGKILL)
				})
			}
		}})
	}
	ctx, cancel := context.WithTimeout(ctx, limit/2)
	defer cancel()
	errs := make([]error, n.Size())
	var wg sync.WaitGroup
	for v := 2; v < n.Size(); v++ {
		wg.Go(func() {
			err := halo(ctx, n, 1_000_000, hooks{ring: []int{n.Rank(), v}})
			fmt.Printf("rank %d buried at %d\n", v, time.Now().UnixNano())
			if errors.Is(err, ErrTimeout) {
				n.Report(os.Stdout)
			}
			list, unknown := causes(err)
			if unknown != nil || len(list) == 0 {
				errs[v] = fmt.Errorf("exchange with rank %d: %w", v, err)
			}
			for _, e := range list {
				if e.Rank != v || !errors.Is(e, ErrPeerDied) && !errors.Is(e, ErrUnreachable) {
					errs[v] = fmt.Errorf("exchange with rank %d: %w", v, err)
				}
			}
		})
	}
	errs[0] = halo(ctx, n, number(args[1]), hooks{ring: []int{0, 1}})
	wg.Wait()
	return errors.Join(errs...)
}

var (
	died   = regexp.MustCompile(`rank (\d+) dies at (\d+)`)
	buried = regexp.MustCompile(`rank (\d+) buried at (\d+)`)
)

// TestSiege: kill -9 at random moments, four ranks of each job, and in the long form six.
// (Over RDMA two, and fewer rounds: a guest that emulates its CPUs moves some megabytes a
// second.) Both survivors have
// returned within the peer timeout, over shared memory, where nothing waits for it, in half of
// that, also where the dead rank was still connecting: the long form judges that.
func TestSiege(t *testing.T) {
	jobs, victims, rounds := 1, 4, 15
	if need.WantLong() {
		jobs, victims, rounds = 16, 6, 100
	}
	processes(t, func(t *testing.T, provider string, run runner) {
		victims, rounds := victims, rounds
		bound := 10 * time.Second
		if provider == "shm" {
			bound /= 2
		}
		if provider == "ibv" {
			victims, rounds = 2, 10
		}
		var longest time.Duration
		r := rand.New(rand.NewPCG(seed(t), 0))
		for range jobs {
			result, out := run(t, 2+victims, "siege", strconv.Itoa(r.Int()), strconv.Itoa(rounds))
			for rank, status := range result.Status {
				want := 0
				if rank > 1 {
					want = 128 + int(syscall.SIGKILL)
				}
				require.Equal(t, want, status, "rank %d\n%s", rank, out)
			}
			deaths := map[string]int{}
			for _, m := range died.FindAllStringSubmatch(out, -1) {
				deaths[m[1]] = number(m[2])
			}
			burials := buried.FindAllStringSubmatch(out, -1)
			require.Len(t, burials, 2*victims, out)
			for _, m := range burials {
				require.Contains(t, deaths, m[1], out)
				took := time.Duration(number(m[2]) - deaths[m[1]])
				if need.WantLong() {
					require.Less(t, took, bound, "rank %s\n%s", m[1], out)
				}
				longest = max(longest, took)
			}
		}
		t.Logf("%d deaths, the longest took %v", jobs*victims, longest)
	})
}
