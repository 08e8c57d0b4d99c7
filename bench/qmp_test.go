package main

import (
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/qmp"
)

func TestQMP(t *testing.T) {
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
		{[]string{"sum", "--doubles", "1,2"}, []string{"tcp qmp, sum_double of 2 nodes, in place, ns; ", "tcp qmp, sum_double_array of 2 nodes"}},
		{[]string{"faces", "--axis", "t"}, []string{"tcp qmp, faces in alloc memory, MB/s (10^6 bytes) that each of 2 nodes sends", "axis"}},
	} {
		out := string(output(t, append(append([]string{"qmp"}, c.args...), append([]string{"--provider", "tcp"}, tiny...)...)...))
		for _, part := range c.parts {
			require.Contains(t, out, part)
		}
	}
	r, out := inJob(t, 1, os.Args[0], "qmp", "faces")
	require.Equal(t, exitFailed, r.ExitStatus(), out)
	require.Contains(t, out, "this measures between at least 2 ranks, the job has 1")
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
	m, err := qmp.New(nodeOfOne(t), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Finalize()) })
	for call, bytes := range map[string]int{qmpSumDouble: 8, qmpSumDoubleArray: 40} {
		s := &qmpSums{spec: spec{bytes: bytes, op: memoryOperation(call)}, comm: m.DefaultComm(), memory: make([]byte, bytes+guard), seeds: []uint64{1}}
		s.x = doubles(s.memory[:bytes])
		s.prepare()
		require.NoError(t, s.run(3, nil))
		require.NoError(t, s.check())
		for _, at := range []int{0, bytes - 1, bytes, bytes + guard - 1} {
			s.memory[at] ^= 1
			var bad *CorruptError
			require.ErrorAs(t, s.check(), &bad)
			require.Equal(t, at, bad.Offset)
			s.memory[at] ^= 1
		}
	}
}

// The bars are those of channels and collectives, and ten per cent.
func TestQMPBars(t *testing.T) {
	t.Parallel()
	of := func(layer string) []bar {
		return slices.Collect(func(yield func(bar) bool) {
			for _, b := range bars {
				plain := b.op == calledAlloc || b.op == memoryAlloc || b.op == ""
				if b.layer == layer && b.provider == "shm" && (b.pattern == patternHalo || b.pattern == "allreduce") && plain && !yield(b) {
					return
				}
			}
		})
	}
	theirs := of(layerChannel)
	require.NotEmpty(t, theirs)
	ours := of(layerQMP)
	require.Len(t, ours, len(theirs)+1, "and the halo of the Wilson operator")
	for _, b := range theirs {
		i := slices.IndexFunc(ours, func(q bar) bool {
			return q.pattern == b.pattern && slices.Equal(q.axes, b.axes) && slices.Equal(q.ranks, b.ranks) && q.from == b.from && q.to == b.to
		})
		require.GreaterOrEqual(t, i, 0, "%+v", b)
		if b.pattern == patternHalo {
			require.InDelta(t, 0.9*b.limit, ours[i].limit, 1e-9)
		} else {
			require.InDelta(t, 1.1*b.limit, ours[i].limit, 1e-9)
		}
	}
}
