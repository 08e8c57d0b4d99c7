package boot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/pmix"
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

// slurmCase is a command in a cluster, and how it ends.
type slurmCase struct {
	name    string
	always  bool // not in long tests alone
	do      string
	env     []string
	command string
	want    []string // lines; nil: any
	status  int
	says    []string
}

// inSlurm runs commands one after the other in a cluster of its own, of three nodes on this
// host, and passes the environment on.
func inSlurm(t *testing.T, cases []slurmCase) map[string]outcome {
	t.Helper()
	const mark = "== ended:"
	var script strings.Builder
	for _, c := range cases {
		fmt.Fprintf(&script, "(export %s=%s %s\n%s\n)\necho '%s' $?\n", ranks.Env, c.do, strings.Join(c.env, " "), c.command, mark)
	}
	o := startWithin(t, time.Duration(1+len(cases))*limit, "exchange", nil, "testdata/slurm.sh", "sh", "-c", script.String())
	require.Zero(t, o.status, o.text)
	ended := map[string]outcome{}
	rest := o.text
	for _, c := range cases {
		text, after, found := strings.Cut(rest, mark)
		require.True(t, found, "%s: %s", c.name, o.text)
		word, after, _ := strings.Cut(after, "\n")
		status, err := strconv.Atoi(strings.TrimSpace(word))
		require.NoError(t, err, o.text)
		ended[c.name], rest = outcome{status, text}, after
	}
	return ended
}

// A cluster takes seconds to start: one serves all cases. Those that show one way to start a
// job run always, their combinations in long tests.
func TestSlurm(t *testing.T) {
	t.Parallel() // the cluster waits most of the time
	need.Slurm(t)
	need.Full(t)
	need.Probe(t, "libpmix.so.2", pmix.Open(""))
	me := ranks.Program()
	run := sluiceRun(me)
	secret := "SLUICE_SECRET=" + hexSecret
	alone := "rank 0 of 1, 0 of 1 here, secret of 32"
	batch := func(line string) string {
		// sbatch --wait looks every ten seconds.
		return "rm -f /run/status; printf '#!/bin/sh\\n%s\\necho $? >/run/status\\n' '" + line + "' >/run/script && sbatch -N 3 -n 6 -o /run/out /run/script &&" +
			"until test -s /run/status; do sleep 0.05; done; cat /run/out; exit $(cat /run/status)"
	}
	const always = true
	exchange := func(name string, kept bool, env []string, command string, want []string) slurmCase {
		slices.Sort(want)
		return slurmCase{name: name, always: kept, do: "exchange", env: env, command: command, want: want}
	}
	var aborted []string
	for _, rank := range []int{0, 2, 3, 4, 5} {
		aborted = append(aborted, fmt.Sprintf("rank %d: the job was aborted by rank 1 with code 7: enough", rank))
	}
	all := []slurmCase{
		exchange("PMI on three nodes", always, nil, "srun -N 3 -n 6 --mpi=pmi2 "+me, nodesJob(32)),
		exchange("PMI on one node", false, nil, "srun -N 1 -n 2 --mpi=pmi2 "+me, wholeJob(2, 32)),
		exchange("PMI alone", false, nil, "srun -N 1 -n 1 --mpi=pmi2 "+me, []string{alone}),
		exchange("PMI at a given address", false, []string{"SLUICE_SERVER=n1:20001"}, "srun -N 3 -n 6 --mpi=pmi2 "+me, nodesJob(32)),
		exchange("no PMI on three nodes", always, []string{secret}, "srun -N 3 -n 6 --mpi=none "+me, nodesJob(16)),
		exchange("no PMI on one node", false, []string{secret}, "srun -N 1 -n 2 --mpi=none "+me, wholeJob(2, 16)),
		exchange("no PMI alone", false, nil, "srun -N 1 -n 1 --mpi=none "+me, []string{alone}),
		exchange("no PMI at a given address", false, []string{secret, "SLUICE_SERVER=n1:20001"}, "srun -N 3 -n 6 --mpi=none "+me, nodesJob(16)),
		exchange("no PMI, insecure", false, []string{"SLUICE_INSECURE=1"}, "srun -N 3 -n 6 --mpi=none "+me, nodesJob(0)),
		exchange("one step after the other and beside it", false, []string{secret}, "srun -N 3 -n 6 "+me+" & srun -N 3 -n 6 "+me+"; wait $!; srun -N 3 -n 6 "+me,
			slices.Concat(nodesJob(16), nodesJob(16), nodesJob(16))),
		exchange("PMIx on three nodes", always, nil, "srun -N 3 -n 6 --mpi=pmix "+me, nodesJob(32)),
		exchange("PMIx on one node", false, nil, "srun -N 1 -n 2 --mpi=pmix "+me, wholeJob(2, 32)),
		exchange("PMIx alone", false, nil, "srun -N 1 -n 1 --mpi=pmix "+me, []string{alone}),
		exchange("PMIx at a given address", false, []string{"SLUICE_SERVER=n1:20001"}, "srun -N 3 -n 6 --mpi=pmix "+me, nodesJob(32)),
		exchange("Slurm's PMIx without the library", false, []string{secret, "SLUICE_PMIX=none"}, "srun -N 3 -n 6 --mpi=pmix "+me, nodesJob(16)),
		exchange("shell of sbatch", always, nil, batch(me), []string{alone}),
		exchange("srun inside sbatch", false, nil, batch("srun --mpi=pmi2 "+me), nodesJob(32)),
		exchange("shell of salloc", false, nil, "salloc -Q -N 3 -n 6 "+me, []string{alone}),
		exchange("sluice run inside srun", always, nil, "srun -N 3 -n 3 --mpi=pmi2 "+run+"2 "+me, slices.Concat(wholeJob(2, 32), wholeJob(2, 32), wholeJob(2, 32))),
		exchange("sluice run inside srun without PMI", false, nil, "srun -N 3 -n 3 --mpi=none "+run+"2 "+me, slices.Concat(wholeJob(2, 32), wholeJob(2, 32), wholeJob(2, 32))),
		exchange("sluice run inside sbatch", false, nil, batch(run+"2 "+me), wholeJob(2, 32)),
		exchange("srun inside sluice run", false, nil, run+"1 srun -N 3 -n 6 --mpi=pmi2 "+me, nodesJob(32)),
		exchange("srun without PMI inside sluice run", false, nil, run+"1 srun -N 3 -n 6 --mpi=none "+me, nodesJob(32)),
		{name: "no secret", do: "exchange", command: "srun -N 1 -n 2 --mpi=none " + me, status: 3,
			says: slices.Repeat([]string{"error: boot: SLUICE_SECRET: not set: set SLUICE_SECRET or SLUICE_SECRET_FILE on all ranks, or SLUICE_INSECURE=1 to run without a secret"}, 2)},
		// TestAbortSlurm of package channel runs always.
		{name: "abort, --mpi=pmi2", do: "abort", env: []string{secret}, command: "srun -N 3 -n 6 --mpi=pmi2 " + me, want: aborted, status: 7},
		{name: "abort, --mpi=pmix", do: "abort", command: "srun -N 3 -n 6 --mpi=pmix " + me, want: aborted, status: 7},
		{name: "abort, --mpi=none", do: "abort", env: []string{secret}, command: "srun -N 3 -n 6 --mpi=none " + me, want: aborted, status: 7},
		// A rank that does not listen is killed, and then that is what srun returns.
		{name: "abort, and a rank that does not listen, --mpi=pmi2", always: always, do: "deaf", env: []string{secret},
			command: "srun -N 3 -n 6 --mpi=pmi2 " + me, status: 128 + 9},
		{name: "abort, and a rank that does not listen, --mpi=none --kill-on-bad-exit=1", do: "deaf", env: []string{secret},
			command: "srun -N 3 -n 6 --mpi=none --kill-on-bad-exit=1 " + me, status: 128 + 15},
	}
	var cases []slurmCase
	for _, c := range all {
		if c.always || need.WantLong() {
			cases = append(cases, c)
		}
	}
	ended := inSlurm(t, cases)
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			if !c.always {
				need.Long(t)
			}
			o := ended[c.name]
			require.Equal(t, c.status, o.status, o.text)
			require.NotContains(t, o.text, "not killed")
			if c.want != nil {
				require.Equal(t, c.want, o.lines(), o.text)
			}
			for _, says := range c.says {
				require.Equal(t, len(c.says), strings.Count(o.text, says), o.text)
			}
		})
	}
}
