package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// aTool is a test of a program that is installed here.
func aTool(name, pattern, op string, bytes int) tool {
	return tool{place: &place{versions: map[string]string{name: "1.2"}}, name: name, peer: name + "@x", op: op, bytes: bytes, count: 128,
		row: &row{pattern: pattern, provider: "shm", op: op, window: 64, args: []string{"--signal-every", "1", "--list", "1"}}, path: &rdmaPath{"rxe0", 1, 1}}
}

func TestParseTools(t *testing.T) {
	t.Parallel()
	const csv = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
	const fi = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
	ucx := aTool(peerUCX, patternLat, "tag", 8)
	bw := aTool(peerUCX, patternBW, "tag", 8)
	ping := aTool(peerLibfabric, patternLat, "tagged", 8)
	for _, c := range []struct {
		name    string
		test    tool
		out     string
		want    float64
		samples int64
	}{
		{"latency", ucx, csv + "100000,0.105,0.278,0.278,27.44,27.44,3596988,3596988\n", 105, 100000},
		{"bandwidth", bw, csv + "1000,0.542,0.957,0.957,65315.56,1000.00,1045049,1045049\n", 1048.576, 1},
		{"pingpong of 64k", aTool(peerLibfabric, patternLat, "tagged", 64<<10), fi + "64k     10k     =10k     156k        0.02s      8.81       0.91       1.10\n", 910, 1},
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
		c := aTool(peerLibfabric, patternLat, "tagged", 8)
		if ucx {
			c = aTool(peerUCX, patternLat, "tag", 8)
		}
		if r, err := c.parse(strings.NewReader(out)); err == nil {
			require.NoError(t, r.check())
		}
	})
}

const perftestLat = `---------------------------------------------------------------------------------------
                    RDMA_Write Latency Test
 Dual-port       : OFF		Device         : rxe0
 Mtu             : 1024[B]
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 8       2000          8.25           2847.88      8.41     	       11.90       	-nan   		34.05   		2087.54
---------------------------------------------------------------------------------------
`

const perftestBW = ` #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      300              0.00               55.16  		   0.000883
---------------------------------------------------------------------------------------
`

func TestParsePerftest(t *testing.T) {
	t.Parallel()
	lat := aTool(peerPerftest, patternLat, "write", 8)
	r, err := lat.parse(strings.NewReader(perftestLat))
	require.NoError(t, err)
	require.Equal(t, Result{Pattern: patternLat, Layer: peerPerftest, Provider: "shm", Peer: "perftest@x", Op: "write", Mode: modeEach, Version: "1.2", Window: 64, List: 1,
		Bytes: 8, Unit: unitLatency, Min: 8250, P50: 8410, P99: 34050, P999: 2087540, Max: 2847880, Mean: 11900, Samples: 2000}, r)

	bw := aTool(peerPerftest, patternBW, "write", 65536)
	r, err = bw.parse(strings.NewReader(perftestBW))
	require.NoError(t, err)
	require.InDelta(t, 55.16*1.048576, r.P50, 1e-9)
	require.Equal(t, unitBandwidth, r.Unit)
	rate := aTool(peerPerftest, patternRate, "write", 65536)
	r, err = rate.parse(strings.NewReader(perftestBW))
	require.NoError(t, err)
	require.InDelta(t, 883, r.P50, 1e-9)

	var bad *PeerOutputError
	for _, out := range []string{"", "Couldn't connect to 127.0.0.1:18515\n", perftestLat, strings.Replace(perftestBW, "65536", "8", 1), strings.Replace(perftestBW, "55.16", "nan", 1)} {
		_, err := bw.parse(strings.NewReader(out))
		require.ErrorAs(t, err, &bad, out)
	}
}

// Two processes find each other though the server is slow to listen, and a server
// that fails is named.
func TestTwoEnds(t *testing.T) {
	need.Unix(t) // scripts in place of perftest
	need.Program(t, "sh")
	dir := t.TempDir()
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	program := func(body string) {
		// By another process: a file that this one writes cannot be executed (ETXTBSY) while a child
		// that is just being forked has it open.
		cmd := exec.Command("sh", "-c", `cat >"$0" && chmod +x "$0"`, filepath.Join(dir, "ib_write_bw"))
		cmd.Stdin = strings.NewReader("#!/bin/sh\n" + body)
		require.NoError(t, cmd.Run())
	}
	d := aTool(peerPerftest, patternBW, "write", 65536)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	run := func() ([]Result, error) { return d.run(ctx) }

	program(`for last; do :; done
flag=` + dir + `/listening tried=` + dir + `/tried
if [ "$last" != 127.0.0.1 ]; then
	while [ ! -e $tried ]; do sleep 0.01; done
	touch $flag
	while [ -e $flag ]; do sleep 0.01; done
	exit 0
fi
if [ ! -e $flag ]; then touch $tried; echo "Couldn't connect to 127.0.0.1:18515"; exit 1; fi
rm $flag
cat <<'END'
` + perftestBW + `END
`)
	rs, err := run()
	require.NoError(t, err)
	require.Len(t, rs, 1)
	require.InDelta(t, 57.84, rs[0].P50, 0.01)

	program(`for last; do :; done
if [ "$last" = 127.0.0.1 ]; then echo "Couldn't connect to 127.0.0.1:18515"; exit 1; fi
echo "IB device rxe0 not found"; exit 1
`)
	_, err = run()
	require.ErrorContains(t, err, "IB device rxe0 not found")

	program("for last; do :; done\nif [ \"$last\" = 127.0.0.1 ]; then echo broken; exit 3; fi\nexec sleep 1000\n")
	_, err = run()
	require.ErrorContains(t, err, "broken")
	require.NoError(t, ctx.Err())
}
