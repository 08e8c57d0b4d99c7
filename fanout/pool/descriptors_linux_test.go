package pool

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestWithoutDescriptors: a supplier that has no descriptor for a worker says so, with the limit, and
// takes it when there is one; a worker that has none for the supplier says so at once.
func TestWithoutDescriptors(t *testing.T) {
	var log logbuf.Buffer
	c := config()
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := listen(t, c)
	// A worker that needs no more descriptors to connect.
	stranger, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(stranger)
	next, err := unix.Dup(0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(next))
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: limit.Max}))
	func() {
		defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
		says := fmt.Sprintf("too many open files: RLIMIT_NOFILE (ulimit -n) is %d", next)
		_, err = Join(ranks.Within(t), c, s.Addr().String())
		require.ErrorIs(t, err, limits.ErrFiles)
		require.ErrorContains(t, err, says)
		at := netip.MustParseAddrPort(s.Addr().String())
		require.NoError(t, unix.Connect(stranger, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}))
		ranks.Eventually(t, func() bool { return strings.Contains(log.String(), says) })
	}()
	w, err := Join(ranks.Within(t), c, s.Addr().String())
	require.NoError(t, err)
	require.NoError(t, w.Close())
}
