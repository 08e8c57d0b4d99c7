package channel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	acts["sparse"] = act{do: sparse}
	acts["weigh"] = act{do: weigh}
	acts["crowded"] = act{do: crowded, patient: true}
}

// weight is what a process holds.
type weight struct {
	heap, shared, touched, sockets, goroutines int
}

func (w weight) minus(o weight) weight {
	return weight{w.heap - o.heap, w.shared - o.shared, w.touched - o.touched, w.sockets - o.sockets, w.goroutines - o.goroutines}
}

func (w weight) over(n int) weight {
	return weight{w.heap / n, w.shared / n, w.touched / n, w.sockets / n, w.goroutines / n}
}

func (w weight) String() string {
	return fmt.Sprintf("%d KiB of heap and stacks, %d KiB of shared memory, %d of them touched, %d descriptors, %d goroutines",
		w.heap>>10, w.shared>>10, w.touched>>10, w.sockets, w.goroutines)
}

// held weighs this process: shared memory is what it maps, its own and that of
// others; touched are those pages of it that it has accessed.
func held() (weight, error) {
	runtime.GC()
	runtime.GC() // what has a finalizer, too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return weight{}, err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return weight{}, err
	}
	touched, err := sharedMemory()
	if err != nil {
		return weight{}, err
	}
	w := weight{heap: int(m.HeapAlloc + m.StackInuse), touched: touched, sockets: len(fds) - 1, goroutines: runtime.NumGoroutine()}
	for line := range strings.Lines(string(maps)) {
		var from, to int
		if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err == nil && strings.Contains(line, "/memfd:") {
			w.shared += to - from
		}
	}
	return w, nil
}

// sparse is a halo exchange on a ring, after which a rank knows only its neighbours.
func sparse(ctx context.Context, n *Node, args []string) error {
	before := Must(held())
	if err := halo(ctx, n, number(args[0]), hooks{}); err != nil {
		return err
	}
	if err := n.job.Barrier(ctx); err != nil {
		return err
	}
	after := Must(held())
	peers := n.Stats().Peers
	grown := after.minus(before)
	const arenas = 6 // of the faces, and of the pipes of those that lie on the heap
	if len(peers) != 2 || grown.sockets > 2*peerBound[peers[0].Provider].sockets+arenas {
		return fmt.Errorf("rank %d of %d has %d peers: %v", n.Rank(), n.Size(), len(peers), grown)
	}
	return n.job.Barrier(ctx)
}

// TestManyRanks: a job of more ranks than machines have CPUs joins, and connections
// grow with the peers that a rank talks to, not with the job.
func TestManyRanks(t *testing.T) {
	need.Full(t)
	size := need.InLong(12, 256)
	r, out := run(t, "shm", size, "sparse", "2")
	require.Zero(t, r.ExitStatus(), out)
}

// crowded connects all ranks with each other.
func crowded(ctx context.Context, n *Node, _ []string) error {
	world, err := n.World(ctx)
	for i := 0; err == nil && i < 10; i++ {
		err = world.Run(ctx, Barrier())
	}
	return err
}

// TestCrowd: as many ranks as the launcher admits for any number of CPUs connect with each other,
// however long that takes.
func TestCrowd(t *testing.T) {
	need.Long(t)
	for size, memory := range map[int]int{64: 2, 128: 6, 256: 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			if size > 64 {
				need.NoRace(t, "it would take too much memory")
			}
			need.Memory(t, memory)
			need.Files(t, uint64(6*size)) // of the launcher
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			var out logbuf.Buffer
			r, err := launch.Run(ctx, launch.Options{
				Size: size, Args: []string{ranks.Program()}, Env: ranks.Environ("crowded", envProviders+"=shm"),
				Stdout: &out, Stderr: &out, Prefix: true, OnFailure: launch.Continue,
			})
			require.NoError(t, err, out.String())
			require.Zero(t, r.ExitStatus(), out.String())
		})
	}
}

// What a connected peer may cost, with a stream each way: what docs/scale.md says,
// and half as much again.
var peerBound = map[string]weight{
	"shm":  {heap: 100 << 10, shared: 2500 << 10, sockets: 4, goroutines: 6},
	"tcp":  {heap: 1500 << 10, sockets: 3, goroutines: 3},
	"roce": {heap: 1500 << 10, sockets: 3, goroutines: 3},
	"ibv":  {heap: 1500 << 10, sockets: 3, goroutines: 3},
}

// rankBound is the most that a rank without any communication may cost.
var rankBound = weight{heap: 2 << 20, shared: 2500 << 10, sockets: 22, goroutines: 14}

// exceeds says in what w is more than the bound.
func (w weight) exceeds(bound weight) bool {
	return w.heap > bound.heap || w.shared > bound.shared || w.sockets > bound.sockets || w.goroutines > bound.goroutines
}

// weigh has rank 0 talk to one rank and then to all but the last, and weighs what
// that costs it. The last talks to no rank.
func weigh(ctx context.Context, n *Node, args []string) error {
	last := n.Size() - 1
	talk := func(peer int) error {
		s := Must(n.DeclareSend(Contiguous(make([]byte, 8)), peer))
		r := Must(n.DeclareReceive(Contiguous(make([]byte, 8)), peer))
		return errors.Join(s.Start(), r.Start(), WaitAllContext(ctx, s, r))
	}
	rounds := []func() error{
		func() error { return nil },
		func() error {
			switch n.Rank() {
			case 0:
				return talk(1)
			case 1:
				return talk(0)
			}
			return nil
		},
		func() error {
			if n.Rank() != 0 {
				if n.Rank() == 1 || n.Rank() == last {
					return nil
				}
				return talk(0)
			}
			for peer := 2; peer < last; peer++ {
				if err := talk(peer); err != nil {
					return err
				}
			}
			return nil
		},
	}
	weights := make([]weight, len(rounds))
	for i, round := range rounds {
		if err := errors.Join(round(), n.job.Barrier(ctx)); err != nil {
			return err
		}
		w := Must(held())
		weights[i] = w
		if err := n.job.Barrier(ctx); err != nil { // the next begins when all have weighed
			return err
		}
	}
	switch n.Rank() {
	case 0:
		bound := peerBound[args[0]]
		peer := weights[2].minus(weights[1]).over(last - 2)
		fmt.Printf("a rank: %v\n", weights[0])
		fmt.Printf("the first peer: %v\n", weights[1].minus(weights[0]))
		fmt.Printf("each more: %v\n", peer)
		if weights[0].exceeds(rankBound) || peer.exceeds(bound) {
			return fmt.Errorf("want at most %v for a rank, and %v for a peer", rankBound, bound)
		}
	case last:
		if grown := weights[2].minus(weights[0]); len(n.Stats().Peers) > 0 || grown.sockets > 0 || grown.shared > 0 || grown.goroutines > 0 {
			return fmt.Errorf("a rank without communication has %d peers more: %v", len(n.Stats().Peers), grown)
		}
	}
	return n.job.Barrier(ctx)
}

var weightLine = regexp.MustCompile(`(?m)^\[0\] (.*)$`)

// TestWeight: what a rank and what a connected peer cost.
func TestWeight(t *testing.T) {
	need.NoRace(t, "it allocates")
	apart(t, func(t *testing.T, provider string) {
		r, out := run(t, provider, 6, "weigh", provider)
		require.Zero(t, r.ExitStatus(), out)
		for _, line := range weightLine.FindAllStringSubmatch(out, -1) {
			t.Log(line[1])
		}
	})
}
