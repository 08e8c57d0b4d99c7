package channel

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestAbortSlurm: srun returns the code of Abort, with PMI and without, on three
// nodes.
func TestAbortSlurm(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Slurm(t)
	need.Full(t)
	runs := []string{"pmi2 0", "none 4"} // --mpi and culprit
	if need.WantLong() {
		runs = append(runs, "pmi2 4", "none 0")
	}
	script := `for run; do
	set -- $run
	srun -N 3 -n 6 --mpi=$1 "$0" $2; echo "$run returned $?"
done`
	args := append([]string{"../internal/boot/testdata/slurm.sh", "sh", "-c", script, ranks.Program()}, runs...)
	pids := filepath.Join(t.TempDir(), "pids")
	status, out := command(t, bare("abort", abortSecret, envPIDs+"="+pids), args...)
	require.Zero(t, status, out)
	for _, run := range runs {
		require.Contains(t, out, run+" returned 7\n", out)
	}
	notedPIDs(t, len(runs)*6, pids, out)
}
