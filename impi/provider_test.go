package impi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/nettest"
)

// The provider of the queue pair to a process, and none where there is no queue pair.
func TestProvider(t *testing.T) {
	want := map[string]string{"here": "", "tcp": "", "shm": "shm", "verbs-tcp": "tcp", "roce": "roce", "ibv": "ibv"}
	for _, provider := range nettest.Providers() {
		want[provider] = provider
	}
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			w := worlds(t, p)
			require.Equal(t, want[p.name], w[0].job.Provider(1))
			require.Equal(t, want[p.name], w[1].job.Provider(0))
			require.Empty(t, w[0].job.Provider(0), "itself")
			for _, rank := range []int{-1, 2} {
				require.Empty(t, w[0].job.Provider(rank), "no such rank")
			}
		})
	}
}
