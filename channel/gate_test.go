package channel

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestDeclareWhileClosing: a node that is closed while others declare, give handles
// other memory and close them unpins everything.
func TestDeclareWhileClosing(t *testing.T) {
	rounds := need.InLong(20, 200)
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			p.needs(t)
			for range min(rounds, rounds/p.size/p.size+1) {
				nodes, errs := tryJoin(t, p.size, WithProviders(p.name))
				for _, err := range errs {
					require.NoError(t, err)
				}
				n := nodes[p.size-1]
				var wg sync.WaitGroup
				var declared atomic.Int64
				for i := range 4 {
					wg.Go(func() {
						for {
							h, err := n.DeclareReceive(Contiguous(make([]byte, 10_000)), 0)
							if err != nil {
								require.ErrorIs(t, err, ErrClosed)
								return
							}
							declared.Add(1)
							if err := h.Rebase(make([]byte, 10_000)); err != nil {
								require.ErrorIs(t, err, ErrClosed)
							}
							if i%2 == 0 {
								require.NoError(t, h.Close())
							}
						}
					})
				}
				for declared.Load() < 50 {
					runtime.Gosched()
				}
				closeAll(t, []*Node{n})
				wg.Wait()
				closeAll(t, nodes[:p.size-1])
			}
			collect()
		})
	}
}

// collect has the runtime find what has been left behind: a Pinner that still pins
// ends the program.
func collect() {
	done := make(chan struct{})
	sentinel := new([64]byte)
	runtime.SetFinalizer(sentinel, func(*[64]byte) { close(done) })
	sentinel = nil
	for {
		runtime.GC()
		select {
		case <-done:
			runtime.GC()
			return
		default:
			runtime.Gosched()
		}
	}
}
