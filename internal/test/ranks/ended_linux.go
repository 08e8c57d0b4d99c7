package ranks

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Watch returns a descriptor of a process, for [Ended]: its ID may be that of another later.
func Watch(t testing.TB, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// Ended waits until a process that has been watched has ended, for at most [Limit].
func Ended(t testing.TB, pidfd int) {
	t.Helper()
	n, err := 0, error(unix.EINTR)
	for p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}; err == unix.EINTR; {
		n, err = unix.Poll(p, int(Limit.Milliseconds()))
	}
	require.NoError(t, err)
	require.Equal(t, 1, n, "the process is still there")
}
