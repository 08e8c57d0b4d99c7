package boot

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A shell of Slurm or PBS has the nodes that it was given; a rank has none.
func TestAllocation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nodes")
	require.NoError(t, os.WriteFile(file, []byte("a\na\n\nb\na\n"), 0o600))
	bad := filepath.Join(t.TempDir(), "bad")
	require.NoError(t, os.WriteFile(bad, []byte("a;b\n"), 0o600))
	slurm := []string{"SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-3]", "SLURM_TASKS_PER_NODE=2(x2),1", "SLURMD_NODENAME=n2"}
	given := []Node{{"n1", 2, false}, {"n2", 2, true}, {"n3", 1, false}}
	for name, c := range map[string]struct {
		environment []string
		nodes       []Node
		slurm       bool
		wrong       string // variable
	}{
		"none":          {nil, nil, false, ""},
		"salloc":        {slurm, given, true, ""},
		"sbatch":        {append(slurm, "SLURM_PROCID=0", "SLURM_STEP_ID=batch"), given, true, ""},
		"srun":          {append(slurm, "SLURM_PROCID=0", "SLURM_STEP_ID=0"), nil, false, ""},
		"sluice run":    {append(slurm, "SLUICE_RANK=0"), nil, false, ""},
		"mpirun":        {append(slurm, "PMI_FD=3"), nil, false, ""},
		"without tasks": {slurm[:2], []Node{{"n1", 1, false}, {"n2", 1, false}, {"n3", 1, false}}, true, ""},
		"bad nodes":     {[]string{"SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n["}, nil, true, "SLURM_JOB_NODELIST"},
		"bad tasks":     {[]string{"SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n1", "SLURM_TASKS_PER_NODE=x"}, nil, true, "SLURM_TASKS_PER_NODE"},
		"PBS":           {[]string{"PBS_NODEFILE=" + file}, []Node{{"a", 3, false}, {"b", 1, false}}, false, ""},
		"PBS, bad node": {[]string{"PBS_NODEFILE=" + bad}, nil, false, "PBS_NODEFILE"},
		"PBS, no file":  {[]string{"PBS_NODEFILE=/no/such"}, nil, false, "PBS_NODEFILE"},
	} {
		nodes, bySlurm, err := allocationFrom(variables(c.environment...))
		if c.wrong != "" {
			var bad *EnvError
			require.ErrorAs(t, err, &bad, name)
			require.Equal(t, c.wrong, bad.Name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.nodes, nodes, name)
		require.Equal(t, c.slurm, bySlurm, name)
	}
}
