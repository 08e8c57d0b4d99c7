package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
	lat := discipline{pattern: patternLat, op: "write", bytes: 8}
	r, err := lat.parsePerftest(strings.NewReader(perftestLat))
	require.NoError(t, err)
	require.Equal(t, Result{Pattern: patternLat, Layer: "libibverbs", Provider: providerIBV, Peer: peerPerftest, Op: "write", Mode: modeEach,
		Bytes: 8, Unit: unitLatency, Min: 8250, P50: 8410, P99: 34050, P999: 2087540, Max: 2847880, Mean: 11900, Samples: 2000}, r)

	bw := discipline{pattern: patternBW, op: "write", bytes: 65536, window: 64, list: 1}
	r, err = bw.parsePerftest(strings.NewReader(perftestBW))
	require.NoError(t, err)
	require.InDelta(t, 55.16*1.048576, r.P50, 1e-9)
	require.Equal(t, unitBandwidth, r.Unit)
	rate := bw
	rate.pattern = patternRate
	r, err = rate.parsePerftest(strings.NewReader(perftestBW))
	require.NoError(t, err)
	require.InDelta(t, 883, r.P50, 1e-9)

	var bad *PeerOutputError
	for _, out := range []string{"", "Couldn't connect to 127.0.0.1:18515\n", perftestLat, strings.Replace(perftestBW, "65536", "8", 1), strings.Replace(perftestBW, "55.16", "nan", 1)} {
		_, err := bw.parsePerftest(strings.NewReader(out))
		require.ErrorAs(t, err, &bad, out)
	}
}

// What perftest is told is what we do.
func TestPerftestArguments(t *testing.T) {
	t.Parallel()
	d := discipline{pattern: patternRate, op: "write", bytes: 64, window: 64, list: 64, every: 64}
	require.Equal(t, "ib_write_bw", d.program())
	require.Equal(t, "-F -d rxe0 -i 1 -s 64 -n 640 -p 18515 -x 1 -I 0 -N -t 64 -Q 64 -l 64", strings.Join(d.theirs(&rdmaPath{"rxe0", 1, 1}, 640), " "))
	require.Equal(t, "verbs rate --device rxe0 --op write --sizes 64 --inline 0 --signal-every 64 --warmup 20ms --mean --window 64 --list 64",
		strings.Join(d.ours("rxe0"), " "))
	d = discipline{pattern: patternLat, op: "send", bytes: 8, every: 1}
	require.Equal(t, "ib_send_lat", d.program())
	require.Equal(t, "-F -d mlx5_0 -i 2 -s 8 -n 100 -p 18515 -I 0", strings.Join(d.theirs(&rdmaPath{"mlx5_0", 2, -1}, 100), " "))

	for i := range disciplines {
		c := newRootCommand()
		sub, rest, err := c.Find(disciplines[i].ours("rxe0"))
		require.NoError(t, err)
		require.NoError(t, sub.ParseFlags(rest), "our own command line")
	}
}

// Two processes find each other though the server is slow to listen, and a server
// that fails is told of.
func TestPerftestProcesses(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no shell (sh) to run in place of perftest")
	}
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skipf("no shell (sh) to run in place of perftest: %v", err)
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	program := func(body string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ib_write_bw"), []byte("#!/bin/sh\n"+body), 0o755))
	}
	d := discipline{pattern: patternBW, op: "write", bytes: 65536, window: 64, list: 1}
	run := func() ([]Result, error) {
		return d.perftest(context.Background(), &rdmaPath{"rxe0", 1, 1}, 128)
	}

	_, err := (&discipline{pattern: patternLat, op: "teleport"}).perftest(context.Background(), &rdmaPath{"rxe0", 1, 1}, 1)
	require.ErrorIs(t, err, errNotInstalled)
	require.ErrorContains(t, err, "perftest")

	program(`for last; do :; done
flag=` + dir + `/listening
if [ "$last" != 127.0.0.1 ]; then sleep 0.3; touch $flag; while [ -e $flag ]; do sleep 0.05; done; exit 0; fi
if [ ! -e $flag ]; then echo "Couldn't connect to 127.0.0.1:18515"; exit 1; fi
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
	start := time.Now()
	_, err = run()
	require.ErrorContains(t, err, "broken")
	require.Less(t, time.Since(start), bound)
}

func TestCompareRDMA(t *testing.T) {
	t.Parallel()
	with := func(f figure, list int64, calls float64) figure {
		f.List = list
		if calls > 0 {
			f.CrossingsPerMessage = &calls
		}
		return f
	}
	figures := []figure{
		with(fig(providerIBV, patternLat, peerSluice, "write", 8, 9000), 0, 3),
		with(fig(providerIBV, patternLat, peerPerftest, "write", 8, 8000), 0, 0),
		with(fig(providerIBV, patternLat, peerPerftest, "send", 8, 6000), 0, 0),
		with(fig(providerIBV, patternBW, peerSluice, "write", 65536, 98), 1, 2),
		with(fig(providerIBV, patternBW, peerPerftest, "write", 65536, 100), 1, 0),
		with(fig(providerIBV, patternRate, peerSluice, "write", 64, 900), 64, 0.05),
		with(fig(providerIBV, patternRate, peerPerftest, "write", 64, 1000), 64, 0),
		with(fig(providerIBV, patternRate, peerPerftest, "write", 64, 600), 1, 0),
	}
	type verdict struct {
		op, peer, unit string
		ratio          float64
		met            bool
	}
	var got []verdict
	for _, c := range compareFigures(figures) {
		got = append(got, verdict{c.Op, c.Peer, c.Unit, c.Ratio, *c.Met})
	}
	require.Equal(t, []verdict{
		{"write", peerPerftest, unitLatency, 1.125, false},
		{"write", peerPerftest, unitBandwidth, 0.98, true},
		{"write", peerPerftest, unitRate, 0.9, true},
		{"write", "0.0625 calls/msg", unitCalls, 0.8, true},
	}, got)
}
