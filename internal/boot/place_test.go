package boot

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlace: rank and size are those of the launcher by which Join would join.
func TestPlace(t *testing.T) {
	for _, c := range []struct {
		environment string
		rank, size  int
		ok          bool
	}{
		{"", 0, 0, false},
		{"SLUICE_RANK=1 SLUICE_SIZE=3", 1, 3, true},
		{"SLUICE_RANK=3 SLUICE_SIZE=3", 0, 0, false},
		{"SLUICE_RANK=1", 0, 0, false},
		{"SLUICE_RANK=1 SLUICE_SIZE=3 OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_SIZE=5", 1, 3, true},
		{"SLUICE_RANK=1 SLUICE_SIZE=3 SLUICE_LAUNCHER=run", 1, 3, true},
		{"SLUICE_RANK=1 SLUICE_SIZE=3 SLUICE_LAUNCHER=run OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_SIZE=5", 4, 5, true},
		{"SLUICE_IMPI_SERVER=a:1 SLUICE_RANK=1 SLUICE_SIZE=3 SLUICE_LAUNCHER=run PMI_RANK=4 PMI_SIZE=5", 1, 3, true},
		{"PMI_RANK=4 PMI_SIZE=5 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=9 SLURM_STEP_ID=0", 4, 5, true},
		{"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=9 SLURM_STEP_ID=0", 1, 9, true},
		{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=9", 0, 0, false},
		{"JOB_COMPLETION_INDEX=2 SLUICE_SIZE=4", 2, 4, true},
		{"JOB_COMPLETION_INDEX=2", 0, 0, false},
	} {
		rank, size, ok := placeFrom(func(name string) (string, bool) {
			for _, s := range strings.Fields(c.environment) {
				if n, value, _ := strings.Cut(s, "="); n == name {
					return value, true
				}
			}
			return "", false
		})
		require.Equal(t, c.ok, ok, c.environment)
		if ok {
			require.Equal(t, []int{c.rank, c.size}, []int{rank, size}, c.environment)
		}
	}
}
