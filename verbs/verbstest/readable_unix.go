//go:build unix

package verbstest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// readable says whether poll(2) finds a descriptor readable within d.
func readable(t *testing.T, fd int, d time.Duration) bool {
	t.Helper()
	for end := time.Now().Add(d); ; {
		left := max(0, time.Until(end))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		require.NoError(t, err)
		return n == 1
	}
}
