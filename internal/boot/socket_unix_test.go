//go:build unix

package boot

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Only a connection that is this process's own to take is taken, and once.
func TestPMIDescriptor(t *testing.T) {
	ctx := ranks.Within(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer unix.Close(pair[1])
	env := func(fd int) func(string) (string, bool) {
		return variables("PMI_RANK=0", "PMI_SIZE=1", fmt.Sprint("PMI_FD=", fd))
	}
	var e *EnvError
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	datagrams, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	require.NoError(t, err)
	defer unix.Close(datagrams[0])
	defer unix.Close(datagrams[1])
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer unix.Close(listener)
	for _, fd := range []int{int(file.Fd()), datagrams[0], listener, 1 << 19} {
		_, err := joinFrom(ctx, env(fd))
		require.ErrorAs(t, err, &e)
		require.Equal(t, envPMIFD, e.Name)
		require.ErrorContains(t, err, "not a connection to a launcher")
		// It is what Open MPI's mpirun has passed on from a launcher around.
		j, err := joinFrom(ctx, variables("PMI_RANK=0", "PMI_SIZE=1", fmt.Sprint("PMI_FD=", fd), "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "SLUICE_PMIX=none"))
		require.NoError(t, err)
		require.NoError(t, j.Close())
	}

	// A number that no other test has.
	fd, err := unix.FcntlInt(uintptr(pair[0]), unix.F_DUPFD_CLOEXEC, 300+len(taken.fds))
	require.NoError(t, err)
	require.NoError(t, unix.Close(pair[0]))
	mine, err := takeSocket(fd)
	require.NoError(t, err)
	require.NoError(t, mine.Close())
	_, err = joinFrom(ctx, env(fd))
	require.ErrorIs(t, err, ErrJoined)
	require.ErrorAs(t, err, &e)
	require.Equal(t, envPMIFD, e.Name)

	for _, bad := range []string{"x", "2", "-1"} {
		_, err := joinFrom(ctx, variables("PMI_RANK=0", "PMI_SIZE=1", "PMI_FD="+bad))
		require.ErrorAs(t, err, &e)
		require.Equal(t, envPMIFD, e.Name)
	}
	for _, bad := range []string{"x", "host", ":1", "host:0"} {
		_, err := joinFrom(ctx, variables("PMI_ID=0", "PMI_PORT="+bad))
		require.ErrorAs(t, err, &e)
		require.Equal(t, envPMIPort, e.Name)
	}
}
