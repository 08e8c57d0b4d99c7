package channel

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
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/xdp"
)

// Jobs over the wires of RoCE between the two networks of namespace_linux_test.go: every other
// rank is in the second one. Over AF_XDP those of one network share the queue of their
// interface, by the helper that runs in each.

func init() {
	services["helper"] = serveHelper
	for _, provider := range []string{"roce", "xdp"} {
		sites = append(sites, site{provider + " between networks", provider, openNetworks(provider)})
	}
}

// openNetworks makes two networks, and returns what runs jobs over both.
func openNetworks(provider string) func(t *testing.T) runner {
	return func(t *testing.T) runner {
		where := overRoCE(t, provider)
		var jobs atomic.Int32
		return func(t *testing.T, _ string, size int, act string, args ...string) (launch.Result, string) {
			t.Helper()
			places := make([]place, size)
			for i := range places {
				places[i] = where[i%2]
			}
			ranks := startRanks(t, fmt.Sprintf("198.18.0.1:%d", 20100+jobs.Add(1)), places, act, args...)
			result := launch.Result{Status: make([]int, size), First: -1}
			for i, r := range ranks {
				err := <-r.end
				if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
					require.NoError(t, err, everything(ranks))
				}
				result.Status[i] = r.cmd.ProcessState.ExitCode()
				if s := r.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
					result.Status[i] = 128 + int(s.Signal())
				}
				if result.Status[i] != 0 && result.First < 0 {
					result.First = i
				}
			}
			return result, everything(ranks)
		}
	}
}

// overRoCE makes two networks, and returns where in each a rank runs over this provider. The
// ranks of one network share an address.
func overRoCE(t *testing.T, provider string) [2]place {
	t.Helper()
	if provider == "xdp" {
		if err := xdp.Supported(); err != nil {
			t.Skip("no AF_XDP: ", err)
		}
	}
	one, two := networks(t)
	where := [2]place{{prefix: one}, {prefix: two}}
	for i := range where {
		p := &where[i]
		p.env = []string{envProvider + "=" + provider}
		if provider == "xdp" { // which reaches nobody in the same network: memory does
			p.env[0] = envProvider + "=xdp,shm"
			p.env = append(p.env, xdp.EnvHelper+"="+startHelper(t, p.prefix, fmt.Sprintf("198.18.0.%d", i+1)))
		}
	}
	return where
}

// startHelper starts the helper in a network, and returns where it listens. It ends with the test.
func startHelper(t *testing.T, prefix []string, addr string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "xdp.sock")
	argv := append(append([]string{}, prefix...), testBinary(t), path, addr)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stderr = bare("helper"), os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		require.NoError(t, cmd.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "listening\n", line)
	return path
}

// serveHelper gives seats at veth0 for an address, the second argument, until standard
// input ends. The first is where it listens.
func serveHelper(args []string) error {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: args[0], Net: "unixpacket"})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	h := &xdp.Helper{
		Addresses: []netip.Addr{netip.MustParseAddr(args[1])}, Interfaces: []string{"veth0"}, Seats: 16, Ring: 512,
		Log: slog.New(slog.DiscardHandler),
	}
	fmt.Println("listening")
	return h.Serve(ctx, l)
}
