//go:build unix

package keepalive

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestGuarded: however a connection to a silent host is read or written, the error says so.
func TestGuarded(t *testing.T) {
	l := ranks.Listen(t)
	conn := ranks.Dial(t, l.Addr().String())
	g := &Guarded{Conn: conn}
	defer g.Close()
	g.fail(syscall.ETIMEDOUT)
	bytes := func() *net.Buffers { return &net.Buffers{[]byte("a"), []byte("b")} }
	_, err := WriteBuffers(g, bytes())
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	_, err = bytes().WriteTo(g)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	_, err = io.Copy(g, strings.NewReader("a"))
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	_, err = io.Copy(io.Discard, g)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.NoError(t, g.CloseWrite())
}

// TestSpare: a connection within this host has no probes, and is not watched.
func TestSpare(t *testing.T) {
	l := ranks.Listen(t)
	for name, spare := range map[string]func(*testing.T, net.Conn){
		"Spare": func(t *testing.T, conn net.Conn) { require.NoError(t, Spare(conn)) },
		"Keep":  func(t *testing.T, conn net.Conn) { require.Same(t, conn, Keep(conn, time.Minute)) },
	} {
		t.Run(name, func(t *testing.T) {
			a := ranks.Dial(t, l.Addr().String())
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
