package main

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/qmp"
)

func TestQMP(t *testing.T) {
	need.Full(t)
	for _, c := range []struct {
		name string
		args []string
		want []string // pattern, operation, axis and bytes
	}{
		{"sums, two nodes", []string{"sum", "--doubles", "1,5000"}, []string{"allreduce sum_double  8", "allreduce sum_double_array  40000"}},
		{"sums, three nodes", []string{"sum", "-n", "3", "--doubles", "1,2", "--memory", "heap"}, []string{"allreduce sum_double  8", "allreduce sum_double_array  16"}},
		{"sums, one node", []string{"sum", "-n", "1", "--doubles", "4"}, []string{"allreduce sum_double_array  32"}},
		{"faces", []string{"faces", "--axis", "x,t,all,half"}, []string{"halo alloc x 1572864", "halo alloc t 1572864", "halo alloc all 6291456", "halo alloc half 786432"}},
		{"faces of three", []string{"faces", "-n", "3", "--axis", "z", "--memory", "heap"}, []string{"halo heap z 1572864"}},
	} {
		for _, provider := range providers(t) {
			t.Run(provider+" "+c.name, func(t *testing.T) {
				r := decode(t, output(t, append(append([]string{"qmp"}, c.args...), append([]string{"--json", "--provider", provider}, tiny...)...)...))
				var got []string
				for _, v := range r.Results {
					require.Equal(t, layerQMP, v.Layer)
					require.Equal(t, suiteQMP, v.Suite)
					require.Equal(t, provider, v.Provider)
					require.Equal(t, unitOf(v.Pattern), v.Unit)
					require.True(t, v.Verified)
					require.Len(t, r.Environment.Ranks, int(v.Ranks))
					require.Positive(t, v.P50)
					got = append(got, v.Pattern+" "+v.Op+" "+v.Axis+" "+strconv.FormatInt(v.Bytes, 10))
				}
				require.Equal(t, c.want, got)
			})
		}
	}
}

func TestQMPTable(t *testing.T) {
	for _, c := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"sum", "--doubles", "1,2"}, []string{"tcp qmp allreduce, sum_double, 2 ranks: in place; ", "tcp qmp allreduce, sum_double_array, 2 ranks"}},
		{[]string{"faces", "--axis", "t"}, []string{"tcp qmp halo, alloc, 2 ranks, received packed: that each node sends", "axis"}},
	} {
		out := string(output(t, append(append([]string{"qmp"}, c.args...), append([]string{"--provider", "tcp"}, tiny...)...)...))
		for _, part := range c.parts {
			require.Contains(t, out, part)
		}
	}
	r, out := inJob(t, 1, os.Args[0], "qmp", "faces")
	require.Equal(t, exitFailed, r.ExitStatus(), out)
	require.Contains(t, out, "this measurement runs between at least 2 ranks, but the job has 1")
}

func TestQMPUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"qmp", "sum", "--doubles", "0"}, {"qmp", "sum", "--doubles", "1G"}, {"qmp", "sum", "--memory", "paper"}, {"qmp", "faces", "--axis", "w"},
		{"qmp", "faces", "-n", "1"}, {"qmp", "sum", "--time", "0"}, {"qmp", "--rounds", "1001"}, {"qmp", "--provider", "ibv"}, {"qmp", "dance"},
	} {
		cmd := newRootCommand()
		cmd.SetArgs(args)
		require.Equal(t, exitUsage, exitStatus(cmd.Execute()), "%q", args)
	}
}

// What a sum leaves is found wrong where one byte of it is, or one behind it.
func TestQMPCheck(t *testing.T) {
	t.Parallel()
	q, err := qmp.New(nodeOfOne(t), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Finalize()) })
	for call, bytes := range map[string]int{qmpSumDouble: 8, qmpSumDoubleArray: 40} {
		m := measurementOf(t, layerQMP, "sum", "doubles", strconv.Itoa(bytes/doubleBytes))
		s := newSums(q.DefaultComm(), m.spec, make([]byte, bytes+guard))
		s.op = call
		s.prepare()
		s.run(3, nil)
		require.NoError(t, try(s.check))
		for _, at := range []int{0, bytes - 1, bytes, bytes + guard - 1} {
			s.memory[at] ^= 1
			var bad *CorruptError
			require.ErrorAs(t, try(s.check), &bad)
			require.Equal(t, at, bad.Offset)
			s.memory[at] ^= 1
		}
	}
}
