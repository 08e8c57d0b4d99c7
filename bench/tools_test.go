package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseTools(t *testing.T) {
	t.Parallel()
	const csv = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
	const fi = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
	ucx := toolTest{peer: peerUCX, program: "ucx_perftest", provider: "shm", suite: suiteIMPI, pattern: patternLat, op: "tag", bytes: 8}
	bw := ucx
	bw.pattern = patternBW
	ping := toolTest{peer: peerLibfabric, program: "fi_pingpong", provider: "shm", suite: suiteIMPI, pattern: patternLat, op: "tagged", bytes: 8}
	for _, c := range []struct {
		name    string
		test    toolTest
		out     string
		want    float64
		samples int64
	}{
		{"latency", ucx, csv + "100000,0.105,0.278,0.278,27.44,27.44,3596988,3596988\n", 105, 100000},
		{"bandwidth", bw, csv + "1000,0.542,0.957,0.957,65315.56,1000.00,1045049,1045049\n", 1048.576, 1},
		{"pingpong", ping, fi + "8       10k     =10k     156k        0.02s      8.81       0.91       1.10\n", 910, 1},
	} {
		r, err := c.test.parse(strings.NewReader("a warning\n" + c.out))
		require.NoError(t, err, c.name)
		require.InDelta(t, c.want, r.P50, 1e-6, c.name)
		require.Equal(t, c.samples, r.Samples, c.name)
		require.Equal(t, c.test.peer, r.Peer)
	}
	for name, out := range map[string]string{
		"nothing": "", "a header alone": csv, "cut": csv + "100000,0.105", "no number": csv + "100000,x,0.278,0.278,27.44,27.44,3596988,3596988\n",
		"negative": csv + "100000,-1,0.278,0.278,27.44,27.44,3596988,3596988\n", "not finite": csv + "100000,inf,0,0,0,0,0,0\n", "no iterations": csv + "0,1,0,0,0,0,0,0\n",
	} {
		_, err := ucx.parse(strings.NewReader(out))
		var e *PeerOutputError
		require.ErrorAs(t, err, &e, name)
	}
}

// Whatever a peer's program prints is a result that can be shown, or an error.
func FuzzParseTools(f *testing.F) {
	f.Add("100000,0.105,0.278,0.278,27.44,27.44,3596988,3596988\n", true)
	f.Add("8       10k     =10k     156k        0.02s      8.81       0.91       1.10\n", false)
	f.Fuzz(func(t *testing.T, out string, ucx bool) {
		c := toolTest{peer: peerLibfabric, provider: "shm", pattern: patternLat, bytes: 8}
		if ucx {
			c.peer = peerUCX
		}
		if r, err := c.parse(strings.NewReader(out)); err == nil {
			require.NoError(t, r.check())
		}
	})
}

// Who is asked for alone is run alone; what the names are is said.
func TestPicked(t *testing.T) {
	t.Parallel()
	all := []contender{{name: "a", what: []string{"shm channel lat", "shm channel bw"}}, {name: "b", what: []string{"tcp impi lat"}}}
	for only, want := range map[string]string{"": "ab", "channel": "a", "CHANNEL BW": "a", "lat$": "ab", "^tcp": "b"} {
		rows, err := parseOnly(only)
		require.NoError(t, err)
		c := comparison{compareOptions: compareOptions{only: only, rows: rows}}
		got, err := c.picked(all)
		require.NoError(t, err)
		names := ""
		for _, k := range got {
			names += k.name
		}
		require.Equal(t, want, names, only)
	}
	rows, err := parseOnly("nobody")
	require.NoError(t, err)
	c := comparison{compareOptions: compareOptions{only: "nobody", rows: rows}}
	_, err = c.picked(all)
	var usage *UsageError
	require.ErrorAs(t, err, &usage)
	require.Contains(t, usage.Why, "shm channel lat, shm channel bw, tcp impi lat")

	// Every contender says what it is, in the words that a row of its results begins with.
	c = comparison{peers: &peers{}, compareOptions: compareOptions{time: defaultTime}}
	for _, k := range c.contenders() {
		require.NotEmpty(t, k.what, k.name)
	}
	row := resultOf(patternLat, 8, 1)
	require.Equal(t, "shm verbs lat send 8 sluice", rowName(&row))
	row = Result{Provider: "shm", Layer: layerChannel, Pattern: "allreduce", Ranks: 4, Op: calledAlloc, Bytes: 8, Peer: peerSluice}
	require.Equal(t, "shm 4 ranks allreduce called alloc 8 sluice", rowName(&row))
}

// Peers that are shown for information have no bar.
func TestToolsInform(t *testing.T) {
	t.Parallel()
	theirs := impiFig("shm", patternLat, peerUCX, "tag", 8, 300, 300)
	theirs.Layer = peerUCX
	list := compareFigures([]figure{impiFig("shm", patternLat, peerSluice, "send/recv", 8, 150, 150), theirs})
	require.Len(t, list, 1)
	require.Equal(t, peerUCX, list[0].Peer)
	require.InDelta(t, 0.5, list[0].Ratio, 1e-9)
	require.Nil(t, list[0].Bar)
}
