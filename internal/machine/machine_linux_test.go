package machine

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

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
	require.NotEqual(t, ID(), id)
	require.Equal(t, Kernel(), kernel)
}
