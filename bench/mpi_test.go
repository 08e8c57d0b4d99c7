//go:build !race

// What these tests start is mostly C, where the race detector sees nothing.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// The MPI programs, where an MPI is installed.
func TestMPI(t *testing.T) {
	need.Long(t)
	need.Program(t, "sh")
	p, err := buildPeers(context.Background(), "")
	require.NoError(t, err)
	defer p.Close()
	for _, mpi := range mpis {
		t.Run(mpi, func(t *testing.T) {
			for _, c := range []struct {
				args  []string
				unit  string
				bytes []int64
			}{
				{[]string{mpi, "shm", "p2p", "-s", "0,8", "-t", "0.001"}, unitLatency, []int64{0, 8}},
				{[]string{mpi, "shm", "p2p", "-s", "8", "-t", "0.001", "-n", "-b", "1"}, unitLatency, []int64{8}},
				{[]string{mpi, "shm", "p2p", "-d", "bw", "-s", "64k", "-t", "0.001", "-w", "4"}, unitBandwidth, []int64{65536}},
				{[]string{mpi, "shm", "p2p", "-s", "64k", "-t", "0.001", "-w", "4", "-d", "bibw"}, unitBandwidth, []int64{65536}},
				{[]string{mpi, "shm", "p2p", "-s", "8", "-t", "0.001", "-d", "rate"}, unitRate, []int64{8}},
				{[]string{mpi, "shm", "p2p", "-s", "8", "-t", "0.001", "-d", "rate", "-n"}, unitRate, []int64{8}},
				{[]string{mpi, "shm", "p2p", "-m", "-s", "0,8", "-t", "0.001"}, unitLatency, []int64{0, 8}},
				{[]string{mpi, "shm", "p2p", "-m", "-d", "bw", "-s", "64k", "-t", "0.001", "-w", "4"}, unitBandwidth, []int64{65536}},
				{[]string{mpi, "shm", "halo", "-t", "0.001"}, unitBandwidth, []int64{1572864, 1572864, 1572864, 1572864, 6291456}},
				{[]string{mpi, "shm", "halo", "-t", "0.001", "-a", "xa", "-r"}, unitBandwidth, []int64{1572864, 6291456}},
				{[]string{mpi, "shm", "halo", "-t", "0.001", "-a", "xta", "-k"}, unitBandwidth, []int64{1572864, 1572864, 6291456}},
				{[]string{mpi, "shm", "p2p", "-d", "ring", "-t", "0.001"}, unitLatency, []int64{8}},
				{[]string{mpi, "shm", "coll", "-t", "0.001", "-s", "8,1k", "-c", "barrier,bcast,reduce,allreduce"}, unitLatency,
					[]int64{0, 8, 1024, 8, 1024, 8, 1024}},
				{[]string{mpi, "shm", "coll", "-t", "0.001", "-s", "64k", "-c", "reduce-scatter,scan,exscan,gather,scatter,allgather,alltoall"}, unitLatency,
					[]int64{65536, 65536, 65536, 65536, 65536, 65536, 65536}},
				{[]string{mpi, "shm", "coll", "-t", "0.001", "-s", "8,64k", "-c", "gatherv,scatterv,allgatherv,alltoallv"}, unitLatency,
					[]int64{8, 65536, 8, 65536, 8, 65536, 8, 65536}},
				{[]string{mpi, "shm", "qmp", "-t", "0.001", "-s", "8,1k", "-c", "allreduce"}, unitLatency, []int64{8, 1024}},
				{[]string{mpi, "shm", "qmp", "-t", "0.001", "-a", "xah", "-c", "halo"}, unitBandwidth, []int64{1572864, 6291456, 786432}},
			} {
				rs, err := p.run(context.Background(), setting{}, c.args...)
				if errors.Is(err, errNotInstalled) {
					need.Probe(t, mpi, err)
				}
				require.NoError(t, err)
				require.Len(t, rs, len(c.bytes))
				for i, n := range c.bytes {
					require.Equal(t, n, rs[i].Bytes)
					require.Equal(t, mpi, rs[i].Peer)
					require.Equal(t, c.unit, rs[i].Unit)
					require.NotEmpty(t, rs[i].Version)
					require.Equal(t, slices.Contains(c.args, "-n"), rs[i].Suite == suiteIMPI, "requests of one message each")
					require.Equal(t, slices.Contains(c.args, "-m"), rs[i].Suite == suiteChannel, "memory of each message")
				}
			}
			for _, program := range []string{"coll", "qmp"} {
				for _, args := range [][]string{{"-c", "allreduce,sum"}, {"-s", "9"}} {
					_, err := p.run(context.Background(), setting{}, append([]string{mpi, "shm", program}, args...)...)
					require.Error(t, err, "%v", args)
					require.NotErrorIs(t, err, errNotInstalled)
				}
			}
			if mpi == "mpich" {
				return // more ranks than cores, of which none yields, may take minutes
			}
			rs, err := p.run(context.Background(), setting{env: []string{"RANKS=3"}}, mpi, "shm", "coll", "-t", "0.001", "-b", "1", "-s", "40", "-c", "scatter,gather,gatherv,scatterv,allgatherv,alltoallv")
			require.NoError(t, err)
			require.EqualValues(t, 3, rs[1].Ranks)
		})
	}
}

// The MPI programs that have several figures, or several patterns.
func TestMPIFigures(t *testing.T) {
	need.Long(t)
	need.Program(t, "sh")
	p, err := buildPeers(context.Background(), "")
	require.NoError(t, err)
	defer p.Close()
	t.Setenv(envLoad, loadBusy+":"+strconv.Itoa(os.Getpid()))
	for _, c := range []struct{ args, want string }{
		{"overlap -s 256k -c send,allreduce -t 0.001", "overlap alone,overlap cpu,overlap wait,overlap total,overlap osu,overlap alone,overlap cpu,overlap wait,overlap total,overlap osu"},
		{"shared -s 8 -c lat,allreduce,halo -t 0.001", "lat mean,lat p99,lat neighbour,allreduce mean,allreduce p99,allreduce neighbour,halo mean,halo p99,halo neighbour"},
		{"oneshot -s 8,64k -c isend,init,vector -t 0.001", "oneshot,oneshot,oneshot,oneshot,oneshot,oneshot"},
		{"match -s 8 -w 4 -c unexpected,posted,anysource -t 0.001", "unexpected,posted,anysource"},
		{"start", "start,start descriptors,start threads,start mappings,start private"},
	} {
		for _, mpi := range mpis {
			t.Run(mpi+" "+c.args, func(t *testing.T) {
				rs, err := p.run(context.Background(), setting{}, append([]string{mpi, "shm"}, strings.Fields(c.args)...)...)
				if errors.Is(err, errNotInstalled) {
					need.Probe(t, mpi, err)
				}
				require.NoError(t, err)
				var got []string
				for _, r := range rs {
					got = append(got, strings.TrimSpace(r.Pattern+" "+r.Figure))
					require.Equal(t, mpi, r.Peer)
				}
				require.Equal(t, c.want, strings.Join(got, ","))
				_, err = p.run(context.Background(), setting{}, mpi, "shm", strings.Fields(c.args)[0], "-s", "x")
				require.Error(t, err)
				require.NotErrorIs(t, err, errNotInstalled)
			})
		}
	}
}

// bench compare of one suite with what is installed here; without MPI it says so.
func TestCompare(t *testing.T) {
	need.Long(t)
	for _, args := range [][]string{{"qmp"}, {"compare", "--only", "channel halo|limit|self"}} {
		r := decode(t, output(t, append(args, "--quick", "--rounds", "1", "--time", "1ms", "--json")...))
		require.NotEmpty(t, r.Results)
		found := map[string]bool{}
		for _, v := range r.Results {
			found[peerName(v.Peer)] = true
			if args[0] == suiteQMP {
				require.Equal(t, suiteQMP, v.Suite)
			}
		}
		require.True(t, found[peerSluice])
		held := map[string]bool{} // of each row and point: whether it has a bar, of one kind of memory at least
		for _, mpi := range mpis {
			missing := slices.ContainsFunc(r.Missing, func(s string) bool { return strings.Contains(s, errNotInstalled.Error()) && strings.Contains(s, mpi) })
			require.NotEqual(t, found[mpi], missing, "%s is compared or said to be missing: %q", mpi, r.Missing)
		}
		for _, c := range r.Comparisons {
			require.NotEmpty(t, c.Row)
			if isMPI(c.Peer) {
				require.Contains(t, c.Peer, "@", "it has its version")
				point := fmt.Sprint(c.Row, " ", c.Bytes, c.Axis)
				held[point] = held[point] || c.Bar != nil
			}
		}
		for point, has := range held {
			require.True(t, has, "%s has no bar, and is measured with --quick", point)
		}
		if found["openmpi"] {
			require.NotEmpty(t, held)
		}
		require.Len(t, r.Warnings[max(0, len(r.Warnings)-1):], 1)
		require.Contains(t, r.Warnings[len(r.Warnings)-1], "--quick: 1 round")
	}
}
