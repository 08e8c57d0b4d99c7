package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/test/need"
	procs "github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// bound is when a run that takes a second counts as hung: a loaded machine with
// the race detector is a hundred times slower.
const bound = 2 * time.Minute

// bench is this program with arguments; see TestMain.
func bench(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = environment()
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// environment is that of a bench. The race detector, where the tests have it,
// is told to keep quiet there, and to end without its second of sleep: it cannot
// know that a message between two processes orders what they do to registered
// memory, and takes every such use for a race.
func environment() []string {
	return append(os.Environ(), envMain+"=1", "GORACE=report_bugs=0 atexit_sleep_ms=0")
}

// output runs bench and returns what it printed, which must go well.
func output(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	cmd := bench(ctx, args...)
	var told bytes.Buffer
	cmd.Stderr = &told
	out, err := cmd.Output()
	require.NoError(t, err, "%v\n%s", args, told.Bytes())
	require.Empty(t, procs.Prompt(told.String()), "no progress line, no error")
	return out
}

// fails runs bench and returns what it said, with its exit status.
func fails(t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	out, err := bench(ctx, args...).CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	return string(out), exit.ExitCode()
}

// providers that are there, but for those on request.
func providers(t *testing.T) []string {
	t.Helper()
	devs, err := verbs.Devices()
	require.NoError(t, err)
	var names []string
	for _, d := range devs {
		if !d.OnRequest() && !slices.Contains(names, d.Provider()) {
			names = append(names, d.Provider())
		}
	}
	require.Contains(t, names, "tcp")
	return names
}

// decode reads --json and verifies its shape: every field of the schema is in
// every result, whatever its value.
func decode(t *testing.T, out []byte) Report {
	t.Helper()
	var raw struct {
		Schema      string
		Environment map[string]any
		Results     []map[string]any
	}
	require.NoError(t, json.Unmarshal(out, &raw), "%s", out)
	require.Equal(t, schema, raw.Schema)
	validate(t, out)
	for _, field := range []string{"time", "bench", "cpu", "cpus", "os", "arch", "go", "gomaxprocs"} {
		require.NotEmpty(t, raw.Environment[field], field)
	}
	for _, r := range raw.Results {
		for _, field := range []string{"pattern", "layer", "provider", "peer", "bytes", "unit", "min", "p50", "p99", "p999", "max", "mean", "samples"} {
			require.Contains(t, r, field)
		}
	}
	var r Report
	d := json.NewDecoder(bytes.NewReader(out))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&r))
	require.ErrorIs(t, d.Decode(&r), io.EOF, "one object")
	for i := range r.Results {
		require.NoError(t, r.Results[i].check(), "%+v", r.Results[i])
	}
	return r
}

// tiny makes a run short.
var tiny = []string{"--time", "1ms", "--warmup", "100us"}

func TestVerbs(t *testing.T) {
	need.Full(t)
	for _, provider := range providers(t) {
		for _, c := range []struct {
			name string
			args []string
			want []int64
			mode string
		}{
			{"lat send", []string{"lat", "--sizes", "0,8,1k,64k,1M"}, []int64{0, 8, 1 << 10, 64 << 10, 1 << 20}, modeEach},
			{"lat send batch", []string{"lat", "--sizes", "8", "--batch"}, []int64{8}, modeBatch},
			{"lat write", []string{"lat", "--op", "write", "--sizes", "1,8,64k", "--batch=10"}, []int64{1, 8, 64 << 10}, modeBatch},
			{"lat write-imm", []string{"lat", "--op", "write-imm", "--sizes", "0,8,64k"}, []int64{0, 8, 64 << 10}, modeEach},
			{"lat read", []string{"lat", "--op", "read", "--sizes", "8,64k"}, []int64{8, 64 << 10}, modeEach},
			{"lat fetch-add", []string{"lat", "--op", "fetch-add"}, []int64{8}, modeEach},
			{"lat cmp-swap", []string{"lat", "--op", "cmp-swap"}, []int64{8}, modeEach},
			{"lat events", []string{"lat", "--events", "--sizes", "8,64k", "--iters", "50"}, []int64{8, 64 << 10}, modeEach},
			{"lat heap", []string{"lat", "--memory", "heap", "--sizes", "8,64k"}, []int64{8, 64 << 10}, modeEach},
			{"lat no inline, all signalled", []string{"lat", "--inline", "0", "--signal-every", "1", "--sizes", "8"}, []int64{8}, modeEach},
			{"lat rounds", []string{"lat", "--rounds", "3", "--sizes", "8,64"}, []int64{8, 64}, modeEach},
			{"bw write", []string{"bw", "--sizes", "1,64k,1M"}, []int64{1, 64 << 10, 1 << 20}, modeBatch},
			{"bw send", []string{"bw", "--op", "send", "--sizes", "8,64k"}, []int64{8, 64 << 10}, modeBatch},
			{"bw read, window of 1", []string{"bw", "--op", "read", "--sizes", "8,64k", "--window", "1"}, []int64{8, 64 << 10}, modeBatch},
			{"bw mean", []string{"bw", "--mean", "--list", "1", "--sizes", "64k"}, []int64{64 << 10}, modeBatch},
			{"bibw write", []string{"bibw", "--sizes", "8,64k"}, []int64{8, 64 << 10}, modeBatch},
			{"bibw send", []string{"bibw", "--op", "send", "--sizes", "8,1k,64k", "--window", "7", "--list", "3", "--signal-every", "5"}, []int64{8, 1 << 10, 64 << 10}, modeBatch},
			{"bibw read", []string{"bibw", "--op", "read", "--sizes", "64k"}, []int64{64 << 10}, modeBatch},
			{"bw events", []string{"bw", "--op", "send", "--events", "--sizes", "8,64k"}, []int64{8, 64 << 10}, modeBatch},
			{"rate send", []string{"rate", "--sizes", "0,8"}, []int64{0, 8}, modeBatch},
			{"rate send, more credits in one go than there are receives", []string{"rate", "--sizes", "8", "--warmup", "60ms"}, []int64{8}, modeBatch},
			{"rate write-imm", []string{"rate", "--op", "write-imm", "--sizes", "8", "--iters", "5000"}, []int64{8}, modeBatch},
			{"rate fetch-add", []string{"rate", "--op", "fetch-add"}, []int64{8}, modeBatch},
		} {
			t.Run(provider+" "+c.name, func(t *testing.T) {
				args := append([]string{"verbs", c.args[0], "--provider", provider, "--json"}, tiny...)
				r := decode(t, output(t, append(args, c.args[1:]...)...))
				require.Len(t, r.Environment.Devices, 1)
				require.Equal(t, provider, r.Environment.Devices[0].Provider)
				require.Len(t, r.Environment.Ranks, 2)
				require.NotEmpty(t, r.Environment.Options)
				var got []int64
				for _, v := range r.Results {
					require.Equal(t, c.args[0], v.Pattern)
					require.Equal(t, layerVerbs, v.Layer)
					require.Equal(t, peerSluice, v.Peer)
					require.Equal(t, c.mode, v.Mode)
					require.True(t, v.Verified)
					require.NotNil(t, v.AllocsPerMessage)
					require.Equal(t, provider == providerIBV, v.CrossingsPerMessage != nil)
					if slices.Contains(c.args, "--mean") {
						require.EqualValues(t, 1, v.Samples)
					}
					require.Positive(t, v.P50)
					got = append(got, v.Bytes)
				}
				require.Equal(t, c.want, got)
			})
		}
	}
}

// The whole of the program as a new user starts it.
func TestSelfLaunch(t *testing.T) {
	r := decode(t, output(t, "--time", "1ms", "--sizes", "8,64k", "--json"))
	var got []string
	for _, v := range r.Results {
		got = append(got, v.Provider+" "+v.Pattern+" "+strconv.FormatInt(v.Bytes, 10))
	}
	var want []string
	for _, p := range providers(t) {
		for _, pattern := range []string{"lat", "bw"} {
			want = append(want, p+" "+pattern+" 8", p+" "+pattern+" 65536")
		}
	}
	require.Equal(t, want, got)
}

func TestTable(t *testing.T) {
	out := string(output(t, append([]string{"verbs", "lat", "--provider", "tcp", "--sizes", "8,64k", "--allocs", "--rounds", "2"}, tiny...)...))
	for _, part := range []string{"CPU ", "Go ", "rank 1", "tcp verbs lat, send, device tcp_lo: half a round trip", "device   tcp", "p99.9", "spread", "allocs/msg", "64k"} {
		require.Contains(t, out, part)
	}
	require.NotContains(t, out, "\x1b", "no terminal, no control sequences")
	out = string(output(t, append([]string{"verbs", "lat", "--provider", "tcp", "--sizes", "8", "--batch"}, tiny...)...))
	require.Contains(t, out, "means of batches")
	out = string(output(t, append([]string{"verbs", "bw", "--provider", "tcp", "--sizes", "64k"}, tiny...)...))
	require.Contains(t, out, "tcp verbs bw, write, up to 64 outstanding, device tcp_lo: one way")
}

func TestCSV(t *testing.T) {
	table, err := csv.NewReader(bytes.NewReader(output(t, append([]string{"verbs", "lat", "--provider", "tcp", "--sizes", "8,64", "--csv"}, tiny...)...))).ReadAll()
	require.NoError(t, err)
	require.Len(t, table, 3)
	for name, want := range map[string]string{"pattern": "lat", "layer": "verbs", "provider": "tcp", "peer": "sluice", "op": "send", "bytes": "8", "unit": "ns"} {
		require.Equal(t, want, table[1][slices.Index(table[0], name)], name)
	}
	require.Equal(t, "64", table[2][slices.Index(table[0], "bytes")])
	for _, name := range []string{"min", "p50", "p99", "p999", "max", "mean"} {
		v, err := strconv.ParseFloat(table[1][slices.Index(table[0], name)], 64)
		require.NoError(t, err)
		require.Positive(t, v)
	}
}

// inJob runs a command as the ranks of a job of ours, as "sluice run" does, and returns what they say of
// the measurement.
func inJob(t *testing.T, size int, args ...string) (launch.Result, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	var out bytes.Buffer
	r, err := launch.Run(ctx, launch.Options{Size: size, Args: args, Env: environment(), Stdout: &out, Stderr: &out})
	require.NoError(t, err)
	return r, procs.Prompt(out.String())
}

func TestInJob(t *testing.T) {
	r, out := inJob(t, 2, append([]string{os.Args[0], "verbs", "lat", "--provider", "tcp", "--sizes", "8", "--json"}, tiny...)...)
	require.Zero(t, r.ExitStatus(), out)
	require.Len(t, decode(t, []byte(out)).Results, 1)
}

func TestWrongJob(t *testing.T) {
	for _, size := range []int{1, 3} {
		r, out := inJob(t, size, os.Args[0], "verbs", "lat")
		require.Equal(t, exitFailed, r.ExitStatus())
		require.Contains(t, out, "runs between 2 ranks, but the job has "+strconv.Itoa(size))
	}
	need.Program(t, "sh") // to give ranks different options
	r, out := inJob(t, 2, "sh", "-c", os.Args[0]+" verbs lat --provider tcp --sizes $((8 + "+boot.EnvRank+"))")
	require.Equal(t, exitFailed, r.ExitStatus())
	require.Contains(t, out, "different options")
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		says string
	}{
		{"verbs", "want lat, bw, bibw, rate, cq, or several of them"},
		{"verbs lat extra", "unknown command or argument \"extra\""},
		{"nosuch", "unknown command or argument \"nosuch\""},
		{"node7.example node8.example", "unknown command or argument \"node8.example\""},
		{"verbs lat node7.example --listen :1", "--listen and a host (node7.example:18516) exclude each other"},
		{"halo [::1]:7 --listen :1", "--listen and a host ([::1]:7) exclude each other"},
		{"verbs lat --op teleport", "want send, write"},
		{"verbs lat --sizes 8:4", "8 is more than 4"},
		{"verbs lat --sizes big", `invalid value "big" of --sizes: "big" is not a size; want sizes, such as 1,1k,1M`},
		{"allreduce --doubles x", `invalid value "x" of --doubles: "x" is not a size; want sizes, such as 1,1k,1M`},
		{"verbs lat --op write --sizes 0", "the peer cannot see a write of 0 bytes"},
		{"verbs lat --op fetch-add --sizes 16", "fetch-add has 8 bytes"},
		{"verbs bw --sizes 0", "bandwidth of 0 bytes"},
		{"verbs lat --op write --events", "no completion to wait for"},
		{"verbs lat --time 0s", "--time 0s"},
		{"verbs lat --time soon", `invalid value "soon" of --time: want a duration with its unit, such as 500ms or 10s`},
		{"verbs lat --memory disk", "--memory \"disk\": want alloc, heap"},
		{"verbs lat --memory alloc>heap", "the same kind of memory at both ends"},
		{"channel lat,nosuch", "unknown command or argument \"nosuch\""},
		{"channel lat,bw --late --op send", "unknown flag"},
		{"verbs bw --window 0", "--window 0: want 1 to"},
		{"verbs lat --rounds 0", "--rounds 0: want 1 to"},
		{"verbs lat --provider tcp --device tcp_lo", "exclude each other"},
		{"verbs lat --json --csv", "exclude each other"},
		{"verbs lat --no-such-flag", "unknown flag"},
		{"compare --rounds -1", "--rounds -1"},
		{"channel", "want lat, bw, bibw, rate, halo, ring, local, barrier, "},
		{"channel lat --memory disk", "--memory \"disk\": want alloc, heap"},
		{"channel bw --sizes 0", "bandwidth of 0 bytes"},
		{"channel rate --window 0", "--window 0: want 1 to"},
		{"channel lat --rounds 0", "--rounds 0: want 1 to"},
		{"channel lat --window 3", "unknown flag"},
		{"impi latency", "unknown command or argument \"latency\""},
		{"impi --rounds -1", "--rounds -1"},
		{"impi lat --carrier pigeon", "--carrier \"pigeon\": want shm, ibv, tcp"},
		{"impi bw --sizes 0", "bandwidth of 0 bytes"},
		{"impi rate --window 0", "--window 0: want 1 to"},
		{"impi lat --window 3", "unknown flag"},
		{"halo --axis x,u", "--axis \"u\": want x, y, z, t, all"},
		{"halo --halo folded", "--halo \"folded\": want packed, strided"},
		{"ring --ranks 1", "--ranks 1: want 2 to"},
		{"allreduce --sizes 12", "--sizes 12: want whole doubles"},
		{"allreduce --sizes 8 --doubles 1", "exclude each other"},
		{"allreduce --doubles 256M", "--doubles 256M: at most 128M"},
		{"allreduce --call shouted", "--call \"shouted\": want called, declared"},
		{"allreduce --memory disk", "--memory \"disk\": want alloc, heap"},
		{"allreduce --each --batch 3", "--each and --batch exclude each other"},
		{"barrier --sizes 8", "unknown flag"},
		{"exact --call declared", "unknown flag"},
		{"collectives --kinds barrier,sum", "--kinds \"sum\": want barrier"},
		{"bcast -n 0", "--ranks 0: want 1 to"},
		{"addslice --sizes 12", "--sizes 12: want whole doubles"},
		{"channel lat --sizes 8,100 --blocks 8", "--blocks 8: a message of 100 is not a multiple of that"},
		{"channel bw --sizes 0,8 --blocks 8", "bandwidth of 0 bytes"},
		{"channel lat --sizes 0 --blocks 8", "a message of 0 is not"},
		{"channel lat --packed", "--packed needs --blocks"},
		{"channel bw --late", "unknown flag"},
		{"ring --blocks 8", "unknown flag"},
		{"tune --provider shm", "no algorithms to choose from"},
		{"tune --kinds exact", "--kinds \"exact\": want barrier"},
		{"tune --sizes 9", "--sizes 9: want whole doubles"},
		{"tune -n 1", "--ranks 1: want 2 to"},
		{"tune --csv --exports", "--csv, --json and --exports exclude each other"},
		{"tune --what noise", "--what \"noise\": want collectives, eager"},
		{"scale --latency 100", "want all of them, at least 0, or none"},
		{"scale --hosts 2:8192", "--hosts 8192: want 1 to 4096"},
		{"scale --kinds allgather,exact", "--kinds \"exact\": want barrier"},
		{"scale --copy -1", "want at least 0"},
		{"compare --only (", "--only \"(\""},
		{"soak -t 0s", "--time 0s: want more than 0"},
		{"soak -n 1", "--ranks 1: want 2 to"},
		{"soak --csv --json", "exclude each other"},
		{"soak --html x.html", "soak takes neither --listen nor --html"},
		{"--html /nosuch/x.html", "--html /nosuch/x.html: "},
		{"tune --file /nosuch/tuning", "--file /nosuch/tuning: "},
		{"report", "want files"},
		{"report --by size a.json", "--by \"size\": want provider, peer, all"},
	} {
		out, status := fails(t, strings.Fields(c.args)...)
		require.Contains(t, out, c.says, c.args)
		require.Equal(t, exitUsage, status, c.args)
		require.Equal(t, 1, strings.Count(out, "bench: "), "said once: %s", out)
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		args   string
		says   string
		status int
	}{
		{"verbs lat --device nosuch0", "no such device", exitFailed},
		{"channel lat --provider nosuch", "no such device", exitFailed},
		{"allreduce --provider nosuch", "no such device", exitFailed},
		{"tune --provider nosuch", "no such device", exitFailed},
		{"verbs lat --provider tcp --sizes 8 --inline 1000000", "--inline 1000000: the device accepts at most", exitUsage},
	} {
		out, status := fails(t, strings.Fields(c.args)...)
		require.Contains(t, out, c.says, c.args)
		require.Equal(t, c.status, status, c.args)
		require.Equal(t, 1, strings.Count(out, "bench: "), "said once: %s", out)
	}
}
