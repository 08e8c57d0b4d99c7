package roce

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// guarded is a wire that detects its use during and after Close.
type guarded struct {
	wire
	inside, late atomic.Int64
	closed       atomic.Bool
}

func (g *guarded) recv(into []arrival) int {
	g.inside.Add(1)
	defer g.inside.Add(-1)
	if g.closed.Load() {
		g.late.Add(1)
	}
	return g.wire.recv(into)
}

func (g *guarded) close() {
	g.closed.Store(true)
	g.late.Add(g.inside.Load())
	g.wire.close()
}

// A poll while the device is closed does not touch what is gone: descriptor numbers are reused,
// rings are unmapped.
func TestCloseUnderPoll(t *testing.T) {
	for range 100 {
		n := newNetwork(1, faults{})
		a := n.node()
		g := &guarded{wire: a.wire}
		a.wire = g
		c, err := a.CreateCQ(16, nil)
		require.NoError(t, err)
		var polls atomic.Int64
		var pollers sync.WaitGroup
		for range 2 {
			pollers.Go(func() {
				var wcs [1]verbs.WC
				for !g.closed.Load() {
					k, err := c.Poll(wcs[:])
					assert.NoError(t, err)
					assert.Zero(t, k)
					polls.Add(1)
				}
				c.Poll(wcs[:])
			})
		}
		for polls.Load() < 10 {
			runtime.Gosched()
		}
		require.NoError(t, a.Close())
		pollers.Wait()
		require.Zero(t, g.late.Load())
	}
}
