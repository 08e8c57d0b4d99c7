package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/coll"
)

// What tune writes every process of a job reads; one that cannot is an error.
func TestTuningFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tuning")
	best := coll.DefaultSettings()
	best.MaxLinear, best.Segment = 2, 8<<10
	r := Report{Environment: takeEnvironment(nil), Settings: best.Environ()}
	require.NotEmpty(t, r.Settings)
	require.NoError(t, writeTuning(path, &r, "tcp", 3))
	t.Setenv(channel.EnvTuningFile, path)
	args := append([]string{"barrier", "--provider", "tcp"}, tiny...)
	output(t, args...)

	require.NoError(t, writeTuning(path, &Report{}, "tcp", 3))
	output(t, args...)

	require.NoError(t, os.WriteFile(path, []byte("COLL_XSIZE=often\n"), 0o600))
	said, status := fails(t, args...)
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, path)
}
