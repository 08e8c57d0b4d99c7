package xdp

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// lines is a log of which each line is waited for.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default: // nobody waits any more
	}
	return len(b), nil
}

// The helper goes on where it had no descriptor left for who connected.
func TestServeWithoutDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xdp.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	log := make(lines, 16)
	h := &Helper{Log: slog.New(slog.NewTextHandler(log, nil))}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx, l) }()

	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := os.NewFile(uintptr(client), "client")
	defer f.Close()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	fill := func() { // so many as there may be, of the lowest numbers
		for {
			fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return
			}
			t.Cleanup(func() { unix.Close(fd) })
		}
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: old.Max}))
	fill()
	err = unix.Connect(client, &unix.SockaddrUnix{Name: path})
	var said string
	if err == nil {
		select {
		case said = <-log:
		case err = <-done:
		}
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, err)
	require.Contains(t, said, "too many open files")

	// It answers now: a request that has no descriptor ends the connection.
	_, err = f.Write([]byte("{}"))
	require.NoError(t, err)
	_, err = f.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	stop()
	require.NoError(t, <-done)
}
