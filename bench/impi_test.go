package main

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// carriers that are there.
func carriers(t *testing.T) []string {
	t.Helper()
	there := providers(t)
	return slices.DeleteFunc(slices.Clone(impiCarriers), func(c string) bool { return c != carrierTCP && !slices.Contains(there, c) })
}

func TestIMPI(t *testing.T) {
	need.Full(t)
	for _, c := range []struct {
		name    string
		args    []string
		pattern string
		op      string
		bytes   []int64
		mode    string
	}{
		{"lat", []string{"lat", "--sizes", "0,8,8k,64k,1M"}, patternLat, callsBlocking, []int64{0, 8, 8 << 10, 64 << 10, 1 << 20}, modeEach},
		{"lat batch, rounds", []string{"lat", "--sizes", "8,64k", "--batch", "--rounds", "3"}, patternLat, callsBlocking, []int64{8, 64 << 10}, modeBatch},
		{"bw", []string{"bw", "--sizes", "1,64k,1M", "--window", "5"}, patternBW, callsNonblocking, []int64{1, 64 << 10, 1 << 20}, modeBatch},
		{"bw, more requests than packets in flight", []string{"bw", "--sizes", "8", "--window", "1000"}, patternBW, callsNonblocking, []int64{8}, modeBatch},
		{"bibw", []string{"bibw", "--sizes", "8,64k", "--window", "7"}, patternBiBW, callsNonblocking, []int64{8, 64 << 10}, modeBatch},
		{"rate", []string{"rate", "--sizes", "0,8", "--iters", "5000"}, patternRate, callsNonblocking, []int64{0, 8}, modeBatch},
		{"unexpected", []string{"unexpected", "--window", "5"}, patternUnexpected, callsNonblocking, []int64{8, 4 << 10, 64 << 10}, modeBatch},
		{"posted", []string{"posted", "--sizes", "0,8"}, patternPosted, callsNonblocking, []int64{0, 8}, modeBatch},
		{"any source", []string{"anysource"}, patternAnySource, callsBlocking, []int64{8, 4 << 10, 64 << 10}, modeEach},
	} {
		for _, carrier := range carriers(t) {
			t.Run(carrier+" "+c.name, func(t *testing.T) {
				r := decode(t, output(t, slices.Concat([]string{"impi"}, c.args, tiny, []string{"--carrier", carrier, "--json"})...))
				require.Len(t, r.Environment.Ranks, 2)
				var got []int64
				for _, v := range r.Results {
					require.Equal(t, c.pattern, v.Pattern)
					require.Equal(t, layerIMPI, v.Layer)
					require.Equal(t, suiteIMPI, v.Suite)
					require.Equal(t, carrier, v.Provider)
					require.Equal(t, peerSluice, v.Peer)
					require.Equal(t, c.op, v.Op)
					require.Equal(t, c.mode, v.Mode)
					require.True(t, v.Verified)
					require.NotNil(t, v.AllocsPerMessage)
					require.Positive(t, v.P50)
					got = append(got, v.Bytes)
				}
				require.Equal(t, c.bytes, got)
			})
		}
	}
}

// All carriers that are there, in one job after the other; of the rest is said why
// not, and one of them that is asked for is an error.
func TestIMPICarriers(t *testing.T) {
	r := decode(t, output(t, append([]string{"impi", "lat", "--sizes", "8", "--json"}, tiny...)...))
	var got []string
	for _, v := range r.Results {
		got = append(got, v.Provider)
	}
	there := carriers(t)
	require.Equal(t, there, got)
	require.Len(t, r.Missing, len(impiCarriers)-len(there))
	for _, carrier := range impiCarriers {
		if !slices.Contains(there, carrier) {
			require.True(t, slices.ContainsFunc(r.Missing, func(s string) bool { return strings.HasPrefix(s, carrier+": ") }), "%s: %q", carrier, r.Missing)
			out, status := fails(t, "impi", "lat", "--carrier", carrier)
			require.Contains(t, out, "no such device")
			require.Equal(t, exitFailed, status)
		}
	}
}

func TestIMPITable(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"lat --batch", "tcp impi lat, send/recv: half a round trip; the distribution is that of the means of batches"},
		{"bw", "tcp impi bw, isend/irecv, up to 64 outstanding: one way"},
		{"rate", "tcp impi rate, isend/irecv, up to 64 outstanding: one way"},
	} {
		out := string(output(t, slices.Concat([]string{"impi"}, strings.Fields(c.args), tiny, []string{"--sizes", "8", "--carrier", "tcp"})...))
		require.Contains(t, out, c.says)
	}
}

func TestIMPIInJob(t *testing.T) {
	for size, says := range map[int]string{2: "", 3: "between 2 ranks, but the job has 3"} {
		r, out := inJob(t, size, append([]string{os.Args[0], "impi", "lat", "--sizes", "8", "--carrier", "tcp", "--json"}, tiny...)...)
		if says == "" {
			require.Zero(t, r.ExitStatus(), out)
			require.Len(t, decode(t, []byte(out)).Results, 1)
			continue
		}
		require.Equal(t, exitFailed, r.ExitStatus(), strconv.Itoa(size))
		require.Contains(t, out, says)
	}
}

// What is checked after messages have moved between two ranks of this process: every
// byte, and what lies behind; of a rank that nothing is sent to, nothing.
func TestIMPICheck(t *testing.T) {
	ctx := context.Background()
	n, err := channel.Join(ctx)
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	j, err := impi.FromNode(ctx, n, impi.Config{Processes: 2, Providers: []string{}})
	require.NoError(t, err)
	defer func() { require.NoError(t, j.Close(ctx)) }()
	for _, c := range []struct {
		pattern string
		bytes   int
		arrives [2]bool
	}{
		{patternLat, 8, [2]bool{true, true}},
		{patternLat, 100_000, [2]bool{true, true}},
		{patternBW, 4096, [2]bool{false, true}},
		{patternBiBW, 100_000, [2]bool{true, true}},
		{patternRate, 8, [2]bool{false, true}},
	} {
		var series [2]series
		var wg sync.WaitGroup
		errs := make([]error, len(series))
		m := measurementOf(t, layerIMPI, c.pattern, "sizes", formatSize(int64(c.bytes)))
		for i, w := range j.Worlds() {
			series[i] = newIMPI(w, m, make([]byte, c.bytes+guard), make([]byte, c.bytes+guard))
			series[i].prepare()
		}
		for i, s := range series {
			if c.arrives[i] {
				var corrupt *CorruptError
				require.ErrorAs(t, try(s.check), &corrupt, "%s: nothing has arrived yet", c.pattern)
			}
			wg.Go(func() { errs[i] = try(func() { s.run(3, nil) }) })
		}
		wg.Wait()
		for i, s := range series {
			require.NoError(t, errs[i])
			require.NoError(t, try(s.check), "%s, rank %d", c.pattern, i)
			in := impiBuffer(s)
			require.Equal(t, c.arrives[i], in != nil)
			if in == nil { // nothing is sent to it
				continue
			}
			for _, at := range []int{0, c.bytes - 1, len(in) - 1} {
				in[at] ^= 1
				var corrupt *CorruptError
				require.ErrorAs(t, try(s.check), &corrupt)
				require.Equal(t, at, corrupt.Offset)
				in[at] ^= 1
			}
		}
	}
}

// impiBuffer is what messages of a series arrive in.
func impiBuffer(s series) []byte {
	ins := s.(interface{ buffers() [][]byte }).buffers()
	if len(ins) == 0 {
		return nil
	}
	return ins[0]
}

func (s *messages) buffers() [][]byte { return s.ins }
