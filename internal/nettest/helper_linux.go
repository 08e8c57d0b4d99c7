package nettest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/xdp"
)

// envHelper has this program be a helper for AF_XDP, in place of its tests: where it listens,
// and for which address.
const envHelper = "SLUICE_TEST_HELPER"

// startHelper starts the helper inside, and returns where it listens. It ends with the test.
func (n Network) startHelper(t *testing.T, addr string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "xdp.sock")
	argv := append(n.Command(), ranks.Program())
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stderr = append(os.Environ(), envHelper+"="+addr+","+path), os.Stderr
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

// serveHelper gives seats at veth0 for an address until standard input ends.
func serveHelper(addr, path string) error {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	h := &xdp.Helper{
		Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Interfaces: []string{"veth0"}, Seats: 16, Ring: 512,
		Log: slog.New(slog.DiscardHandler),
	}
	fmt.Println("listening")
	return h.Serve(ctx, l)
}
