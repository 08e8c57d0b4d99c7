package main

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// With any launcher the job is measured as one: rank 0 prints, once. Of Slurm a
// cluster on this host is started for each job, whose ranks are on two of its nodes.
func TestLaunchers(t *testing.T) {
	need.Long(t) // a dozen jobs of other launchers
	for _, l := range []struct {
		name    string
		command []string
		needs   func(testing.TB)
	}{
		{"hydra", []string{"mpiexec.hydra", "-n", "2"}, nil},
		{"openmpi", []string{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"}, nil},
		{"srun", []string{"../internal/boot/testdata/slurm.sh", "srun", "-N", "2", "-n", "2", "--mpi=pmi2"}, need.Slurm},
	} {
		for _, c := range []struct{ name, pattern string }{
			{"verbs lat --sizes 8", patternLat},
			{"channel rate --sizes 8", patternRate},
			{"impi lat --sizes 8 --carrier tcp", patternLat},
			{"qmp sum --doubles 1", "allreduce"},
			{"qmp faces --axis x", patternHalo},
			{"fanout rate --sizes 64", patternFanout},
			{"barrier --call called", "barrier"},
		} {
			t.Run(l.name+" "+c.name, func(t *testing.T) {
				need.Program(t, l.command[0])
				if l.needs != nil {
					l.needs(t)
				}
				ctx, cancel := context.WithTimeout(context.Background(), bound)
				defer cancel()
				of := bench(ctx, append(append(strings.Fields(c.name), tiny...), "--json")...)
				cmd := exec.CommandContext(ctx, l.command[0], append(append([]string{}, l.command[1:]...), of.Args...)...)
				cmd.Env = append(of.Env, "SLUICE_INSECURE=1")
				cmd.WaitDelay = 5 * time.Second
				var told bytes.Buffer
				cmd.Stderr = &told
				out, err := cmd.Output()
				require.NoError(t, err, "%s", told.Bytes())
				r := decode(t, out)
				require.Len(t, r.Environment.Ranks, 2)
				require.Equal(t, c.pattern, r.Results[0].Pattern)
			})
		}
	}
}
