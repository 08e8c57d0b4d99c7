package roce

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/xdp"
)

// envUser makes this process run as that user and group, without privileges.
const envUser = "SLUICE_ROCETEST_USER"

var acts = map[string]func(args []string) error{
	"helper": func(args []string) error { return serveHelper(args[0]) }, // listening at this path
	"member": func(args []string) error { return beMember(args[0]) },    // of the group of this address, until standard input ends
}

// The user and the group of processes without privileges.
const uidNobody = 65534

// prepare runs before the tests and the acts.
func prepare() {
	if user := os.Getenv(envUser); user != "" {
		if err := become(user); err != nil {
			fmt.Fprintln(os.Stderr, "drop privileges:", err)
			os.Exit(1)
		}
	}
}

// become gives all privileges up.
func become(user string) error {
	id, err := strconv.Atoi(user)
	if err != nil {
		return err
	}
	for _, f := range []func() error{
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setgid(id) },
		func() error { return syscall.Setuid(id) },
		// Otherwise /proc/self, which the leak check reads, belongs to root.
		func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) },
	} {
		if err := f(); err != nil {
			return err
		}
	}
	if err := xdp.Supported(); !errors.Is(err, xdp.ErrPrivilege) {
		return fmt.Errorf("AF_XDP without the helper: %v", err)
	}
	return nil
}

// serveHelper runs the helper until standard input ends.
func serveHelper(path string) error {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	h := &xdp.Helper{
		Group: uidNobody, Interfaces: []string{"veth0"}, Seats: 8, Ring: 512,
		Log: slog.New(slog.NewTextHandler(os.Stdout, nil)),
	}
	for i := range 2 {
		h.Addresses = append(h.Addresses, netip.MustParseAddr(fmt.Sprintf("198.18.0.%d", i+1)), netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+1)))
	}
	fmt.Println("listening")
	return h.Serve(ctx, l)
}

// startHelper starts the helper in a host, and returns its path, and its log, which ends with it.
func startHelper(t testing.TB, h host) (path string, log *bufio.Scanner) {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o755)) // others are to reach it
	}
	path = filepath.Join(dir, "xdp.sock")
	cmd := ranks.Command(context.Background(), "helper", path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, h.in(cmd.Start))
	t.Cleanup(func() {
		in.Close()
		require.NoError(t, cmd.Wait())
	})
	log = bufio.NewScanner(out)
	require.True(t, log.Scan())
	require.Equal(t, "listening", log.Text())
	return path, log
}
