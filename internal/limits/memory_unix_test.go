//go:build unix

package limits

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Without a descriptor nothing says what room there is: that is no leave to take it.
func TestFitsWithoutDescriptor(t *testing.T) {
	require.NoError(t, Fits(1))
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}))
	err := Fits(1)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, ErrFiles)
	require.ErrorContains(t, err, "RLIMIT_NOFILE")
}
