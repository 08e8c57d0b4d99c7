package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	tests = append(tests,
		test{"fanout killed", testFanoutKilled},
		test{"fanout on a terminal", testFanoutTerminal},
	)
}

// A sluice that is killed, so that it cannot clean up, leaves no output under the final name,
// and no filter.
func testFanoutKilled(t *testing.T, b bed) {
	_, file, starts := eventFile(t, eventgen.Config{Events: 1000})
	out := filepath.Join(t.TempDir(), "out.evt")
	cmd := b.command(t, "filter", "fanout", "--in", "-", "--out", out, "--workers", "3", b.self)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	s := start(t, cmd)
	_, err = stdin.Write(file[:starts[700]])
	require.NoError(t, err)
	soon(t, s, func() bool { return len(s.told(t)) == 3 })
	var fds []int
	for _, pid := range s.told(t) {
		fds = append(fds, ranks.Watch(t, pid))
	}
	require.NoError(t, cmd.Process.Kill())
	for _, fd := range fds {
		ranks.Ended(t, fd)
	}
	require.NoFileExists(t, out)
	require.FileExists(t, out+pipeline.Part)
}

// On a terminal a line shows the progress; log lines appear beside it.
func testFanoutTerminal(t *testing.T, b bed) {
	ours, theirs := terminals(t)
	in, file, _ := eventFile(t, eventgen.Config{Events: 1000})
	out := filepath.Join(t.TempDir(), "out.evt")
	cmd := b.command(t, "", "fanout", "--in", in, "--out", out, "cat")
	cmd.Stderr = theirs
	said := make(chan string)
	go func() {
		b, _ := io.ReadAll(ours) // it fails when the other end is closed
		said <- string(b)
	}()
	err := cmd.Run()
	theirs.Close()
	text := <-said
	require.NoError(t, err, text)
	require.Contains(t, text, "1003 items written")
	require.Contains(t, text, out+": 1003 items")
	got := ranks.ReadFile(t, out)
	require.Len(t, got, len(file))
}

// terminals returns both ends of a pseudo-terminal (pty(7)).
func terminals(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { ours.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	return ours, theirs
}
