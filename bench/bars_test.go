package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// fig is a figure with the medians of its rounds.
func fig(provider, pattern, peer, op string, bytes int64, medians ...float64) figure {
	var rounds []Result
	for _, m := range medians {
		rounds = append(rounds, Result{Provider: provider, Pattern: pattern, Peer: peer, Op: op, Bytes: bytes, Unit: unitOf(pattern), P50: m})
	}
	return newFigure(rounds)
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

func TestMergeRounds(t *testing.T) {
	t.Parallel()
	var rounds []Result
	for _, v := range []float64{10, 30, 20} {
		rounds = append(rounds, Result{Peer: "mpich", Min: v - 5, P50: v, P99: v + 1, P999: v + 2, Max: v + 100, Mean: v + 3, Samples: 7})
	}
	require.Equal(t, Result{Peer: "mpich", Min: 5, P50: 20, P99: 21, P999: 22, Max: 130, Mean: 23, Samples: 21, Rounds: 3, Spread: 1}, mergeRounds(rounds))
}
