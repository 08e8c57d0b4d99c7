//go:build unix

package keepalive

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSpare: a connection within this host has no probes.
func TestSpare(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer a.Close()
	require.True(t, Local(a))
	require.NoError(t, Spare(a))
	raw, err := a.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		on, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)
		require.NoError(t, err)
		require.Zero(t, on)
	}))
	b, _ := net.Pipe()
	defer b.Close()
	require.False(t, Local(b))
	require.NoError(t, Spare(b))
}
