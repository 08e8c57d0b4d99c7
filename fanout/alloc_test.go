package fanout

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestAllocs: a chunk costs no memory, at either end, in any dialect.
func TestAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	shm := comms(t, "shm", 2)
	for _, c := range []struct {
		name     string
		supplier []Option
		client   []ClientOption
	}{
		{"plain", nil, nil},
		{"posted", nil, []ClientOption{Window(2), MaxChunk(5000)}},
		{"timed, adaptive", []Option{Timed()}, []ClientOption{AdaptiveWindow(4)}},
		{"numbered", nil, []ClientOption{Numbered()}},
		{"redeliver", []Option{Redeliver()}, []ClientOption{Numbered(), Window(2)}},
		{"redeliver, plain", []Option{Redeliver()}, []ClientOption{Window(2), MaxChunk(5000)}},
		{"each", []Option{Batch(8000)}, []ClientOption{Numbered(), Window(8)}},
		{"queue", []Option{Queue(8), Batch(1000)}, []ClientOption{Numbered(), Window(2), MaxChunk(5016)}},
	} {
		for _, n := range []int{64, 5000} {
			t.Run(fmt.Sprintf("%s/%d", c.name, n), func(t *testing.T) {
				if n > 64 {
					need.Full(t)
				}
				w := dup(t, shm)
				ctx := ranks.Within(t)
				s := newSupplier(t, w[0], c.supplier...)
				worker := releaseAll(w[1], c.client...)
				head, body := make([]byte, 8), make([]byte, n-8)
				several := slices.Repeat([][]byte{body}, 10)
				var err error
				send := func() {
					switch {
					case err != nil:
					case c.name == "each":
						_, err = s.SendEach(context.Background(), several...)
					default:
						err = s.Send(context.Background(), head, body)
					}
				}
				for range 300 { // what grows has grown
					send()
				}
				allocs := testing.AllocsPerRun(100, send)
				for range 5 { // it counts those of the whole process, some of which are not of a send
					allocs = min(allocs, testing.AllocsPerRun(100, send))
				}
				require.NoError(t, err)
				require.NoError(t, s.End(ctx))
				require.NoError(t, <-worker)
				require.Zero(t, allocs)
			})
		}
	}
}
