package pool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/wait"
)

func init() {
	acts["full"] = func([]string) error { return full() }
	// crowded is a supplier that may open only few more descriptors. It ends with its standard input.
	acts["crowded"] = func([]string) error {
		c := config()
		c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
		s := ranks.Must(Listen(context.Background(), "127.0.0.1:0", c))
		var free [4]int // inherited ones may lie between them
		for i := range free {
			free[i] = ranks.Must(unix.Dup(0))
		}
		for _, fd := range free {
			unix.Close(fd)
		}
		most := uint64(free[3] + 1)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
		fmt.Println(s.Addr())
		_, err := io.Copy(io.Discard, os.Stdin)
		return errors.Join(err, s.Close())
	}
}

// TestCrowded: strangers that say nothing and hold all descriptors of a supplier make room for a worker.
func TestCrowded(t *testing.T) {
	ctx := ranks.Within(t)
	var log logbuf.Buffer
	cmd := ranks.Command(ctx, "crowded")
	cmd.Stderr = &log
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	addr, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	addr = strings.TrimSpace(addr)
	for range 10 {
		ranks.Dial(t, addr)
	}
	w, err := Join(ctx, config(), addr)
	require.NoError(t, err, log.String())
	require.NoError(t, w.Close())
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait(), log.String())
	require.Contains(t, log.String(), "newer connections took the place of this one")
	require.NotContains(t, log.String(), "error=<nil>")
}

// full is a supplier that has no descriptor for a worker, and a worker that has none for a supplier, in a
// process in which nothing else opens or closes any.
func full() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var log logbuf.Buffer
	c := config()
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := ranks.Must(Listen(ctx, "127.0.0.1:0", c))
	time.AfterFunc(time.Hour, func() {}) // the runtime opens what it needs for all timers
	// A worker that needs no more descriptors to connect.
	stranger, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	next, err := unix.Dup(0)
	if err != nil {
		return err
	}
	var limit unix.Rlimit
	err = errors.Join(unix.Close(next), unix.Getrlimit(unix.RLIMIT_NOFILE, &limit),
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: limit.Max}))
	if err != nil {
		return err
	}
	says := fmt.Sprintf("too many open files: RLIMIT_NOFILE (ulimit -n) is %d", next)
	if _, err := Join(ctx, c, s.Addr().String()); !errors.Is(err, limits.ErrFiles) || !strings.Contains(err.Error(), says) {
		return fmt.Errorf("the worker says %w", err)
	}
	at := netip.MustParseAddrPort(s.Addr().String())
	if err := unix.Connect(stranger, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return err
	}
	if !wait.Until(ctx, func() bool { return strings.Contains(log.String(), says) }) {
		return fmt.Errorf("the supplier says %s", log.String())
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	w := ranks.Must(Join(ctx, c, s.Addr().String()))
	return errors.Join(w.Close(), unix.Close(stranger), s.Close())
}

// TestWithoutDescriptors: a supplier that has no descriptor for a worker says so, with the limit, and
// takes it when there is one; a worker that has none for the supplier says so at once.
func TestWithoutDescriptors(t *testing.T) {
	out, err := ranks.Command(ranks.Within(t), "full").CombinedOutput()
	require.NoError(t, err, string(out))
}
