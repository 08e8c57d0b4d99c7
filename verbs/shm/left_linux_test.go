package shm_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// TestMappedStays: what has been mapped keeps its bytes when the peer closes its context: regions in an
// arena that they share, of an arena of their own, and of more arenas than a context keeps.
func TestMappedStays(t *testing.T) {
	a, b := pair(t, 4096)
	sizes := []int{4096, 100, 3 << 20}
	for range 20 {
		sizes = append(sizes, 1<<20)
	}
	mapped := make([][]byte, len(sizes))
	for i, size := range sizes {
		mr, err := a.pd.AllocMR(size, verbs.AccessAll)
		require.NoError(t, err)
		ranks.Eventually(t, func() bool { // it has come
			mapped[i], err = b.qp.Map(mr.RKey(), mr.Addr(), size)
			return !errors.Is(err, verbs.ErrState)
		})
		require.NoError(t, err)
		for j := range mr.Bytes() {
			mr.Bytes()[j] = byte(i) + 1
		}
	}
	require.NoError(t, a.ctx.Close())
	for i, m := range mapped {
		for j := range m {
			if m[j] != byte(i)+1 {
				require.Failf(t, "lost", "byte %d of region %d is %d", j, i, m[j])
			}
		}
	}
}
