package main

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

func TestCollectives(t *testing.T) {
	need.Full(t)
	every := []string{"barrier called 0", "barrier declared 0"}
	for _, kind := range append(collectiveNames()[1:], unevenNames...) {
		for _, call := range []string{callCalled, callDeclared} {
			every = append(every, kind+" "+call+" alloc 8", kind+" "+call+" alloc 40000")
		}
	}
	every = append(every, "exact narrow 128", "exact wide 1112", "allreduce called alloc 64", "allreduce called alloc 512")
	for _, c := range []struct {
		name string
		args []string
		want []string // pattern, how and bytes
		mode string
	}{
		{"all, two ranks", []string{"collectives", "--sizes", "8,40000"}, every, modeBatch},
		{"all, three ranks", []string{"collectives", "-n", "3", "--sizes", "8,40000"}, every, modeBatch},
		{"all, one rank", []string{"collectives", "-n", "1", "--sizes", "8,40000"}, every, modeBatch},
		{"heap", []string{"collectives", "--kinds", "allreduce,gather", "--memory", "heap", "--call", "called", "--doubles", "1,16k"},
			[]string{"allreduce called heap 8", "allreduce called heap 131072", "gather called heap 8", "gather called heap 131072"}, modeBatch},
		{"each, no elements", []string{"bcast", "--each", "--sizes", "0,8", "--call", "declared"},
			[]string{"bcast declared alloc 0", "bcast declared alloc 8"}, modeEach},
		{"rounds", []string{"reduce", "--rounds", "2", "--sizes", "8,64", "--call", "called", "--batch", "5"},
			[]string{"reduce called alloc 8", "reduce called alloc 64"}, modeBatch},
		{"barrier", []string{"barrier", "-n", "4"}, []string{"barrier called 0", "barrier declared 0"}, modeBatch},
		{"exact", []string{"exact", "-n", "3"}, []string{"exact narrow 128", "exact wide 1112", "allreduce called alloc 64", "allreduce called alloc 512"}, modeBatch},
	} {
		for _, provider := range providers(t) {
			t.Run(provider+" "+c.name, func(t *testing.T) {
				args := append(append(slices.Clone(c.args), "--json", "--provider", provider), tiny...)
				r := decode(t, output(t, args...))
				var got []string
				for _, v := range r.Results {
					require.Equal(t, layerChannel, v.Layer)
					require.Equal(t, provider, v.Provider)
					require.Equal(t, peerSluice, v.Peer)
					require.Equal(t, c.mode, v.Mode)
					require.Equal(t, unitLatency, v.Unit)
					require.Equal(t, v.Pattern != "barrier", v.Verified)
					require.Len(t, r.Environment.Ranks, int(v.Ranks))
					require.Positive(t, v.P50)
					require.Empty(t, v.Suite)
					got = append(got, v.Pattern+" "+v.Op+" "+strconv.FormatInt(v.Bytes, 10))
				}
				require.Equal(t, c.want, got)
			})
		}
	}
}

func TestCollectiveTable(t *testing.T) {
	need.Full(t)
	for _, c := range []struct {
		args  string
		parts []string
	}{
		{"allreduce --doubles 1,1k", []string{"tcp channel allreduce, called alloc, 2 ranks: sum of doubles", "declared alloc", "8k", "means of batches"}},
		{"alltoall --sizes 8 --call called --each", []string{"tcp channel alltoall, called alloc, 2 ranks: bytes of each rank's block", "every iteration timed"}},
		{"alltoallv --sizes 8 --call called", []string{"tcp channel alltoallv, called alloc, 2 ranks: mean bytes of each rank's block"}},
		{"barrier", []string{"tcp channel barrier, called, 2 ranks: all ranks"}},
		{"exact -n 3", []string{"tcp channel exact, narrow, 3 ranks: of one accumulator", "tcp channel allreduce, called alloc, 3 ranks", "1112", "512"}},
	} {
		out := string(output(t, append(append(strings.Fields(c.args), "--provider", "tcp"), tiny...)...))
		for _, part := range c.parts {
			require.Contains(t, out, part)
		}
	}
}

// Ranks of a job that is there already are as many as it has.
func TestCollectiveInJob(t *testing.T) {
	r, out := inJob(t, 3, append([]string{os.Args[0], "bcast", "--sizes", "8", "--call", "called", "--json"}, tiny...)...)
	require.Zero(t, r.ExitStatus(), out)
	require.EqualValues(t, 3, decode(t, []byte(out)).Results[0].Ranks)
	r, out = inJob(t, 2, os.Args[0], "allgather", "--sizes", "1G")
	require.Equal(t, exitUsage, r.ExitStatus())
	require.Contains(t, out, "allgather of 1G: with 2 ranks more than 1G")
}

// Settings of which the defaults are far from the best choice, and some that are as
// good as can be.
func TestFit(t *testing.T) {
	t.Parallel()
	const ranks = 8
	times := func(time func(measured) float64) timings {
		all := timings{}
		for kind := coll.Barrier; kind <= coll.Alltoall; kind++ {
			for _, a := range coll.Algorithms(kind) {
				for _, bytes := range []int{8, 1 << 10, 64 << 10, 4 << 20} {
					m := measured{kind, bytes, a, coll.DefaultSettings().Segment}
					all[m] = time(m)
					if a == coll.Pipeline {
						m.segment = tunedSegments[0]
						all[m] = time(m)
					}
				}
			}
		}
		return all
	}
	defaults := coll.DefaultSettings()
	equal := times(func(measured) float64 { return 1000 })
	require.Equal(t, defaults, equal.fit(ranks), "nothing to gain")
	require.Empty(t, equal.fit(ranks).Environ())

	for _, c := range []struct {
		name string
		time func(measured) float64
		want func(s *coll.Settings) bool
	}{
		{"linear", func(m measured) float64 {
			if m.algorithm == coll.Linear {
				return 1
			}
			return 10
		}, func(s *coll.Settings) bool { return s.MaxLinear >= ranks }},
		{"bruck for all", func(m measured) float64 {
			if m.kind == coll.Alltoall && m.algorithm != coll.Bruck {
				return 10
			}
			return 1
		}, func(s *coll.Settings) bool { return s.BruckBlock > 4<<20 }},
		{"small segments", func(m measured) float64 {
			if m.algorithm == coll.Pipeline && m.segment == tunedSegments[0] {
				return 1
			}
			return 2
		}, func(s *coll.Settings) bool { return s.Segment == tunedSegments[0] }},
	} {
		all := times(c.time)
		s := all.fit(ranks)
		require.True(t, c.want(&s), "%s: %+v", c.name, s)
		require.NoError(t, s.Validate())
		list := all.collectives()
		require.Less(t, all.loss(&s, list, ranks), all.loss(&defaults, list, ranks), c.name)
		for _, v := range list {
			m, ok := all.chosen(&s, v, ranks)
			require.True(t, ok)
			if c.name == "bruck for all" {
				require.Equal(t, all[all.fastest(v)], all[m])
			}
		}
	}
}

// The settings are of jobs that have been there, of all algorithms and some segments.
func TestTune(t *testing.T) {
	need.Long(t)
	need.NoRace(t, "it tells nothing of processes, and is slow")
	args := []string{"tune", "--what", "collectives", "--kinds", "bcast,barrier", "--sizes", "8,4M", "--time", "1ms", "--rounds", "1"}
	check := func(out []byte, ranks int) {
		r := decode(t, out)
		require.Len(t, r.Environment.Ranks, ranks)
		var got []string
		for _, v := range r.Results {
			require.Equal(t, "tcp", v.Provider)
			require.EqualValues(t, ranks, v.Ranks)
			got = append(got, strings.TrimSpace(v.Pattern+" "+formatSize(v.Bytes)+" "+v.Algorithm+" "+strings.TrimLeft(formatSize(v.Segment), "0")))
		}
		require.Equal(t, []string{
			"bcast 8 linear", "bcast 4M linear", "barrier 0 linear",
			"bcast 8 binomial", "bcast 4M binomial", "barrier 0 binomial",
			"bcast 8 scatter-allgather", "bcast 4M scatter-allgather", "barrier 0 dissemination",
			"bcast 8 pipeline", "bcast 4M pipeline",
			"bcast 4M pipeline 8k", "bcast 4M pipeline 128k",
		}, got)
	}
	check(output(t, append(args, "--json")...), 4)
	r, out := inJob(t, 3, append(append([]string{os.Args[0]}, args...), "--json")...)
	require.Zero(t, r.ExitStatus(), out)
	check([]byte(out), 3)
	table := string(output(t, append(args, "-n", "3")...))
	for _, part := range []string{"tcp collectives of 3 ranks", "fastest", "pipeline (", "export"} {
		require.Contains(t, table, part)
	}
	for line := range strings.Lines(string(output(t, append(args, "-n", "2", "--exports")...))) {
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		require.True(t, ok, line)
		require.Contains(t, coll.Variables(), name)
		_, err := strconv.Atoi(strings.TrimSpace(value))
		require.NoError(t, err)
	}
}

// What a collective leaves is found wrong where one byte of it is, or one behind it.
func TestCollectiveCheck(t *testing.T) {
	t.Parallel()
	for _, name := range append(collectiveNames()[1:], unevenNames...) {
		const bytes = 40
		kind, _ := collectiveKind(name)
		m := measurementOf(t, layerChannel, name, "sizes", "40")
		m.ranks = 1
		src, dst := m.collectiveBytes(0)
		s := newCollective(groupOfOne(t), m.spec, make([]byte, src), make([]byte, dst+guard))
		s.prepare()
		// One rank has what it broadcasts already, and gets nothing of an Exscan.
		if kind != coll.Broadcast && kind != coll.Exscan {
			s.done = 1
			require.Error(t, try(s.check), "%s: nothing has been done", name)
			s.done = 0
		}
		s.run(3, nil)
		require.NoError(t, try(s.check), "%s", name)
		for _, at := range []int{0, bytes - 1, bytes, bytes + guard - 1} {
			s.out[at] ^= 1
			var bad *CorruptError
			require.ErrorAs(t, try(s.check), &bad, "%s", name)
			require.Equal(t, at, bad.Offset)
			s.out[at] ^= 1
		}
	}
}

// Blocks that differ are of the size of the result on average, and two ranks agree how long the one
// between them is.
func TestUneven(t *testing.T) {
	t.Parallel()
	for ranks := 1; ranks <= 9; ranks++ {
		for _, count := range []int{0, 1, 5, ranks * 1000} {
			for _, name := range unevenNames {
				m := spec{pattern: findPattern(layerChannel, name), bytes: count * doubleBytes, ranks: ranks}
				length := func(rank, i int) int { return m.blockAt(rank, i+1) - m.blockAt(rank, i) }
				own := 0
				for rank := range ranks {
					require.Zero(t, m.blockAt(rank, 0))
					require.Equal(t, ranks*count, m.blockAt(rank, ranks))
					src, dst := m.collectiveBytes(rank)
					own += min(src, dst)
					for i := range ranks {
						which := i
						if name == "alltoallv" {
							require.Equal(t, length(i, rank), length(rank, i))
							which = (rank + i) % ranks
						}
						require.Equal(t, count+(2*which+1-ranks)*(count/ranks), length(rank, i))
						require.True(t, length(rank, i) > 0 || count == 0)
					}
				}
				if name == "alltoallv" {
					own /= ranks
				}
				require.Equal(t, ranks*m.bytes, own, name)
			}
		}
	}
}

// groupOfOne is the group of a job of one rank.
func groupOfOne(t *testing.T) *channel.Group {
	g, err := nodeOfOne(t).World(t.Context())
	require.NoError(t, err)
	return g
}

// nodeOfOne is the node of a job of one rank.
func nodeOfOne(t *testing.T) *channel.Node {
	n, err := channel.Join(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

// The terms cancel but for 2^-600 of them, and rounding on the way gives another sum.
func TestExactTerms(t *testing.T) {
	t.Parallel()
	const ranks = 8
	var sum exact.Accumulator
	plain, largest := 0.0, 0.0
	for rank := range ranks {
		terms := exactTermsOf(rank, ranks, 600)
		sum.AddSlice(terms)
		for _, x := range terms {
			plain += x
			largest = max(largest, math.Abs(x))
		}
	}
	require.NotZero(t, sum.Round())
	require.Less(t, math.Abs(sum.Round()), 0x1p-500)
	require.Greater(t, largest, 0x1p500)
	require.NotEqual(t, sum.Round(), plain)
}
