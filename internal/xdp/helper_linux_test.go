package xdp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// lines is a log of which each line is waited for.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default: // no call waits any more
	}
	return len(b), nil
}

// The helper goes on after it had no descriptor left for a connection.
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
	require.Contains(t, said, "too many open files: RLIMIT_NOFILE (ulimit -n) is 64")

	// It answers now: a request that has no descriptor ends the connection.
	_, err = f.Write([]byte("{}"))
	require.NoError(t, err)
	_, err = f.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	stop()
	require.NoError(t, <-done)
}

// Whatever a request holds, and whatever descriptors come with it: it is answered with why there
// is no seat, or not at all, and no descriptor stays open.
func FuzzRequests(f *testing.F) {
	open := func(domain, kind int, addr unix.Sockaddr) int {
		fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
		require.NoError(f, err)
		f.Cleanup(func() { unix.Close(fd) })
		if addr != nil {
			require.NoError(f, unix.Bind(fd, addr))
		}
		return fd
	}
	loop := [4]byte{127, 0, 0, 1}
	rights := []int{
		open(unix.AF_INET, unix.SOCK_DGRAM, &unix.SockaddrInet4{Addr: loop}),
		open(unix.AF_INET, unix.SOCK_DGRAM, nil),
		open(unix.AF_INET, unix.SOCK_STREAM, &unix.SockaddrInet4{Addr: loop}),
		open(unix.AF_UNIX, unix.SOCK_DGRAM, nil),
	}
	for i, b := range []string{`{"interface":"sluice-none"}`, `{"interface":"lo"}`, `{}`, `null`, `[]`, `{"interface":`, ``,
		`{"interface":7}`, `{"interface":"sluice-none","interface":"lo"}`} {
		f.Add([]byte(b), byte(1), byte(i))
		f.Add([]byte(b), byte(i), byte(0))
	}
	f.Add(bytes.Repeat([]byte(" "), maxMessage+1), byte(1), byte(0))
	h := &Helper{Group: os.Getgid(), Interfaces: []string{"sluice-none"}, Seats: 2, Ring: 16, Log: slog.New(slog.DiscardHandler), ports: map[string]*shared{}}
	serve := func(t testing.TB, b []byte, fds []int) []byte {
		two, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(two[0])
		server := os.NewFile(uintptr(two[1]), "")
		c, err := net.FileConn(server)
		server.Close()
		require.NoError(t, err)
		require.NoError(t, unix.Sendmsg(two[0], b, unix.UnixRights(fds...), nil, 0))
		if len(b) == 0 {
			unix.Shutdown(two[0], unix.SHUT_WR)
		}
		h.serve(c.(*net.UnixConn))
		c.Close()
		said := make([]byte, maxMessage)
		n, err := unix.Read(two[0], said)
		for err == unix.EINTR {
			n, err = unix.Read(two[0], said)
		}
		if err != nil {
			n = 0
		}
		return said[:n]
	}
	f.Fuzz(func(t *testing.T, b []byte, many, which byte) {
		fds := make([]int, many%8)
		for i := range fds {
			fds[i] = rights[(int(which)+i)%len(rights)]
		}
		b = b[:min(len(b), 2*maxMessage)]
		free, err := dup(rights[0])
		require.NoError(t, err)
		unix.Close(free)
		if said := serve(t, b, fds); len(said) > 0 {
			var r reply
			require.NoError(t, json.Unmarshal(said, &r))
			require.NotEmpty(t, r.Error)
		}
		require.Empty(t, h.ports)
		again, err := dup(rights[0])
		require.NoError(t, err)
		unix.Close(again)
		require.Equal(t, free, again, "the lowest descriptor that is free")
	})
}

// TestUserAfterUser: a user that comes after another has left, which the helper may have yet to see, waits for that.
// It is refused while the other is there.
func TestUserAfterUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
		conn, err := net.FileConn(near)
		require.NoError(t, errors.Join(err, near.Close()))
		first := conn.(*net.UnixConn)
		defer first.Close()

		const netdev = "no such device"
		s := &shared{uid: 1, users: map[*net.UnixConn]struct{}{first: {}}, closed: make(chan struct{})}
		h := &Helper{ports: map[string]*shared{netdev: s}}
		second := new(net.UnixConn)
		_, err = h.enter(second, 2, netdev)
		require.ErrorIs(t, err, ErrForbidden)

		require.NoError(t, far.Close())
		var after error
		go func() { _, after = h.enter(second, 2, netdev) }()
		synctest.Wait()
		require.NoError(t, after, "it waits")
		h.exit(first, s, netdev)
		synctest.Wait()
		require.ErrorContains(t, after, "no such network interface") // it opens the port
		require.Empty(t, h.ports)
	})
}
