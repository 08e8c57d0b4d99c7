package channel

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAbortSlurm: srun returns the code of Abort, with PMI and without, on three
// nodes.
func TestAbortSlurm(t *testing.T) {
	installed(t, "srun", "slurmctld", "slurmd", "munged")
	if os.Geteuid() != 0 {
		t.Skip("a cluster needs root")
	}
	script := `for culprit in 0 4; do for mpi in pmi2 none; do
	srun -N 3 -n 6 --mpi=$mpi "$0" $culprit; echo "$mpi $culprit returned $?"
done; done`
	status, out := command(t, bare("abort", abortSecret), "../internal/boot/testdata/slurm.sh", "sh", "-c", script, testBinary(t))
	require.Zero(t, status, out)
	for _, line := range []string{"pmi2 0", "none 0", "pmi2 4", "none 4"} {
		require.Contains(t, out, line+" returned 7\n", out)
	}
	require.Equal(t, 4*6, strings.Count(out, "pid "), out)
}
