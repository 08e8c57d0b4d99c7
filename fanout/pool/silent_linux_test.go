package pool

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/netns"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestSilentSupplier: a supplier that has accepted and does not answer is waited for beyond Timeout, with
// warnings, until it does.
func TestSilentSupplier(t *testing.T) {
	here := func(f func() error) error { return f() }
	wants := func(t *testing.T, timeout time.Duration, warnings int, addr string, near, far func(func() error) error) {
		ctx := ranks.Within(t)
		var log logbuf.Buffer
		c := config()
		c.Log, c.Timeout = slog.New(slog.NewTextHandler(&log, nil)), timeout
		var l net.Listener
		require.NoError(t, far(func() (err error) {
			l, err = net.Listen("tcp", addr)
			return err
		}))
		defer l.Close()
		require.NoError(t, near(func() error { // once the links are up
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return err
			}
			return conn.Close()
		}))
		settled, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, settled.Close())
		var w *Worker
		joined := make(chan error, 1)
		go func() {
			joined <- near(func() (err error) {
				w, err = Join(ctx, c, l.Addr().String())
				return err
			})
		}()
		says := "has accepted and does not answer; it is waited for\" supplier=" + l.Addr().String()
		ranks.Eventually(t, func() bool { return strings.Count(log.String(), says) >= warnings || len(joined) > 0 })
		select {
		case err := <-joined:
			require.FailNow(t, "Join has not waited", "%v", err)
		default:
		}
		conn, err := l.Accept()
		require.NoError(t, err)
		defer conn.Close()
		_, err = proof.Accept(conn, c.proof(), nil)
		require.NoError(t, err)
		require.NoError(t, <-joined)
		require.NoError(t, w.Close())
	}
	t.Run("this host", func(t *testing.T) { wants(t, 100*time.Millisecond, 2, "127.0.0.1:0", here, here) })
	t.Run("another host", func(t *testing.T) {
		need.Networks(t)
		need.Full(t)
		star, err := netns.NewStar(2)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, star.Close()) })
		wants(t, 3*time.Second, 1, net.JoinHostPort(netns.Address(1).String(), "0"), star.Hosts[0].In, star.Hosts[1].In)
	})
}

// TestFullQueue: a supplier of this host whose process does not take connections is tried again beyond
// Timeout.
func TestFullQueue(t *testing.T) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(s)
	require.NoError(t, unix.Bind(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(s, 0)) // of one connection
	name, err := unix.Getsockname(s)
	require.NoError(t, err)
	at := name.(*unix.SockaddrInet4)
	addr := netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)).String()
	ranks.Dial(t, addr)

	var log logbuf.Buffer
	c := config()
	c.Log, c.Timeout = slog.New(slog.NewTextHandler(&log, nil)), 100*time.Millisecond
	ctx, cancel := context.WithCancel(ranks.Within(t))
	defer cancel()
	joined := make(chan error, 1)
	go func() {
		_, err := Join(ctx, c, addr)
		joined <- err
	}()
	ranks.Eventually(t, func() bool {
		return strings.Contains(log.String(), "the queue of a supplier is full") || len(joined) > 0
	})
	require.Empty(t, joined, "Join has not waited")
	for range 2 { // the first, and the worker
		conn, _, err := unix.Accept(s)
		require.NoError(t, err)
		defer unix.Close(conn)
	}
	ranks.Eventually(t, func() bool { return strings.Contains(log.String(), "has accepted") || len(joined) > 0 })
	cancel()
	require.ErrorIs(t, <-joined, context.Canceled)
}
