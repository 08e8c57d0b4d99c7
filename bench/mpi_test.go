//go:build !race

// What these tests start is mostly C, where the race detector sees nothing.

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The MPI programs, where an MPI is installed.
func TestMPI(t *testing.T) {
	p, err := buildPeers(context.Background())
	if errors.Is(err, errNotInstalled) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer p.Close()
	for _, mpi := range mpis {
		t.Run(mpi, func(t *testing.T) {
			for _, c := range []struct {
				args  []string
				unit  string
				bytes []int64
			}{
				{[]string{mpi, "shm", "pingpong", "-s", "0,8", "-t", "0.001"}, unitLatency, []int64{0, 8}},
				{[]string{mpi, "shm", "pingpong", "-s", "8", "-t", "0.001", "-n", "-b", "1"}, unitLatency, []int64{8}},
				{[]string{mpi, "shm", "bw", "-s", "64k", "-t", "0.001", "-w", "4"}, unitBandwidth, []int64{65536}},
				{[]string{mpi, "shm", "bw", "-s", "64k", "-t", "0.001", "-w", "4", "-d", "bibw"}, unitBandwidth, []int64{65536}},
				{[]string{mpi, "shm", "bw", "-s", "8", "-t", "0.001", "-d", "rate"}, unitRate, []int64{8}},
				{[]string{mpi, "shm", "bw", "-s", "8", "-t", "0.001", "-d", "rate", "-n"}, unitRate, []int64{8}},
				{[]string{mpi, "shm", "channel", "-l", "0,8", "-s", "64k", "-t", "0.001", "-w", "4"}, "", []int64{0, 8, 65536}},
				{[]string{mpi, "shm", "halo", "-t", "0.001"}, unitBandwidth, []int64{1572864, 1572864, 1572864, 1572864, 6291456}},
				{[]string{mpi, "shm", "halo", "-t", "0.001", "-a", "xa", "-r"}, unitBandwidth, []int64{1572864, 6291456}},
				{[]string{mpi, "shm", "halo", "-t", "0.001", "-a", "xta", "-k"}, unitBandwidth, []int64{1572864, 1572864, 6291456}},
				{[]string{mpi, "shm", "ring", "-t", "0.001"}, unitLatency, []int64{8}},
				{[]string{mpi, "shm", "coll", "-t", "0.001", "-s", "8,1k", "-c", "barrier,bcast,reduce,allreduce"}, unitLatency,
					[]int64{0, 8, 1024, 8, 1024, 8, 1024}},
				{[]string{mpi, "shm", "coll", "-t", "0.001", "-s", "64k", "-c", "reduce-scatter,scan,exscan,gather,scatter,allgather,alltoall"}, unitLatency,
					[]int64{65536, 65536, 65536, 65536, 65536, 65536, 65536}},
				{[]string{mpi, "shm", "qmp", "-t", "0.001", "-s", "8,1k", "-c", "allreduce"}, unitLatency, []int64{8, 1024}},
				{[]string{mpi, "shm", "qmp", "-t", "0.001", "-a", "xah", "-c", "halo"}, unitBandwidth, []int64{1572864, 6291456, 786432}},
			} {
				rs, err := p.run(context.Background(), c.args...)
				if errors.Is(err, errNotInstalled) {
					t.Skip(err)
				}
				require.NoError(t, err)
				require.Len(t, rs, len(c.bytes))
				for i, n := range c.bytes {
					require.Equal(t, n, rs[i].Bytes)
					require.Equal(t, mpi, rs[i].Peer)
					if c.unit != "" {
						require.Equal(t, c.unit, rs[i].Unit)
					}
					require.NotEmpty(t, rs[i].Version)
					require.Equal(t, slices.Contains(c.args, "-n"), rs[i].Suite == suiteIMPI, "requests of one message each")
				}
			}
			for _, program := range []string{"coll", "qmp"} {
				for _, args := range [][]string{{"-c", "allreduce,sum"}, {"-s", "9"}} {
					_, err := p.run(context.Background(), append([]string{mpi, "shm", program}, args...)...)
					require.Error(t, err, "%v", args)
					require.NotErrorIs(t, err, errNotInstalled)
				}
			}
			if mpi == "mpich" {
				return // more ranks than cores, of which none yields, may take minutes
			}
			rs, err := p.runRanks(context.Background(), 3, mpi, "shm", "coll", "-t", "0.001", "-b", "1", "-c", "scatter,gather")
			require.NoError(t, err)
			require.EqualValues(t, 3, rs[1].Ranks)
		})
	}
}

// bench qmp with what is installed here; without MPI it says so.
func TestCompareQMP(t *testing.T) {
	r := decode(t, output(t, "qmp", "--quick", "--rounds", "1", "--time", "1ms", "--json"))
	peers := map[string]bool{}
	for _, v := range r.Results {
		require.Equal(t, suiteQMP, v.Suite)
		peers[v.Peer] = true
	}
	require.True(t, peers[peerSluice])
	for _, mpi := range mpis {
		missing := slices.ContainsFunc(r.Missing, func(s string) bool { return strings.Contains(s, errNotInstalled.Error()) && strings.Contains(s, mpi) })
		require.NotEqual(t, peers[mpi], missing, "%s is compared or said to be missing: %q", mpi, r.Missing)
	}
	if peers["openmpi"] {
		require.True(t, slices.ContainsFunc(r.Comparisons, func(c Comparison) bool { return c.Bar != nil }))
	}
}

// bench compare with what is installed here; without MPI it says so.
func TestCompare(t *testing.T) {
	r := decode(t, output(t, "compare", "--quick", "--rounds", "1", "--time", "1ms", "--json"))
	require.NotEmpty(t, r.Results)
	peers := map[string]bool{}
	for _, v := range r.Results {
		peers[v.Peer] = true
	}
	require.True(t, peers[peerSluice])
	for _, mpi := range mpis {
		missing := slices.ContainsFunc(r.Missing, func(s string) bool { return strings.Contains(s, errNotInstalled.Error()) && strings.Contains(s, mpi) })
		require.NotEqual(t, peers[mpi], missing, "%s is compared or said to be missing: %q", mpi, r.Missing)
	}
	if peers["openmpi"] {
		require.NotEmpty(t, r.Comparisons)
	}
}
