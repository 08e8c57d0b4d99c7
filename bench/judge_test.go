package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fig is a figure of a row with the medians of its rounds; of ours the peer is empty.
func fig(r *row, peer, op string, bytes int64, medians ...float64) figure {
	layer := "mpi"
	if peer == "" {
		peer, layer = peerSluice, r.layer
	}
	var rounds []Result
	for _, m := range medians {
		v := Result{Layer: layer, Provider: r.provider, Pattern: r.pattern, Peer: peer, Op: op, Bytes: bytes, Unit: unitOf(r.pattern), P50: m}
		if r.axes != "" {
			v.Axis, v.Op, _ = strings.Cut(op, " ")
		}
		rounds = append(rounds, v)
	}
	return figure{mergeRounds(rounds), r}
}

func TestCompareFigures(t *testing.T) {
	t.Parallel()
	lat := &row{suite: "channel", layer: layerChannel, pattern: patternLat, provider: "shm", sizes: "8,64,4k", bars: []bar{
		{op: memoryAlloc, sizes: "8", against: limitLine, limit: 1.7, aim: 1.4}, {op: memoryAlloc, sizes: "8", limit: 0.75, aim: 0.6}, {op: memoryHeap, sizes: "8,4k", limit: 1}}}
	bw := &row{suite: "verbs", layer: layerVerbs, pattern: patternBW, provider: "shm", sizes: "64k", bars: []bar{{limit: 2}}}
	halo := &row{layer: layerChannel, pattern: patternHalo, provider: "shm", axes: "x,y", bars: []bar{{op: memoryAlloc, sizes: "x", limit: 2}}}
	fan := &row{suite: "fanout", layer: layerFanout, pattern: patternFanout, provider: "shm", sizes: "64", bars: []bar{{limit: 1.5, best: true}, {against: peerZMQ, limit: 2, best: true}}}
	exact := &row{suite: "exact", layer: layerChannel, pattern: patternExact, provider: "shm", ranks: 8, bars: []bar{{op: exactNarrow, against: eightDoubles, limit: 1.5}, {op: exactWide, against: manyDoubles, limit: 4}}}
	add := &row{suite: "exact", layer: layerExact, pattern: patternAddSlice, provider: providerSelf, sizes: "64,8M", bars: []bar{{op: addExact, against: loopRounded, limit: 2}}}
	local := &row{layer: layerChannel, pattern: patternLocal, provider: providerSelf, sizes: "8", bars: []bar{{fixed: 40, limit: 1}}}
	rate := &row{layer: layerVerbs, pattern: patternRate, provider: providerIBV, sizes: "64", bars: []bar{{against: peerPerftest, limit: 0.9}, {calls: 1. / 16, limit: 1}}}
	calls := fig(rate, "", "write", 64, 900)
	perMessage := 0.05
	calls.CrossingsPerMessage = &perMessage
	beside := fig(exact, "", calledAlloc, besideMany, 10)
	beside.Pattern = "allreduce"

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
		{"the best MPI of all versions and the line; memory of the heap has a bar of its own", []figure{
			fig(lat, "", memoryAlloc, 8, 75), fig(lat, "", memoryHeap, 8, 150),
			fig(lat, "openmpi@6", "persistent", 8, 160), fig(lat, "mpich@4.2", "persistent", 8, 125),
			fig(lat, peerLimit, "line", 8, 50), fig(lat, peerLimit, "memcpy", 8, 30),
		}, []verdict{{memoryAlloc, "mpich@4.2", 0.6, 0.75, true}, {memoryAlloc, peerLimit, 1.5, 1.7, true}, {memoryAlloc, peerLimit, 2.5, 0, false},
			{memoryHeap, "mpich@4.2", 1.2, 1, false}, {memoryHeap, peerLimit, 5, 0, false}}},
		{"a ratio of exactly the bar meets it", []figure{fig(lat, "", memoryHeap, 8, 125), fig(lat, "mpich@5", "persistent", 8, 125)},
			[]verdict{{memoryHeap, "mpich@5", 1, 1, true}}},
		{"a machine that was slower in one round was so for both", []figure{
			fig(lat, "", memoryHeap, 8, 60, 300, 60), fig(lat, "mpich@5", "persistent", 8, 120, 400, 400),
		}, []verdict{{memoryHeap, "mpich@5", 0.5, 1, true}}},
		{"a peer that gave up is compared in its rounds", []figure{fig(lat, "", memoryHeap, 8, 60, 300), fig(lat, "mpich@5", "persistent", 8, 120)},
			[]verdict{{memoryHeap, "mpich@5", 0.5, 1, true}}},
		{"other sizes are for information, and other peers", []figure{
			fig(lat, "", memoryAlloc, 64, 150), fig(lat, "mpich@5", "persistent", 64, 120), fig(lat, "ucx@put", "put", 64, 50),
		}, []verdict{{memoryAlloc, "mpich@5", 1.25, 0, false}, {memoryAlloc, "ucx@put", 3, 0, false}}},
		{"another row's figures are of no matter", []figure{fig(lat, "", memoryAlloc, 64, 150), fig(bw, "mpich@5", "persistent", 64, 120)}, nil},
		{"bandwidth: each operation", []figure{
			fig(bw, "", "write", 64<<10, 40000), fig(bw, "", "send", 64<<10, 20000), fig(bw, "openmpi@5", "persistent", 64<<10, 20000),
		}, []verdict{{"write", "openmpi@5", 2, 2, true}, {"send", "openmpi@5", 1, 2, false}}},
		{"halos by axis", []figure{
			fig(halo, "", "x alloc", 1000, 30000), fig(halo, "", "y alloc", 1000, 30000), fig(halo, "openmpi@4.1", "x vector", 1000, 20000), fig(halo, "openmpi@4.1", "y vector", 1000, 15000),
		}, []verdict{{memoryAlloc, "openmpi@4.1", 1.5, 2, false}, {memoryAlloc, "openmpi@4.1", 2, 0, false}}},
		{"the dialect that serves best counts", []figure{
			fig(fan, "", dialectPlain, 64, 100), fig(fan, "", dialectEach, 64, 300), fig(fan, "openmpi@4.1", "request/chunk", 64, 100), fig(fan, peerZMQ, "", 64, 200),
		}, []verdict{{dialectPlain, "openmpi@4.1", 1, 0, false}, {dialectPlain, peerZMQ, 0.5, 0, false}, {dialectEach, "openmpi@4.1", 3, 1.5, true}, {dialectEach, peerZMQ, 1.5, 2, false}}},
		{"an exact sum: our own allreduce", []figure{fig(exact, "", exactWide, exactBytes, 35), beside}, []verdict{{exactWide, "allreduce of 512", 3.5, 4, true}}},
		{"terms of an exact sum: our own loop that rounds, of as many", []figure{
			fig(add, "", addExact, 64, 15), fig(add, "", addRounded, 64, 10), fig(add, "", addExact, 8<<20, 30), fig(add, "", addRounded, 8<<20, 10),
		}, []verdict{{addExact, "addslice of 64", 1.5, 2, false}, {addExact, "addslice of 8M", 3, 2, true}}},
		{"a message to oneself: a time", []figure{fig(local, "", memoryAlloc, 8, 50)}, []verdict{{memoryAlloc, "40.0 ns", 1.25, 1, false}}},
		{"calls into C", []figure{calls, fig(rate, peerPerftest, "write", 64, 1000)},
			[]verdict{{"write", "0.0625 calls/msg", 0.8, 1, true}, {"write", peerPerftest, 0.9, 0.9, true}}},
	} {
		var got []verdict
		for _, k := range compareFigures(c.rs, nil) {
			v := verdict{op: k.Op, peer: k.Peer, ratio: k.Ratio}
			if k.Bar != nil {
				v.bar, v.met = *k.Bar, *k.Met
			}
			got = append(got, v)
		}
		require.Equal(t, c.want, got, c.name)
	}
}

// What is slower than the best MPI comes first; each figure of ours is a row, with another
// for each further bar.
func TestPrintComparison(t *testing.T) {
	t.Parallel()
	lat := &row{suite: "channel", layer: layerChannel, pattern: patternLat, provider: "shm", sizes: "8,64", bars: []bar{
		{sizes: "8", limit: 0.75}, {sizes: "8", against: limitLine, limit: 1.7, aim: 1.4}}}
	bw := &row{suite: "impi", layer: layerIMPI, pattern: patternBW, provider: "shm", sizes: "1M"}
	figures := []figure{
		fig(lat, "", memoryAlloc, 8, 90), fig(lat, "mpich@5", "persistent", 8, 120), fig(lat, peerLimit, "line", 8, 50),
		fig(lat, "", memoryAlloc, 64, 1500), fig(lat, "openmpi@6", "persistent", 64, 1200), fig(lat, ucxPut, "put", 64, 188),
		fig(bw, "", callsNonblocking, 1<<20, 8000), fig(bw, "openmpi@6", callsNonblocking, 1<<20, 16000),
	}
	r := Report{Comparisons: compareFigures(figures, map[*row][]string{bw: {"mpich@4.2"}}), Missing: []string{"not installed: libzmq"}}
	for _, f := range figures {
		r.Results = append(r.Results, f.Result)
	}
	var out bytes.Buffer
	printComparison(&out, false, &r)
	var lines []string
	for line := range strings.Lines(out.String()) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	require.Equal(t, []string{
		"slower than the best MPI: 2 of 3",
		"sluice best MPI ratio bar",
		"shm impi bw 1M isend/irecv 8.00 GB/s openmpi@6 16.0 GB/s 0.50×",
		"shm channel lat 64 alloc 1.50 µs openmpi@6 1.20 µs 1.25×",
		"sluice spread peer ratio bar beside",
		"shm channel lat 8 alloc 90.0 ns 0 % mpich@5 120 ns 0.75× ≤ 0.75× met limit line 50.0 ns",
		"limit line 50.0 ns 1.80× ≤ 1.7× (aim 1.4×) missed",
		"64 alloc 1.50 µs 0 % openmpi@6 1.20 µs 1.25× ucx@put 188 ns",
		"shm impi bw 1M isend/irecv 8.00 GB/s 0 % openmpi@6 16.0 GB/s 0.50× mpich@4.2 crawls",
		ucxPut + ": " + toolNotes[ucxPut],
		"not compared: not installed: libzmq",
	}, lines)
}

func TestMergeRounds(t *testing.T) {
	t.Parallel()
	var rounds []Result
	for _, v := range []float64{10, 30, 20} {
		rounds = append(rounds, Result{Peer: "mpich", Min: v - 5, P50: v, P99: v + 1, P999: v + 2, Max: v + 100, Mean: v + 3, Samples: 7})
	}
	require.Equal(t, Result{Peer: "mpich", Min: 5, P50: 20, P99: 21, P999: 22, Max: 130, Mean: 23, Samples: 21, Rounds: 3, Spread: 1, Medians: []float64{10, 30, 20}}, mergeRounds(rounds))
}
