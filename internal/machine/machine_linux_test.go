package machine_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestContainer: a process with a network of its own is on another host for us, but its
// CPUs are ours.
func TestContainer(t *testing.T) {
	cmd := teller()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	out, err := cmd.Output()
	var refused error
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		refused = err
	}
	need.Probe(t, "a network namespace", refused)
	require.NoError(t, err)
	id, kernel := told(t, out)
	ours, err := machine.ID()
	require.NoError(t, err)
	require.NotEqual(t, ours, id)
	same(t, kernel, machine.Kernel)
}

// TestNoDescriptor: a process without descriptors says so, rather than be on a machine of its own.
func TestNoDescriptor(t *testing.T) {
	machine.Forget() // as in a process that has not asked yet
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}))
	_, err := machine.ID()
	_, kerr := machine.Kernel()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, limits.ErrFiles)
	require.ErrorIs(t, kerr, limits.ErrFiles)
}
