package boot

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// nodesJob is what the ranks of a job on three nodes, two on each, say of
// themselves.
func nodesJob(secret int) (list []string) {
	for rank := range 6 {
		list = append(list, fmt.Sprintf("rank %d of 6, %d of 2 here, secret of %d", rank, rank%2, secret))
	}
	return list
}

// inSlurm runs a command in a cluster of its own, of three nodes on this host,
// and passes the environment on.
func inSlurm(t *testing.T, do string, env []string, command string) outcome {
	return start(t, do, env, "testdata/slurm.sh", "sh", "-c", command)
}

// A cluster for each case takes seconds to start: those that show one way to start a job
// run always, their combinations in long tests.
func TestSlurm(t *testing.T) {
	need.Slurm(t)
	me := ranks.Program()
	sluice := t.TempDir() + "/sluice"
	if !testing.Short() { // which starts no job of it
		out, err := exec.Command("go", "build", "-o", sluice, "../../cmd/sluice").CombinedOutput()
		require.NoError(t, err, string(out))
	}
	secret := "SLUICE_SECRET=" + hexSecret
	alone := "rank 0 of 1, 0 of 1 here, secret of 32"
	batch := func(line string) string {
		// sbatch --wait looks every ten seconds.
		return "printf '#!/bin/sh\\n%s\\necho $? >/run/status\\n' '" + line + "' >/run/script && sbatch -N 3 -n 6 -o /run/out /run/script &&" +
			"until test -s /run/status; do sleep 0.05; done; cat /run/out; exit $(cat /run/status)"
	}
	always := []string{"PMI on three nodes", "no PMI on three nodes", "PMIx of Slurm", "shell of sbatch", "sluice run inside srun"}
	if testing.Short() {
		always = always[:1]
	}
	for _, c := range []struct {
		name    string
		env     []string
		command string
		want    []string
	}{
		{"PMI on three nodes", nil, "srun -N 3 -n 6 --mpi=pmi2 " + me, nodesJob(32)},
		{"PMI on one node", nil, "srun -N 1 -n 2 --mpi=pmi2 " + me, wholeJob(2, 32)},
		{"PMI alone", nil, "srun -N 1 -n 1 --mpi=pmi2 " + me, []string{alone}},
		{"PMI at a given address", []string{"SLUICE_SERVER=n1:20001"}, "srun -N 3 -n 6 --mpi=pmi2 " + me, nodesJob(32)},
		{"no PMI on three nodes", []string{secret}, "srun -N 3 -n 6 --mpi=none " + me, nodesJob(16)},
		{"no PMI on one node", []string{secret}, "srun -N 1 -n 2 --mpi=none " + me, wholeJob(2, 16)},
		{"no PMI alone", nil, "srun -N 1 -n 1 --mpi=none " + me, []string{alone}},
		{"no PMI at a given address", []string{secret, "SLUICE_SERVER=n1:20001"}, "srun -N 3 -n 6 --mpi=none " + me, nodesJob(16)},
		{"no PMI, insecure", []string{"SLUICE_INSECURE=1"}, "srun -N 3 -n 6 --mpi=none " + me, nodesJob(0)},
		{"one step after the other and beside it", []string{secret}, "srun -N 3 -n 6 " + me + " & srun -N 3 -n 6 " + me + "; wait $!; srun -N 3 -n 6 " + me,
			slices.Concat(nodesJob(16), nodesJob(16), nodesJob(16))},
		// On one node: its plugin takes nodes of the same host for the same.
		{"PMIx of Slurm", []string{secret}, "srun -N 1 -n 2 --mpi=pmix " + me, wholeJob(2, 16)},
		{"shell of sbatch", nil, batch(me), []string{alone}},
		{"srun inside sbatch", nil, batch("srun --mpi=pmi2 " + me), nodesJob(32)},
		{"shell of salloc", nil, "salloc -Q -N 3 -n 6 " + me, []string{alone}},
		{"sluice run inside srun", nil, "srun -N 3 -n 3 --mpi=pmi2 " + sluice + " run -n 2 " + me, slices.Concat(wholeJob(2, 32), wholeJob(2, 32), wholeJob(2, 32))},
		{"sluice run inside srun without PMI", nil, "srun -N 3 -n 3 --mpi=none " + sluice + " run -n 2 " + me, slices.Concat(wholeJob(2, 32), wholeJob(2, 32), wholeJob(2, 32))},
		{"sluice run inside sbatch", nil, batch(sluice + " run -n 2 " + me), wholeJob(2, 32)},
		{"srun inside sluice run", nil, sluice + " run srun -N 3 -n 6 --mpi=pmi2 " + me, nodesJob(32)},
		{"srun without PMI inside sluice run", nil, sluice + " run srun -N 3 -n 6 --mpi=none " + me, nodesJob(32)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // clusters are apart, and wait most of the time
			if !slices.Contains(always, c.name) {
				need.Long(t)
			}
			o := inSlurm(t, "exchange", c.env, c.command)
			require.Zero(t, o.status, o.text)
			slices.Sort(c.want)
			require.Equal(t, c.want, o.lines(), o.text)
		})
	}
	t.Run("no secret", func(t *testing.T) {
		t.Parallel()
		need.Long(t)
		o := inSlurm(t, "exchange", nil, "srun -N 1 -n 2 --mpi=none "+me)
		require.Equal(t, 3, o.status, o.text)
		require.Equal(t, 2, strings.Count(o.text, "error: boot: SLUICE_SECRET: not set, nor SLUICE_SECRET_FILE; SLUICE_INSECURE=1 runs the job without one"), o.text)
	})
	for _, mpi := range []string{"pmi2", "none"} {
		t.Run("abort, --mpi="+mpi, func(t *testing.T) {
			t.Parallel()
			need.Long(t) // TestAbortSlurm of package channel runs always
			o := inSlurm(t, "abort", []string{secret}, "srun -N 3 -n 6 --mpi="+mpi+" "+me)
			require.Equal(t, 7, o.status, o.text)
			var want []string
			for _, rank := range []int{0, 2, 3, 4, 5} {
				want = append(want, fmt.Sprintf("rank %d: the job was aborted by rank 1 with code 7: enough", rank))
			}
			require.Equal(t, want, o.lines(), o.text)
		})
	}
	// A rank that does not listen is killed, and then that is what srun returns.
	for _, c := range []struct {
		flags  string
		status int
	}{
		{"--mpi=pmi2", 128 + 9},
		{"--mpi=none --kill-on-bad-exit=1", 128 + 15},
	} {
		t.Run("abort, and a rank that does not listen, "+c.flags, func(t *testing.T) {
			t.Parallel()
			if testing.Short() || c.status != 128+9 {
				need.Long(t)
			}
			o := inSlurm(t, "deaf", []string{secret}, "srun -N 3 -n 6 "+c.flags+" "+me)
			require.Equal(t, c.status, o.status, o.text)
			require.NotContains(t, o.text, "not killed")
		})
	}
}
