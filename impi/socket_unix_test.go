//go:build unix

package impi

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestSilentSocket: a socket whose other host is silent says so, and its descriptor is not lent once it
// is closed.
func TestSilentSocket(t *testing.T) {
	l := ranks.Listen(t)
	conn := ranks.Dial(t, l.Addr().String())
	made, err := newSocket(conn.(*net.TCPConn), limit)
	require.NoError(t, err)
	s := made.(*rawSocket)
	defer s.close()
	piece := [][]byte{make([]byte, 1)}
	_, err = s.readv(piece)
	require.Equal(t, errAgain, err)
	silence := errors.New("silence")
	require.NoError(t, s.Control(func(uintptr) { s.silent(silence) }))
	_, err = s.readv(piece)
	require.Equal(t, silence, err)
	_, err = s.writev(piece)
	require.Equal(t, silence, err)
	s.close()
	require.ErrorIs(t, s.Control(func(uintptr) { t.Error("lent") }), net.ErrClosed)
}
