package boot

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestHostlist(t *testing.T) {
	for s, want := range map[string]string{
		"n1":                       "n1",
		"n[1-3]":                   "n1 n2 n3",
		"n[1-3,7],m5":              "n1 n2 n3 n7 m5",
		"a,b,c":                    "a b c",
		"n[08-11]":                 "n08 n09 n10 n11",
		"n[9-10]":                  "n9 n10",
		"rack[0-1]n[01-02]":        "rack0n01 rack0n02 rack1n01 rack1n02",
		"r[1]s[2]t[3-4]-x,y.local": "r1s2t3-x r1s2t4-x y.local",
		"[1-2]":                    "1 2",
	} {
		got, err := parseHostlist(s)
		require.NoError(t, err, s)
		require.Equal(t, strings.Fields(want), got, s)
	}
	for s, says := range map[string]string{
		"":                                    "the name is empty",
		"a,":                                  "the name is empty",
		",a":                                  "the name is empty",
		"a,,b":                                "the name is empty",
		"n[1":                                 "not closed",
		"n1]":                                 "not the name of a node",
		"n[]":                                 "not a range",
		"n[a]":                                "not a range",
		"n[3-1]":                              "not a range",
		"n[1-]":                               "not a range",
		"n[-1]":                               "not a range",
		"n[1-2-3]":                            "not a range",
		"n[[1]]":                              "not a range",
		"n[99999999999]":                      "not a range",
		"a b":                                 "not the name of a node",
		"a/b":                                 "not the name of a node",
		"n[0-65536]":                          "more than 65536 nodes",
		"n[0-4294967295]":                     "more than 65536 nodes",
		"n[0-255]m[0-256]":                    "more than 65536 nodes",
		"n[1-65536],m":                        "more than 65536 nodes",
		strings.Repeat("n", 256):              "a node's name is longer than 255 bytes",
		"n[" + strings.Repeat("0", 21) + "1]": "not a range",
	} {
		_, err := parseHostlist(s)
		require.ErrorContains(t, err, says, s)
	}
}

func FuzzHostlist(f *testing.F) {
	for _, s := range []string{"n[1-3,7],m5", "rack[0-1]n[01-02]", "n[0-65535]", "a,,b", "[", "n[1-2]]", "r[1]s[2]t[3-4]-x,y.local"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		names, err := parseHostlist(s)
		if err != nil {
			return
		}
		require.NotEmpty(t, names)
		require.LessOrEqual(t, len(names), maxHosts)
		for _, n := range names[:min(len(names), 100)] {
			require.NotEmpty(t, n)
			// A name stands for itself.
			again, err := parseHostlist(n)
			require.NoError(t, err)
			require.Equal(t, []string{n}, again)
		}
	})
}

func TestTasksOfNode(t *testing.T) {
	for i, want := range []int{2, 2, 2, 1, 4} {
		got, err := tasksOfNode("2(x3),1,4", i)
		require.NoError(t, err)
		require.Equal(t, want, got, i)
	}
	for _, bad := range []string{"", "x", "2(x3", "2(x)", "0", "2(x0)", "-1", "2(x3),", "9999999"} {
		_, err := tasksOfNode(bad, 7)
		require.Error(t, err, bad)
	}
	_, err := tasksOfNode("2(x3)", 3)
	require.ErrorContains(t, err, "fewer nodes")
}

func TestSlurmPorts(t *testing.T) {
	a, err := slurmPortsOf("12.0", "")
	require.NoError(t, err)
	require.Len(t, a, slurmPorts)
	for _, p := range a {
		require.GreaterOrEqual(t, p, firstSlurmPort)
		require.LessOrEqual(t, p, lastSlurmPort)
	}
	b, err := slurmPortsOf("12.1", "")
	require.NoError(t, err)
	require.NotEqual(t, a, b)
	got, err := slurmPortsOf("12.0", "12000-12002,13000")
	require.NoError(t, err)
	require.Equal(t, []int{12000, 12001, 12002, 13000}, got)
	got, err = slurmPortsOf("12.0", "1-65535")
	require.NoError(t, err)
	require.Len(t, got, slurmPorts)
	for _, bad := range []string{"x", "0", "2-1", "1-65536", "1,", "-"} {
		_, err := slurmPortsOf("12.0", bad)
		require.Error(t, err, bad)
	}
	// A port that is taken is passed over.
	ln, err := reach.ListenLoopback(t.Context())
	require.NoError(t, err)
	defer ln.Close()
	taken := ln.Addr().(*net.TCPAddr).Port
	_, free, err := net.SplitHostPort(ranks.Free(t))
	require.NoError(t, err)
	port, err := strconv.Atoi(free)
	require.NoError(t, err)
	other, err := listenAtFree(t.Context(), []string{"127.0.0.1"}, []int{taken, port})
	require.NoError(t, err)
	require.Equal(t, port, other.Addr().(*net.TCPAddr).Port)
	require.NoError(t, other.Close())
	_, err = listenAtFree(t.Context(), []string{"127.0.0.1"}, []int{taken})
	require.ErrorContains(t, err, fmt.Sprintf("no port of [%d]", taken))
	require.ErrorContains(t, err, "set SLUICE_SERVER=host:port to use another")
}

// slurmStepOf is what srun --mpi=none tells a rank.
func slurmStepOf(rank int, more ...string) []string {
	return append([]string{
		"SLURM_JOB_ID=12", "SLURM_STEP_ID=3", fmt.Sprint("SLURM_PROCID=", rank), "SLURM_STEP_NUM_TASKS=3",
		fmt.Sprint("SLURM_LOCALID=", rank), "SLURM_NODEID=0", "SLURM_STEP_TASKS_PER_NODE=3", "SLURM_STEP_NODELIST=n1", "SLURMD_NODENAME=n1",
		"SLUICE_SECRET=" + hexSecret,
	}, more...)
}

func TestSlurmStep(t *testing.T) {
	ctx := ranks.Within(t)
	jobs := make([]*Job, 3)
	each(3, func(rank int) { jobs[rank], _ = joinFrom(ctx, variables(slurmStepOf(rank)...)) })
	for rank, j := range jobs {
		require.NotNil(t, j)
		require.Equal(t, []int{rank, 3, rank, 3}, []int{j.Rank(), j.Size(), j.LocalRank(), j.LocalSize()})
		require.Equal(t, "slurm-12.3", j.ID())
	}
	require.NoError(t, barrier(ctx, jobs))
	closeAll(t, jobs)

	for _, step := range []string{"", "batch", "4294967291", "4294967290", "4294967295", "99999999999", "-1"} {
		j, err := joinFrom(ctx, variables(slurmStepOf(0, "SLURM_STEP_ID="+step)...))
		require.NoError(t, err, step)
		require.Equal(t, 1, j.Size(), "step %q", step)
		require.NoError(t, j.Close())
	}
	for _, c := range []struct{ set, says string }{
		{"SLURM_STEP_NUM_TASKS=0", "boot: SLURM_STEP_NUM_TASKS=\"0\": want 1 to 1048576"},
		{"SLURM_PROCID=3", "boot: SLURM_PROCID=\"3\": want 0 to 2"},
		{"SLURM_STEP_NODELIST=n[1", "boot: SLURM_STEP_NODELIST=\"n[1\": \"n[1\": a bracket is not closed"},
		{"SLURM_STEP_NODELIST=", "boot: SLURM_STEP_NODELIST"},
		{"SLURM_STEP_TASKS_PER_NODE=4", "4 ranks on node 0 in a step of 3"},
		{"SLURM_NODEID=1", "fewer nodes"},
		{"SLURM_LOCALID=7", "want 0 to 2"},
		{"SLURM_STEP_RESV_PORTS=x", `"x" is not a range of ports`},
		{"SLUICE_PORTS=y", `"y" is not a range of ports`},
		{"SLURMD_NODENAME=n2", "boot: srun: rank 0 is on node n2 instead of the first node, n1: use --mpi=pmi2, or set SLUICE_SERVER=host:port"},
		{"SLUICE_SECRET=", "boot: SLUICE_SECRET: not set: set SLUICE_SECRET or SLUICE_SECRET_FILE on all ranks, or SLUICE_INSECURE=1 to run without a secret"},
		{"SLUICE_SERVER=x", "missing port"},
	} {
		_, err := joinFrom(ctx, variables(slurmStepOf(0, c.set)...))
		require.ErrorContains(t, err, c.says, c.set)
	}
}
