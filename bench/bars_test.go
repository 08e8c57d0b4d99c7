package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fig is a figure with the medians of its rounds.
func fig(provider, pattern, peer, op string, bytes int64, medians ...float64) figure {
	var rounds []Result
	for _, m := range medians {
		layer := layerVerbs
		if peer != peerSluice {
			layer = "mpi"
		}
		rounds = append(rounds, Result{Layer: layer, Provider: provider, Pattern: pattern, Peer: peer, Op: op, Bytes: bytes, Unit: unitOf(pattern), P50: m})
	}
	return newFigure(rounds)
}

// channelFig is a figure of channels, or of the peers that do the same; the op of
// halo begins with the axis.
func channelFig(provider, pattern, peer, op string, bytes int64, medians ...float64) figure {
	f := fig(provider, pattern, peer, op, bytes, medians...)
	if peer == peerSluice {
		f.Layer = layerChannel
	}
	switch pattern {
	case patternHalo:
		f.Axis, f.Op, _ = strings.Cut(op, " ")
	case patternLat, patternBW:
		f.Suite = suiteChannel
	}
	return f
}

// collectiveFig is a figure of a collective of some ranks.
func collectiveFig(pattern, peer, op string, ranks, bytes int64, medians ...float64) figure {
	f := channelFig("shm", pattern, peer, op, bytes, medians...)
	f.Ranks = ranks
	return f
}

// impiFig is a figure of impi, or of the peers that do the same.
func impiFig(carrier, pattern, peer, op string, bytes int64, medians ...float64) figure {
	f := fig(carrier, pattern, peer, op, bytes, medians...)
	f.Suite = suiteIMPI
	if peer == peerSluice {
		f.Layer = layerIMPI
	}
	return f
}

func TestCompareFigures(t *testing.T) {
	t.Parallel()
	type verdict struct {
		op, peer string
		ratio    float64
		bar      float64 // 0: none
		met      bool
	}
	for _, c := range []struct {
		name string
		rs   []figure
		want []verdict
	}{
		{"shm latency: the faster MPI, our better operation", []figure{
			fig("shm", patternLat, peerSluice, "send", 8, 90),
			fig("shm", patternLat, peerSluice, "write-imm", 8, 60),
			fig("shm", patternLat, "openmpi", "persistent", 8, 160),
			fig("shm", patternLat, "mpich", "persistent", 8, 120),
			fig("shm", patternLat, peerLine, lineEachWay, 8, 50),
		}, []verdict{{"send", "mpich", 0.75, 0, false}, {"write-imm", "mpich", 0.5, 1, true}}},
		{"a ratio of exactly the bar meets it", []figure{
			fig("shm", patternLat, peerSluice, "send", 8, 120),
			fig("shm", patternLat, "mpich", "persistent", 8, 120),
		}, []verdict{{"send", "mpich", 1, 1, true}}},
		{"missed", []figure{
			fig("shm", patternLat, peerSluice, "send", 8, 150),
			fig("shm", patternLat, "mpich", "persistent", 8, 120),
		}, []verdict{{"send", "mpich", 1.25, 1, false}}},
		{"a machine that was slower in one round was so for both", []figure{
			fig("shm", patternLat, peerSluice, "send", 8, 60, 300, 60),
			fig("shm", patternLat, "mpich", "persistent", 8, 120, 400, 400),
		}, []verdict{{"send", "mpich", 0.5, 1, true}}},
		{"a peer that gave up is compared in its rounds", []figure{
			fig("shm", patternLat, peerSluice, "send", 8, 60, 300),
			fig("shm", patternLat, "mpich", "persistent", 8, 120),
		}, []verdict{{"send", "mpich", 0.5, 1, true}}},
		{"other sizes are for information", []figure{
			fig("shm", patternLat, peerSluice, "send", 1024, 150),
			fig("shm", patternLat, "mpich", "persistent", 1024, 120),
		}, []verdict{{"send", "mpich", 1.25, 0, false}}},
		{"shm bandwidth: twice the faster, each operation", []figure{
			fig("shm", patternBW, peerSluice, "write", 65536, 40000),
			fig("shm", patternBW, peerSluice, "send", 65536, 20000),
			fig("shm", patternBW, "openmpi", "persistent", 65536, 16000),
			fig("shm", patternBW, "mpich", "persistent", 65536, 20000),
		}, []verdict{{"write", "mpich", 2, 2, true}, {"send", "mpich", 1, 2, false}}},
		{"tcp latency: Open MPI, though MPICH is faster", []figure{
			fig("tcp", patternLat, peerSluice, "send", 8, 4500),
			fig("tcp", patternLat, "openmpi", "persistent", 8, 5000),
			fig("tcp", patternLat, "mpich", "persistent", 8, 4000),
		}, []verdict{{"send", "openmpi", 0.9, 1, true}}},
		{"tcp bandwidth below 1 MiB is for information, against the faster", []figure{
			fig("tcp", patternBW, peerSluice, "write", 65536, 3000),
			fig("tcp", patternBW, "openmpi", "persistent", 65536, 2000),
			fig("tcp", patternBW, "mpich", "persistent", 65536, 6000),
		}, []verdict{{"write", "mpich", 0.5, 0, false}}},
		{"channels: the faster MPI and the cache line; memory of the heap has its own bar; verbs are another discipline", []figure{
			channelFig("shm", patternLat, peerSluice, "alloc", 8, 75),
			channelFig("shm", patternLat, peerSluice, "heap", 8, 150),
			channelFig("shm", patternLat, "openmpi", "persistent", 8, 160),
			channelFig("shm", patternLat, "mpich", "persistent", 8, 125),
			fig("shm", patternLat, peerSluice, "send", 8, 60),
			fig("shm", patternLat, "mpich", "persistent", 8, 120),
			fig("shm", patternLat, peerLine, lineEachWay, 8, 50),
			fig("shm", patternLat, peerLine, "one line", 8, 30),
		}, []verdict{{"alloc", "mpich", 0.6, 0.75, true}, {"alloc", peerLine, 1.5, 1.7, true}, {"heap", "mpich", 1.2, 1, false}, {"send", "mpich", 0.5, 1, true}}},
		{"channels without an MPI: the cache line", []figure{
			channelFig("shm", patternLat, peerSluice, "alloc", 8, 100),
			fig("shm", patternLat, peerLine, lineEachWay, 8, 50),
		}, []verdict{{"alloc", peerLine, 2, 1.7, false}}},
		{"bandwidth of channels from 256 KiB", []figure{
			channelFig("shm", patternBW, peerSluice, "alloc", 64<<10, 20000),
			channelFig("shm", patternBW, peerSluice, "alloc", 256<<10, 20000),
			channelFig("shm", patternBW, peerSluice, "heap", 256<<10, 9000),
			channelFig("shm", patternBW, "mpich", "persistent", 64<<10, 10000),
			channelFig("shm", patternBW, "mpich", "persistent", 256<<10, 10000),
		}, []verdict{{"alloc", "mpich", 2, 0, false}, {"alloc", "mpich", 2, 2, true}, {"heap", "mpich", 0.9, 1, false}}},
		{"halos by axis", []figure{
			channelFig("shm", patternHalo, peerSluice, "x alloc", 1000, 30000),
			channelFig("shm", patternHalo, peerSluice, "y alloc", 1000, 30000),
			channelFig("shm", patternHalo, peerSluice, "z alloc", 1000, 30000),
			channelFig("shm", patternHalo, "openmpi", "x vector", 1000, 20000),
			channelFig("shm", patternHalo, "openmpi", "y vector", 1000, 15000),
			channelFig("shm", patternHalo, "openmpi", "z vector", 1000, 20000),
		}, []verdict{{"alloc", "openmpi", 1.5, 2, false}, {"alloc", "openmpi", 2, 0, false}, {"alloc", "openmpi", 1.5, 1.5, true}}},
		{"a ring: Open MPI; a message to oneself: a time", []figure{
			channelFig("shm", patternRing, peerSluice, "alloc", 8, 3000),
			channelFig("shm", patternRing, "mpich", "persistent", 8, 2000),
			channelFig("shm", patternRing, "openmpi", "persistent", 8, 4000),
			channelFig(providerSelf, patternLocal, peerSluice, "alloc", 8, 50),
		}, []verdict{{"alloc", "openmpi", 0.75, 1, true}, {"alloc", "40 ns", 1.25, 1, false}}},
		{"collectives by ranks; what is declared, and memory of the heap, are for information", []figure{
			collectiveFig("barrier", peerSluice, callCalled, 2, 0, 80),
			collectiveFig("barrier", peerSluice, callCalled, 8, 0, 8000),
			collectiveFig("barrier", "openmpi", "blocking", 2, 0, 100),
			collectiveFig("barrier", "mpich", "blocking", 2, 0, 200),
			collectiveFig("barrier", "openmpi", "blocking", 8, 0, 10000),
			collectiveFig("allreduce", peerSluice, "called alloc", 2, 8<<20, 60),
			collectiveFig("allreduce", peerSluice, "declared alloc", 2, 8<<20, 40),
			collectiveFig("allreduce", peerSluice, "called heap", 2, 8<<20, 90),
			collectiveFig("allreduce", "mpich", "blocking", 2, 8<<20, 100),
			collectiveFig("allreduce", peerSluice, "called alloc", 2, 128<<10, 60),
			collectiveFig("allreduce", "mpich", "blocking", 2, 128<<10, 100),
		}, []verdict{{"called", "openmpi", 0.8, 0.75, false}, {"called", "openmpi", 0.8, 1, true},
			{"called alloc", "mpich", 0.6, 0.5, false}, {"declared alloc", "mpich", 0.4, 0, false}, {"called heap", "mpich", 0.9, 0, false},
			{"called alloc", "mpich", 0.6, 0.6, true}}},
		{"an exact sum: our own allreduce of 64 doubles of as many ranks; terms: a rate", []figure{
			collectiveFig(patternExact, peerSluice, callCalled, 8, exactBytes, 35),
			collectiveFig("allreduce", peerSluice, "called alloc", 8, exactBeside, 10),
			collectiveFig("allreduce", peerSluice, "called alloc", 2, exactBeside, 1),
			{Result: Result{Layer: layerExact, Provider: providerSelf, Pattern: patternAddSlice, Peer: peerSluice, Op: "alloc", Bytes: 8 << 20, Unit: unitBandwidth, P50: 900}},
		}, []verdict{{"called", "allreduce of 64 doubles", 3.5, 4, true}, {"alloc", "1000 MB/s", 0.9, 1, false}}},
		{"impi: requests of one message each, MPICH's or the better MPI's, and a rate", []figure{
			impiFig("shm", patternLat, peerSluice, "send/recv", 8, 150),
			impiFig("shm", patternLat, "openmpi", "send/recv", 8, 100),
			impiFig("shm", patternLat, "mpich", "send/recv", 8, 120),
			fig("shm", patternLat, "mpich", "persistent", 8, 60),
			impiFig("shm", patternBW, peerSluice, "isend/irecv", 1<<20, 9000),
			impiFig("shm", patternBW, "mpich", "isend/irecv", 1<<20, 10000),
			impiFig("shm", patternRate, peerSluice, "isend/irecv", 8, 5e6),
			impiFig("shm", patternRate, "openmpi", "isend/irecv", 8, 10e6),
			impiFig("shm", patternRate, "mpich", "isend/irecv", 8, 2e6),
			impiFig("tcp", patternBW, peerSluice, "isend/irecv", 1<<20, 4750),
			impiFig("tcp", patternBW, "openmpi", "isend/irecv", 1<<20, 5000),
		}, []verdict{{"send/recv", "mpich", 1.25, 1.25, true}, {"isend/irecv", "mpich", 0.9, 1, false},
			{"isend/irecv", "openmpi", 0.5, 1, false}, {"isend/irecv", "4000000 msg/s", 1.25, 1, true},
			{"isend/irecv", "openmpi", 0.95, 0.9, true}}},
		{"nobody to compare with", []figure{
			fig("tcp", patternLat, peerSluice, "send", 8, 4500),
			fig("tcp", patternLat, "mpich", "persistent", 8, 4000),
			fig("shm", patternLat, peerSluice, "send", 8, 60),
		}, nil},
	} {
		var got []verdict
		for _, k := range compareFigures(c.rs) {
			v := verdict{op: k.Op, peer: k.Peer, ratio: k.Ratio}
			if k.Bar != nil {
				v.bar, v.met = *k.Bar, *k.Met
			}
			got = append(got, v)
		}
		require.Equal(t, c.want, got, c.name)
	}
}

// Each figure of ours is one row, with another for each further bar.
func TestPrintComparison(t *testing.T) {
	t.Parallel()
	figures := []figure{
		channelFig("shm", patternLat, peerSluice, "alloc", 8, 90),
		channelFig("shm", patternLat, peerSluice, "alloc", 64, 95),
		channelFig("shm", patternLat, "mpich", "persistent", 8, 120),
		channelFig("shm", patternHalo, peerSluice, "x alloc", 1000, 30000),
		collectiveFig("barrier", peerSluice, callCalled, 4, 0, 2000),
		fig("shm", patternLat, peerLine, lineEachWay, 8, 50),
	}
	r := Report{Comparisons: compareFigures(figures), Missing: []string{"not installed: openmpi"}}
	for _, f := range figures {
		r.Results = append(r.Results, f.Result)
	}
	var out bytes.Buffer
	printComparison(&out, false, &r)
	var rows []string
	for line := range strings.Lines(out.String()) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			rows = append(rows, line)
		}
	}
	require.Equal(t, []string{
		"bytes op sluice spread openmpi mpich c-line ratio to bar",
		"shm channel lat ns 8 alloc 90.00 0 % 120.0 50.00 0.75× mpich ≤ 0.75× (aim 0.6×) met",
		"1.80× c-line ≤ 1.7× (aim 1.4×) missed",
		"64 alloc 95.00 0 %",
		"shm halo MB/s 1000 x alloc 30000 0 %",
		"shm 4 ranks barrier ns 0 called 2000 0 %",
		"not compared: not installed: openmpi",
	}, rows)
}

func TestMergeRounds(t *testing.T) {
	t.Parallel()
	var rounds []Result
	for _, v := range []float64{10, 30, 20} {
		rounds = append(rounds, Result{Peer: "mpich", Min: v - 5, P50: v, P99: v + 1, P999: v + 2, Max: v + 100, Mean: v + 3, Samples: 7})
	}
	require.Equal(t, Result{Peer: "mpich", Min: 5, P50: 20, P99: 21, P999: 22, Max: 130, Mean: 23, Samples: 21, Rounds: 3, Spread: 1, Medians: []float64{10, 30, 20}}, mergeRounds(rounds))
}
