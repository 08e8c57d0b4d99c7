package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A newcomer's first command says, in at most 30 lines, what is doubtful, then what channels,
// collectives and each provider do, and ends with a sentence.
func TestFirst(t *testing.T) {
	out := string(output(t, "--time", "1ms"))
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.LessOrEqual(t, len(lines), 30, out)
	require.Contains(t, lines[0], "2 ranks on ")
	at := 0
	for _, begin := range []string{"", "channels, latency, Alloc, shm ", "channels, latency, heap, shm ", "channels, bandwidth, Alloc", "barrier, shm",
		"allreduce, Alloc, shm", "queue pairs, latency, shm", "queue pairs, latency, tcp", "a bare cache line", "Between these ranks channels and collectives go over shm;"} {
		i := at
		for ; i < len(lines) && !strings.HasPrefix(lines[i], begin); i++ {
		}
		require.Less(t, i, len(lines), "%q behind line %d of\n%s", begin, at, out)
		at = i
	}
	require.Regexp(t, `8 B +4 KiB +64 KiB +1 MiB`, out)
}

// Doubts come first, and however much there is to say, it is at most 30 lines.
func TestSummary(t *testing.T) {
	r := &Report{Environment: Environment{CPU: "a CPU", Kernel: "a kernel", Ranks: make([]RankEnvironment, 2)}}
	for range 20 {
		r.Warnings = append(r.Warnings, "this machine is not quiet")
	}
	for _, row := range summaryRows {
		providers := []string{"shm"}
		if row.layer == layerVerbs {
			providers = []string{"shm", "ibv", "tcp"}
		}
		for _, p := range providers {
			for _, n := range summarySizes {
				r.Results = append(r.Results, Result{Layer: row.layer, Pattern: row.pattern, Op: row.op, Provider: p, Bytes: n, Unit: "ns", P50: 100})
			}
		}
	}
	r.Missing = []string{"xdp: " + strings.Repeat("word ", 40)}
	var b bytes.Buffer
	printSummary(&b, r)
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.LessOrEqual(t, len(lines), 30, b.String())
	for i := 1; i <= summaryWarnings; i++ {
		require.Equal(t, "warning: this machine is not quiet", lines[i])
	}
	require.Equal(t, "and 15 more warnings, which --json prints", lines[summaryWarnings+1])
	require.Contains(t, b.String(), "word …\n")
	require.Contains(t, b.String(), "8 bytes take 1.0 times as long as a bare cache line")
}

// What draws plots for papers, PDF and fonts are not downloaded for the bench.
func TestDownloadsLittle(t *testing.T) {
	list, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	for _, path := range []string{"gonum.org", "go-pdf", "go-fonts", "go-latex", "freetype"} {
		require.NotContains(t, string(list), path)
	}
}
