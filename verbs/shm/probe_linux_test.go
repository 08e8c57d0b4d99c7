package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/verbs"
)

// TestProbeWithoutDescriptors: a process that has no descriptor left for a moment does not lose the
// provider in silence: the device is listed, and opening it says what is missing.
func TestProbeWithoutDescriptors(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}))
	probe := provider{}.Probe()
	devices, err := verbs.Devices()
	var openErr error
	for _, d := range devices {
		_, openErr = d.Open(verbs.Config{Insecure: true})
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.Equal(t, verbs.Unknown, probe.Answer)
	require.Contains(t, probe.Reason, "RLIMIT_NOFILE (ulimit -n) is 1")
	require.NoError(t, err)
	require.Len(t, devices, 1)
	require.Equal(t, deviceName, devices[0].Name())
	require.ErrorIs(t, openErr, limits.ErrFiles)
}
