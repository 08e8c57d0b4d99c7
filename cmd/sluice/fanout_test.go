//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/filter"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	tests = append(tests,
		test{"fanout", testFanout},
		test{"fanout of damaged files", testFanoutDamage},
		test{"fanout, its filters killed", testFanoutKill},
		test{"fanout ended by a signal", testFanoutSignal},
		test{"fanout given up", testFanoutAbort},
		test{"fanout that fails", testFanoutFails},
		test{"fanout of a file that was read from", testFanoutRest},
		test{"fanout of a filter that ends badly", testFanoutSulky},
		test{"usage of fanout", testFanoutUsage},
		test{"generate", testGenerate},
	)
	acts["filter"] = func([]string) int {
		fmt.Fprintf(os.Stderr, "pid %d\n", os.Getpid())
		return status(filter.Serve(os.Stdin, os.Stdout, 0, func(chunk, out []byte) ([]byte, error) { return append(out, even(chunk)...), nil }))
	}
	acts["even"] = func([]string) int {
		b, err := os.ReadFile("/dev/stdin")
		if err == nil {
			_, err = os.Stdout.Write(even(b))
		}
		return status(err)
	}
	acts["deaf"] = func([]string) int {
		fmt.Fprintf(os.Stderr, "pid %d\n", os.Getpid())
		ranks.Forever()
		return 0
	}
}

func status(err error) int {
	if err != nil {
		return 1
	}
	return 0
}

// even returns the items with an even number of bytes.
func even(items []byte) (out []byte) {
	for len(items) > 0 {
		var it ring.Item
		n, err := ring.Parse(&it, items, 0)
		if err != nil {
			panic(err)
		}
		if n%2 == 0 {
			out = append(out, items[:n]...)
		}
		items = items[n:]
	}
	return out
}

// eventFile makes a file; starts has the offsets of its items, and of its end.
func eventFile(t *testing.T, c eventgen.Config) (path string, b []byte, starts []int) {
	t.Helper()
	var buf bytes.Buffer
	c.Size = eventgen.Uniform(8, 200)
	_, err := eventgen.Write(t.Context(), &buf, c, false)
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "run.evt")
	require.NoError(t, os.WriteFile(path, buf.Bytes(), 0o600))
	for at := 0; at < buf.Len(); {
		starts = append(starts, at)
		var it ring.Item
		n, err := ring.Parse(&it, buf.Bytes()[at:], 0)
		if err != nil {
			break
		}
		at += n
	}
	return path, buf.Bytes(), append(starts, buf.Len())
}

func testFanout(t *testing.T, b bed) {
	in, file, starts := eventFile(t, eventgen.Config{Events: 2000, ScalerEvery: 9})
	other, more, _ := eventFile(t, eventgen.Config{Events: 500, FirstSource: 1, Rate: eventgen.DefaultRate / 4})
	for _, c := range []struct {
		name string
		act  string
		args []string
		want []byte
	}{
		{"frames", "filter", []string{"fanout", "-workers", "3", "-in", in, "-clump", "16", "-json", "-out"}, even(file)},
		{"per chunk", "even", []string{"fanout", "--per-chunk", "--workers=2", "--in=" + in, "--json", "--out"}, even(file)},
		{"one behind the other", "filter", []string{"fanout", "--in", in, "--in", other, "--order", "source", "--json", "--out"}, append(even(file), even(more)...)},
		{"merged", "filter", []string{"fanout", "--in", in, "--in", other, "--clump", "7", "--json", "--out"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(t.TempDir(), "out.evt")
			e := succeed(t, b.command(t, c.act, append(c.args, out, b.self, "-in", "x")...))
			got := ranks.ReadFile(t, out)
			if c.want != nil {
				require.True(t, bytes.Equal(c.want, got))
			} else {
				require.Equal(t, len(even(file))+len(even(more)), len(got))
				requireMerged(t, got, even(file), even(more))
			}
			var r fanoutReport
			decode(t, e.stdout, &r)
			require.Equal(t, fanoutSchema, r.Schema)
			require.EqualValues(t, len(file), r.Inputs[0].Bytes)
			require.EqualValues(t, len(got), r.BytesOut)
			if len(r.Inputs) == 1 {
				require.EqualValues(t, len(starts)-1, r.ItemsIn)
			}
			require.Zero(t, r.Redelivered)
			require.Contains(t, e.stderr, out+": ")
			require.Contains(t, e.stderr, "worker  chunks  items")
			list, err := os.ReadDir(filepath.Dir(out))
			require.NoError(t, err)
			require.Len(t, list, 1)
		})
	}
}

// requireMerged checks a merged file: by source id, the items of each input are in their order,
// and the timestamps rise. It ignores items without a body header, which all files have.
func requireMerged(t *testing.T, got []byte, files ...[]byte) {
	t.Helper()
	pick := func(b []byte, source int) (list []string, times []uint64) {
		for len(b) > 0 {
			var it ring.Item
			n, err := ring.Parse(&it, b, 0)
			require.NoError(t, err)
			if it.HasHeader && (source < 0 || int(it.Header.SourceID) == source) {
				list = append(list, string(b[:n]))
				times = append(times, it.Header.Timestamp)
			}
			b = b[n:]
		}
		return list, times
	}
	_, times := pick(got, -1)
	for i := 1; i < len(times); i++ {
		require.LessOrEqual(t, times[i-1], times[i])
	}
	for source, f := range files {
		want, _ := pick(f, source)
		have, _ := pick(got, source)
		require.Equal(t, want, have)
	}
}

// A damaged file is named with the byte of the damage, and everything before it is written.
func testFanoutDamage(t *testing.T, b bed) {
	for _, damage := range []eventgen.Damage{eventgen.Cut, eventgen.TooSmall, eventgen.TooLarge, eventgen.LyingHeader} {
		in, file, starts := eventFile(t, eventgen.Config{Events: 300, Damage: damage, DamageItem: 137})
		out := filepath.Join(t.TempDir(), "out.evt")
		e := finish(t, b.command(t, "", "fanout", "--in", in, "--out", out, "--clump", "10", "--workers", "3", "--", "cat"))
		require.Equal(t, statusDamaged, e.status, e.stderr)
		require.Contains(t, e.stderr, fmt.Sprintf("%s: ring: byte %d: ", in, starts[137]))
		got := ranks.ReadFile(t, out)
		require.True(t, bytes.Equal(file[:starts[137]], got))
	}
}

var pidLine = regexp.MustCompile(`(?m)^pid (\d+)$`)

// told lists the process IDs that processes have written.
func (s *session) told(t *testing.T) (list []int) {
	t.Helper()
	for _, m := range pidLine.FindAllStringSubmatch(s.stderr.String(), -1) {
		pid, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		list = append(list, pid)
	}
	return list
}

// soon waits for a condition that is certain to become true.
func soon(t *testing.T, s *session, what func() bool) {
	t.Helper()
	require.Eventually(t, what, limit, time.Millisecond, "%s", s.stderr)
}

// All filters are killed, over and over: the output is complete.
func testFanoutKill(t *testing.T, b bed) {
	_, file, starts := eventFile(t, eventgen.Config{Events: 1000})
	out := filepath.Join(t.TempDir(), "out.evt")
	cmd := b.command(t, "filter", "fanout", "--in", "-", "--out", out, "--clump", "5", "--workers", "2", "--attempts", "1000", b.self)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	s := start(t, cmd)
	killed := 0
	for round := range 20 {
		// Filters that are there are killed, of which only a chunk tells, so that of the
		// next ten there is a further one.
		soon(t, s, func() bool { return len(s.told(t)) > killed })
		for _, pid := range s.told(t)[killed:] {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			killed++
		}
		_, err := stdin.Write(file[starts[round*50]:starts[(round+1)*50]])
		require.NoError(t, err)
	}
	_, err = stdin.Write(file[starts[1000]:])
	require.NoError(t, err)
	require.NoError(t, stdin.Close())
	require.Zero(t, s.status(t), s.stderr)
	got := ranks.ReadFile(t, out)
	require.True(t, bytes.Equal(even(file), got))
	require.GreaterOrEqual(t, killed, 20)
	require.Contains(t, s.stderr.String(), "a chunk was passed to another filter")
}

// A signal ends the reading: items already read are in the output, and sluice prints the offset
// in the input.
func testFanoutSignal(t *testing.T, b bed) {
	_, file, starts := eventFile(t, eventgen.Config{Events: 1000})
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		out := filepath.Join(t.TempDir(), "out.evt")
		cmd := b.command(t, "filter", "fanout", "--in", "-", "--out", out, "--clump", "5", b.self)
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		s := start(t, cmd)
		_, err = stdin.Write(file[:starts[503]+7])
		require.NoError(t, err)
		soon(t, s, func() bool { return len(s.told(t)) == 2 })
		require.NoError(t, cmd.Process.Signal(sig))
		require.Equal(t, 128+int(sig), s.status(t), s.stderr)
		m := regexp.MustCompile(`sluice fanout: - was read up to byte (\d+)\n`).FindStringSubmatch(s.stderr.String())
		require.NotNil(t, m, s.stderr)
		end, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		require.Contains(t, starts, end)
		require.LessOrEqual(t, end, starts[503])
		got := ranks.ReadFile(t, out)
		require.True(t, bytes.Equal(even(file[:end]), got))
	}
}

// After a second signal there is no output, not even a part.
func testFanoutAbort(t *testing.T, b bed) {
	in, _, _ := eventFile(t, eventgen.Config{Events: 100})
	dir := t.TempDir()
	s := start(t, b.command(t, "deaf", "fanout", "--in", in, "--out", filepath.Join(dir, "out.evt"), b.self))
	soon(t, s, func() bool { return len(s.told(t)) == 2 })
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	soon(t, s, func() bool { return strings.Contains(s.stderr.String(), "reading has stopped") })
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 128+int(syscall.SIGTERM), s.status(t), s.stderr)
	require.Contains(t, s.stderr.String(), "there is no output")
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, list)
}

// What standard input was read from already is looked at no more.
func testFanoutRest(t *testing.T, b bed) {
	_, file, _ := eventFile(t, eventgen.Config{Events: 100})
	path := filepath.Join(t.TempDir(), "rest")
	require.NoError(t, os.WriteFile(path, append([]byte{0, 0, 0, 12, 0, 0, 0, 12, 0, 0, 0, 0}, file...), 0o600))
	for at, want := range map[int64]int{0: statusJustError, 12: 0} {
		f, err := os.Open(path)
		require.NoError(t, err)
		_, err = f.Seek(at, io.SeekStart)
		require.NoError(t, err)
		cmd := b.command(t, "", "fanout", "--in", "-", "--out", "-", "cat")
		cmd.Stdin = f
		e := finish(t, cmd)
		require.NoError(t, f.Close())
		require.Equal(t, want, e.status, e.stderr)
		if want == 0 {
			require.Equal(t, string(file), e.stdout)
		}
	}
}

func testFanoutFails(t *testing.T, b bed) {
	in, _, _ := eventFile(t, eventgen.Config{Events: 100})
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("text"), 0o600))
	swapped := filepath.Join(t.TempDir(), "swapped")
	require.NoError(t, os.WriteFile(swapped, []byte{0, 0, 0, 12, 0, 0, 0, 30, 0, 0, 0, 0}, 0o600))
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--in", in, "--in", swapped, "--order", "source", "--", "cat"}, 1, swapped + ": ring: the file has ring items of NSCLDAQ 11 or 12, big-endian"},
		{[]string{"--in", in, "--", "no-such-program-anywhere"}, 127, "executable file not found"},
		{[]string{"--in", in, "--per-chunk", "--", "/no/such/file"}, 127, "no such file"},
		{[]string{"--in", in, "--", plain}, 126, "permission denied"},
		{[]string{"--in", "/no/such/file", "--", "cat"}, 1, "no such file"},
		{[]string{"--in", in, "--attempts", "2", "--", "false"}, 1, "2 workers have failed: filter: process "},
		{[]string{"--in", in, "--attempts", "2", "--timeout", "1ms", "--per-chunk", "--", "sleep", "1000"}, 1, "the filter took longer than its timeout, 1ms"},
		{[]string{"--in", in, "--attempts", "1", "--", "sh", "-c", "echo 'some text'; cat"}, 1, "a filter that prints text to standard output: print to standard error"},
		{[]string{"--in", in, "--", "sh", "-c", "cat; echo more"}, 1, "output that was not asked for: 5 bytes"},
		{[]string{"--in", in, "--attempts", "1", "--per-chunk", "--", "echo", "not ring items"}, 1, "the result is not a valid chunk: ring: byte 0: "},
	} {
		dir := t.TempDir()
		e := finish(t, b.command(t, "", append([]string{"fanout", "--out", filepath.Join(dir, "out.evt")}, c.args...)...))
		require.Equal(t, c.status, e.status, e.stderr)
		require.Contains(t, e.stderr, c.says)
		list, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, list, "%v", c.args)
	}
}

// If a filter fails after it has answered everything, the output is kept.
func testFanoutSulky(t *testing.T, b bed) {
	in, file, _ := eventFile(t, eventgen.Config{Events: 100})
	out := filepath.Join(t.TempDir(), "out.evt")
	e := finish(t, b.command(t, "", "fanout", "--in", in, "--out", out, "--workers", "1", "--", "sh", "-c", "cat; exit 9"))
	require.Equal(t, statusJustError, e.status)
	require.Contains(t, e.stderr, "end: the filter failed: exit status 9")
	got := ranks.ReadFile(t, out)
	require.True(t, bytes.Equal(file, got))
}

func testFanoutUsage(t *testing.T, b bed) {
	for _, c := range []struct{ args, says string }{
		{"fanout", "no command to run"},
		{"fanout cat", "no --in"},
		{"fanout -in x cat", "no --out"},
		{"fanout -in - -in - -out x cat", "only one --in"},
		{"fanout -in x -out - -json cat", "--json and --out -"},
		{"fanout -in x -out y -workers 0 cat", "must be at least 1"},
		{"fanout -in x -out y -window -1 cat", "must not be negative"},
		{"fanout -frob", "unknown shorthand flag"},
		{"generate", "no --out"},
		{"generate -out x -version 10", "version 10, want 11 or 12"},
		{"generate -out x -size 3", "size 3, want 8 to"},
		{"generate -out x -damage rust", "want none or cut or small or large or header"},
	} {
		e := finish(t, b.command(t, "", strings.Fields(c.args)...))
		require.Equal(t, statusBadUsage, e.status, "%v: %s", c.args, e.stderr)
		require.Contains(t, e.stderr, c.says)
	}
}

func testGenerate(t *testing.T, b bed) {
	dir := t.TempDir()
	e := succeed(t, b.command(t, "", "generate", "-events", "50", "--sources", "2", "-first-source", "3", "--version=11", "--out", dir+"/run-%d.evt"))
	for source := uint32(3); source < 5; source++ {
		var want bytes.Buffer
		_, err := eventgen.Write(t.Context(), &want, eventgen.Config{Events: 50, FirstSource: source, Version: ring.V11}, false)
		require.NoError(t, err)
		got := ranks.ReadFile(t, fmt.Sprintf("%s/run-%d.evt", dir, source))
		require.True(t, bytes.Equal(want.Bytes(), got))
	}

	// Through pipes, both ways.
	e = succeed(t, b.command(t, "", "generate", "--events", "50", "--damage", "cut", "--damage-item", "20", "--out", "-"))
	require.Contains(t, e.stderr, "damaged at byte ")
	cmd := b.command(t, "", "fanout", "--in", "-", "--out", "-", "--quiet", "--per-chunk", "cat")
	cmd.Stdin = strings.NewReader(e.stdout)
	again := finish(t, cmd)
	require.Equal(t, statusDamaged, again.status)
	require.True(t, strings.HasPrefix(e.stdout, again.stdout))
	require.Contains(t, again.stderr, fmt.Sprintf("-: ring: byte %d: ", len(again.stdout)))
}

// TestBarStoppedFirst: the line ends also where its end is known before it is drawn for the first time.
func TestBarStoppedFirst(t *testing.T) {
	var b bytes.Buffer
	bar := newBar(&b)
	tracker := &progress.Tracker{Message: "3 items written", Total: 9, AutoStopDisabled: true}
	bar.AppendTracker(tracker)
	tracker.MarkAsDone()
	bar.Stop()
	drawn := make(chan struct{})
	go func() {
		defer close(drawn)
		bar.Render()
	}()
	ranks.Closes(t, drawn)
	require.Contains(t, b.String(), "3 items written")
}

// TestFanoutReport: the help names no field, but the JSON has all that are of use.
func TestFanoutReport(t *testing.T) {
	o := fanoutOptions{out: "out.evt"}
	var b bytes.Buffer
	r := o.statistics(pipeline.Stats{Redelivered: 2, Workers: make([]pipeline.WorkerStats, 2)}, nil, pipeline.To(nil), time.Second)
	require.NoError(t, r.writeJSON(&b))
	var again fanoutReport
	require.NoError(t, json.Unmarshal(b.Bytes(), &again))
	require.Equal(t, *r, again)
	b.Reset()
	r.print(&b)
	require.Contains(t, b.String(), "; 2 times a chunk was passed to another filter\n")
}
