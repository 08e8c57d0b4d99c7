package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// The estimates of parameters that make them easy to tell: a message takes 10 µs, at
// each end 1 µs more, and nothing else takes time.
func TestScaleGiven(t *testing.T) {
	r := decode(t, output(t, "scale", "--latency", "10000", "--overhead", "1000", "--gap", "0", "--per-byte", "0", "--combine", "1e-9", "--copy", "1e-9",
		"--kinds", "barrier,bcast", "--sizes", "8", "--hosts", "2,3,4096", "--json"))
	require.Equal(t, &Model{Latency: 10000, Overhead: 1000, Combine: 1e-9, Copy: 1e-9}, r.Model)
	got := map[string]Estimate{}
	for _, e := range r.Estimates {
		got[strings.Join([]string{e.Kind, e.Algorithm, formatSize(int64(e.Hosts))}, " ")] = e
	}
	for _, c := range []struct {
		what   string
		ns     float64
		chosen bool
	}{
		{"barrier dissemination 2", 12000, false},
		{"barrier linear 2", 24000, true},
		{"barrier dissemination 4k", 12 * 12000, true},
		{"bcast linear 2", 12000, true},
		{"bcast linear 3", 13000, true},
		{"bcast binomial 4k", 12 * 12000, true}, // each forwards within the latency of the last
	} {
		e, ok := got[c.what]
		require.True(t, ok, "%s: %v", c.what, got)
		require.InDelta(t, c.ns, e.NS, 1, c.what)
		require.Equal(t, c.chosen, e.Chosen, c.what)
	}
	require.NotContains(t, got, "bcast ring 2")
}

// What the environment says is chosen, or wrong.
func TestScaleSettings(t *testing.T) {
	t.Setenv("SLUICE_COLL_ALGORITHM", "bcast=linear")
	args := []string{"scale", "--latency", "1", "--overhead", "1", "--gap", "1", "--per-byte", "1", "--kinds", "bcast", "--sizes", "8", "--hosts", "64", "--json"}
	for _, e := range decode(t, output(t, args...)).Estimates {
		require.Equal(t, e.Algorithm == "linear", e.Chosen)
	}
	t.Setenv("COLL_XSIZE", "many")
	said, status := fails(t, args...)
	require.Equal(t, exitUsage, status)
	require.Contains(t, said, "COLL_XSIZE")
}

func TestScaleMeasured(t *testing.T) {
	need.Full(t)
	args := []string{"scale", "--time", "1ms", "--kinds", "allreduce", "--sizes", "8,8k", "--hosts", "2:64"}
	r := decode(t, output(t, append(args, "--json")...))
	require.Len(t, r.Environment.Ranks, 2)
	require.Len(t, r.Results, 3)
	m := r.Model
	require.True(t, m.Measured)
	require.GreaterOrEqual(t, m.Latency, 0.0)
	for _, v := range []float64{m.Overhead, m.Gap, m.PerByte, m.Combine, m.Copy} {
		require.Positive(t, v)
	}
	// Half a round trip of 8 bytes is that of the model.
	require.InDelta(t, r.Results[0].P50, m.Latency+2*m.Overhead+8*m.PerByte, 8*m.PerByte+1)
	require.InDelta(t, 1e9, m.Gap*r.Results[1].P50, 1)
	require.InDelta(t, 1e3, m.PerByte*r.Results[2].P50, 1e-3)
	table := string(output(t, args...))
	for _, part := range []string{"LogGP, measured over tcp: L ", "allreduce of 8k bytes, estimated", "recursive-doubling", "*"} {
		require.Contains(t, table, part)
	}
	r2, out := inJob(t, 3, os.Args[0], "scale")
	require.Equal(t, exitFailed, r2.ExitStatus())
	require.Contains(t, out, "between 2 ranks, but the job has 3")
}

// A row for the hosts, a column for the algorithm, an asterisk at what is chosen.
func TestPrintScale(t *testing.T) {
	t.Parallel()
	r := Report{Model: &Model{Latency: 1}, Estimates: []Estimate{
		{Kind: "barrier", Hosts: 2, Algorithm: "linear", NS: 24000, Chosen: true},
		{Kind: "barrier", Hosts: 2, Algorithm: "dissemination", NS: 12000},
		{Kind: "barrier", Hosts: 4, Algorithm: "dissemination", NS: 24000, Chosen: true},
	}}
	var out bytes.Buffer
	printScale(&out, &r)
	var rows []string
	for line := range strings.Lines(out.String()) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			rows = append(rows, line)
		}
	}
	require.Equal(t, []string{
		"LogGP, given: L 1.00 ns, o 0 ns, g 0 ns, G 0 ns/byte; adding 0 ns/byte, copying 0 ns/byte",
		"barrier, estimated",
		"hosts linear binomial dissemination",
		"2 *24.0 µs - 12.0 µs",
		"4 - - *24.0 µs",
	}, rows)
}
