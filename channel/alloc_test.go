package channel

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestAllocs: once connected, nothing is allocated for a message.
func TestAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	everywhere(t, func(t *testing.T, a, b *Node) {
		for i, size := range []int{8, 8, 120, 120, 1000, 1000, 4096, 4096, 9000, 9000, 300_000, 300_000} {
			s, r := sendReceive(t, a, b, size)
			message := func() {
				first, second := r, s
				if i%2 == 1 {
					first, second = s, r
				}
				if first.Start() != nil || second.Start() != nil {
					t.Error("not started")
				}
				for over := 0; over < 2; {
					over = 0
					for _, h := range []*Handle{r, s} {
						if done, err := h.Test(); err != nil {
							t.Error(err)
							return
						} else if done {
							over++
						}
					}
				}
			}
			warm, runs, most := 100, 100, 0.0
			if size > 9000 {
				warm, runs = 30, 50
			}
			for range warm {
				message()
			}
			if need.WantLong() {
				runs = 500
			}
			// In a guest a message takes as long as the engine waits for its user, and ibv allocates
			// for a wait.
			if strings.Contains(t.Name(), "/ibv") {
				runs, most = 20, 100
			}
			require.LessOrEqual(t, ranks.Allocs(runs, most, message), most, "%d bytes, sender first %v", size, i%2 == 1)
		}
	})
}
