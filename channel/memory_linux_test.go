package channel

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// arenas counts the arenas of this process.
func arenas(t *testing.T) (count int) {
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, d := range descriptors {
		if name, err := os.Readlink(d); err == nil && strings.HasPrefix(name, "/memfd:sluice-arena") {
			count++
		}
	}
	return count
}

// mappedArenas counts how often one is mapped in this process.
func mappedArenas(t *testing.T) int {
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(maps), "/memfd:sluice-arena")
}

// TestAllocHoldsNobodyUp: what needs the node goes on while memory is allocated,
// which takes as long as the system takes to clear it.
func TestAllocHoldsNobodyUp(t *testing.T) {
	nodes := join(t, 2, WithProviders("shm"))
	n := nodes[0]
	held := func() bool {
		done := make(chan error, 1)
		before := arenas(t)
		go func() {
			_, err := n.Alloc(64 << 20)
			done <- err
		}()
		for arenas(t) == before { // from here on it is being cleared
			select {
			case err := <-done:
				require.NoError(t, err)
				return true
			default:
			}
		}
		for range 1000 {
			n.Stats()
		}
		select {
		case err := <-done:
			require.NoError(t, err)
			return true
		default:
			require.NoError(t, <-done)
			return false
		}
	}
	for try := 1; held(); try++ {
		require.Less(t, try, 10)
	}
}

// TestGroupsGoBack: when many groups have been used and closed, their shared memory goes back, at
// both members, although one closes all of its own first.
func TestGroupsGoBack(t *testing.T) {
	need.Full(t)
	worlds := worlds(t, 2, WithProviders("shm"))
	const count = 200
	files, mappings := arenas(t), mappedArenas(t)
	peak := 0
	closed := make(chan struct{})
	each(t, 2, func(rank int) error {
		ctx := within(t)
		var groups []*Group
		for range count {
			g := splitOf(t, worlds[rank], ctx, 0, 0)
			groups = append(groups, g)
			if err := g.Run(ctx, Barrier()); err != nil {
				return err
			}
		}
		var errs []error
		if rank == 1 {
			<-closed
		} else {
			defer close(closed)
			peak = arenas(t)
		}
		for _, g := range groups {
			errs = append(errs, g.Close())
		}
		return errors.Join(errs...)
	})
	const kept = 2 * (16 + 1) // each node keeps some, and has part of another in use
	require.Greater(t, peak, files+kept)
	ranks.Eventually(t, func() bool {
		return arenas(t) <= files+kept && mappedArenas(t) <= mappings+2*kept // by both nodes
	})
	each(t, 2, func(rank int) error {
		g := splitOf(t, worlds[rank], within(t), 0, 0)
		return errors.Join(g.Run(within(t), Barrier()), g.Close())
	})
}
