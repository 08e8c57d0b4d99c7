package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// envTransport forces a provider (package channel).
const envTransport = "SLUICE_TRANSPORT"

func TestMain(m *testing.M) {
	ranks.Play(map[string]func([]string) error{"wilson": func([]string) error { main(); return nil }}, ranks.Call)
	leak.Main(m)
}

// limit bounds a run: what takes longer hangs.
const limit = 100 * time.Second

// ending is how a run has ended, and what node 0, or any, has said.
type ending struct {
	status         int
	stdout, stderr string
}

// wilson runs the program as so many nodes of this host.
func wilson(t *testing.T, provider string, nodes int, args ...string) ending {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var stdout, stderr logbuf.Buffer
	r, err := launch.Run(ctx, launch.Options{
		Size: nodes, Args: append([]string{ranks.Program()}, args...),
		Env:    ranks.Environ("wilson", envTransport+"="+provider),
		Stdout: &stdout, Stderr: &stderr,
	})
	require.NoError(t, err, stderr.String())
	require.NoError(t, ctx.Err(), "it hangs: %s", stderr.String())
	return ending{r.ExitStatus(), stdout.String(), stderr.String()}
}

// succeed is wilson, which must.
func succeed(t *testing.T, provider string, nodes int, args ...string) string {
	t.Helper()
	e := wilson(t, provider, nodes, args...)
	require.Zero(t, e.status, "%s%s", e.stdout, e.stderr)
	require.Empty(t, ranks.Prompt(e.stderr))
	return e.stdout
}

// line is the part of an output after a word at the beginning of a line.
func line(t *testing.T, output, word string) string {
	t.Helper()
	for l := range strings.Lines(output) {
		if rest, ok := strings.CutPrefix(l, word); ok {
			return strings.TrimSpace(rest)
		}
	}
	require.Fail(t, "no line", "%s: %s", word, output)
	return ""
}

// links are the bytes of an archive after its header, in which there is a date.
func links(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	_, rest, ok := bytes.Cut(b, []byte("END_HEADER\n"))
	require.True(t, ok)
	return rest
}
