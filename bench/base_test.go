package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// Bench of another revision is built in a worktree of its own, of which nothing is left, and
// measured by turns with ours.
func TestBase(t *testing.T) {
	need.Long(t) // builds bench
	need.Program(t, "git", "go")
	t.Setenv("TMPDIR", t.TempDir())
	left := func() {
		entries, err := os.ReadDir(os.TempDir())
		require.NoError(t, err)
		require.Empty(t, entries)
	}
	trees := said(t.Context(), "", "git", "worktree", "list")

	args := []string{"compare", "--base", "HEAD", "--only", "self channel local", "--time", "1ms"}
	told, status := fails(t, append(args, "--rounds", "2")...)
	require.Equal(t, exitFew, status, told)
	require.Contains(t, told, "2 rounds are too few")
	left()
	told, status = fails(t, "compare", "--base", "--force", "--only", "local")
	require.Equal(t, exitFailed, status, told)
	require.Contains(t, told, "--base --force: git rev-parse")
	left()
	after := said(t.Context(), "", "git", "worktree", "list")
	require.Equal(t, trees, after)

	_, status = fails(t, "compare", "--base", "HEAD", "--peers", "/")
	require.Equal(t, exitUsage, status)
}
