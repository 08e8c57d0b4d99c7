package main

import (
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every row can be run: our command line is one, the peers' programs are there, and its bars
// are of its points.
func TestRows(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for i := range rows {
		r := &rows[i]
		name := r.String()
		if r.provider == providerIBV { // of one name are several sizes
			name += " " + r.sizes
		}
		require.False(t, names[name], "two rows are called %q", name)
		names[name] = true
		require.True(t, r.sizes == "" || r.axes == "", name)

		sub, rest, err := newRootCommand().Find(r.command(r.points(), quickTime))
		require.NoError(t, err, name)
		require.True(t, sub.HasParent(), name)
		require.NoError(t, sub.ParseFlags(rest), name)
		require.Empty(t, sub.Flags().Args(), name)
		require.Contains(t, rest, "--json")

		for _, b := range r.bars {
			for point := range strings.SplitSeq(b.sizes, ",") {
				require.True(t, point == "" || slices.Contains(r.points(), point), "%s: a bar of %s, which it does not have", name, point)
			}
			require.NotZero(t, b.limit, name)
		}
		for _, p := range r.peers {
			words := strings.Fields(p)
			if words[0] == "mpi" {
				_, err := fs.Stat(peerSources, "peers/mpi_"+words[1]+".c")
				require.NoError(t, err, name)
			} else {
				require.Contains(t, []string{peerLimit, "zmq", peerUCX, "fi", peerPerftest}, words[0], name)
			}
		}
	}
}

func TestRowNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		row  row
		want string
	}{
		{row{suite: "channel", pattern: patternLat, provider: "shm", window: 16}, "shm channel lat"},
		{row{suite: "collectives", pattern: "barrier", provider: "shm", ranks: 2}, "shm collectives barrier 2 ranks"},
		{row{suite: "fanout", pattern: patternFanout, provider: "shm", ranks: 9, window: 8}, "shm fanout 9 ranks window 8"},
		{row{suite: "channel", pattern: patternLat, provider: "shm", load: "busy"}, "shm channel lat busy"},
		{overDevice(patternRate, "write", "64", 64, 64, 64), "ibv verbs rate write ×64"},
	} {
		require.Equal(t, c.want, c.row.String())
	}
}

// With --quick those points are measured that have a bar.
func TestWanted(t *testing.T) {
	t.Parallel()
	r := row{sizes: "8,64,1k", bars: []bar{{sizes: "8", limit: 1}, {sizes: "1k", against: peerLimit, limit: 1}}}
	require.Equal(t, []string{"8", "1k"}, r.barred())
	require.Empty(t, (&row{sizes: "8,64"}).barred())
	require.Equal(t, []string{"8", "64"}, (&row{sizes: "8,64", bars: []bar{{limit: 1}}}).barred())
	require.Equal(t, []string{""}, (&row{bars: []bar{{limit: 1}}}).barred(), "a row of one size")

	for only, want := range map[string]string{"": "shm channel lat", "CHANNEL BW": "shm channel bw", "^tcp impi lat$": "tcp impi lat", "ranks": "shm channel ring 8 ranks"} {
		c := comparison{compareOptions: compareOptions{only: only}}
		require.Equal(t, want, c.wanted()[0].String())
	}
	c := comparison{compareOptions: compareOptions{only: "nothing"}}
	var usage *UsageError
	require.ErrorAs(t, try(func() { c.wanted() }), &usage)
	require.Contains(t, usage.Why, "shm channel lat, shm channel bw")
	c = comparison{compareOptions: compareOptions{only: "exscan", quick: true}}
	require.ErrorAs(t, try(func() { c.wanted() }), &usage, "it has no bar")
}

// What the programs are told is what we do.
func TestArguments(t *testing.T) {
	t.Parallel()
	r := row{layer: layerQMP, pattern: "allreduce", provider: "shm", sizes: "8,1k", ranks: 4}
	require.Equal(t, "qmp sum --provider shm --doubles 1,128 --ranks 4 --time 10ms --json", strings.Join(r.command(r.points(), quickTime), " "))
	require.Equal(t, "-t 0.01 -s 8,1k", strings.Join(r.options(r.points(), quickTime), " "))
	halo := row{layer: layerChannel, pattern: patternHalo, provider: "shm", memory: bothMemories, axes: "x,all"}
	require.Equal(t, "halo --provider shm --memory alloc,heap --axis x,all --time 10ms --json", strings.Join(halo.command(halo.points(), quickTime), " "))
	require.Equal(t, "-t 0.01 -a xa", strings.Join(halo.options(halo.points(), quickTime), " "))
	impi := row{layer: layerIMPI, pattern: patternLat, provider: "shm", sizes: "8", load: "busy"}
	require.Equal(t, "impi lat --carrier shm --sizes 8 --load busy --batch --time 10ms --json", strings.Join(impi.command(impi.points(), quickTime), " "))

	rate := overDevice(patternRate, "write", "64", 64, 64, 64)
	require.Equal(t, "verbs rate --op write --sizes 64 --window 64 --inline 0 --signal-every 64 --warmup 20ms --mean --list 64 --time 10ms --json",
		strings.Join(rate.command(rate.points(), quickTime), " "))
	d := tool{name: peerPerftest, row: &rate, op: "write", bytes: 64, count: 640, path: &rdmaPath{"rxe0", 1, 1}}
	both, server, client, _ := d.ends("18515")
	require.Equal(t, "ib_write_bw", d.program())
	require.Equal(t, "-F -d rxe0 -i 1 -s 64 -n 640 -p 18515 -x 1 -I 0 -N -t 64 -Q 64 -l 64", strings.Join(both, " "))
	require.Empty(t, server)
	require.Equal(t, []string{"127.0.0.1"}, client)
	lat := overDevice(patternLat, "send", "8", 0, 0, 1)
	d = tool{name: peerPerftest, row: &lat, op: "send", bytes: 8, path: &rdmaPath{"mlx5_0", 2, -1}}
	d.plan(fullTime, &Result{P50: 5000})
	both, _, _, _ = d.ends("18515")
	require.Equal(t, "ib_send_lat", d.program())
	require.Equal(t, "-F -d mlx5_0 -i 2 -s 8 -n 10000 -p 18515 -I 0", strings.Join(both, " "))
}

// The bars of qmp are those of channels and collectives, and ten per cent.
func TestQMPBars(t *testing.T) {
	t.Parallel()
	limit := func(r *row, point, op string) float64 {
		for _, b := range r.bars {
			if b.covers(point) && (b.op == op || b.op == "") {
				return b.limit
			}
		}
		return 0
	}
	seen := 0
	for i := range rows {
		q := &rows[i]
		if q.layer != layerQMP {
			continue
		}
		k := slices.IndexFunc(rows, func(r row) bool {
			return r.layer == layerChannel && r.provider == q.provider && r.pattern == q.pattern && r.ranks == q.ranks
		})
		require.GreaterOrEqual(t, k, 0, q.String())
		op, by := calledAlloc, 1.1
		if q.pattern == patternHalo {
			op, by = memoryAlloc, 0.9
		}
		for _, point := range q.barred() {
			if point != axisHalf { // the halo of the Wilson operator
				require.InDelta(t, by*limit(&rows[k], point, op), limit(q, point, ""), 1e-9, "%s %s", q, point)
				seen++
			}
		}
	}
	require.Equal(t, 4+3+3+3, seen)
}

// TestRowOfEachSuite: CI has one row of each suite, of those that need no RDMA device.
func TestRowOfEachSuite(t *testing.T) {
	t.Parallel()
	lib, err := os.ReadFile("../.ci/lib")
	require.NoError(t, err)
	_, list, _ := strings.Cut(string(lib), "local rows=(")
	list, _, _ = strings.Cut(list, ")")
	suites := map[string]bool{}
	for i := range rows {
		if r := &rows[i]; r.provider != providerIBV {
			suites[r.suite] = false
		}
	}
	for _, p := range regexp.MustCompile(`'([^']+)'`).FindAllStringSubmatch(list, -1) {
		matched := false
		for i := range rows {
			if regexp.MustCompile("^" + p[1]).MatchString(rows[i].String()) {
				suites[rows[i].suite], matched = true, true
			}
		}
		require.True(t, matched, "no row is called %s", p[1])
	}
	for suite, has := range suites {
		require.True(t, has, "no row of suite %s", suite)
	}
}
