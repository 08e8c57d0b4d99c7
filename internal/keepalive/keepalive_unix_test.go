//go:build unix

package keepalive

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSpare: a connection within this host has no probes, and is not watched.
func TestSpare(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for name, spare := range map[string]func(*testing.T, net.Conn){
		"Spare": func(t *testing.T, conn net.Conn) { require.NoError(t, Spare(conn)) },
		"Keep":  func(t *testing.T, conn net.Conn) { require.Same(t, conn, Keep(conn, time.Minute)) },
	} {
		t.Run(name, func(t *testing.T) {
			a, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer a.Close()
			require.True(t, Local(a))
			spare(t, a)
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
			spare(t, b)
		})
	}
}
