package channel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Here a provider looks as if it worked, and does not: the next one is taken, both
// ranks say so, and nothing is lost.

// TestFallbackBetweenNetworks: shared memory is asked for first, towards a rank
// whose socket cannot be seen.
func TestFallbackBetweenNetworks(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Networks(t)
	need.Full(t)
	one, two := networks(t)
	env := []string{envProviders + "=shm,tcp"}
	fallsBack(t, startRanks(t, "198.18.0.1:20003", []nettest.Place{{Prefix: one, Env: env}, {Prefix: two, Env: env}}, "meet", "10"), "shm", "tcp")
}

// TestNoProvider: where none is left the error says what was tried, at both ranks.
func TestNoProvider(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Networks(t)
	need.Full(t)
	one, two := networks(t)
	env := []string{envProviders + "=shm"}
	both := startRanks(t, "198.18.0.1:20005", []nettest.Place{{Prefix: one, Env: env}, {Prefix: two, Env: env}}, "meet", "10")
	for i, r := range both {
		require.Error(t, <-r.End, nettest.Output(both))
		require.Contains(t, r.Out.String(), fmt.Sprintf("from rank %d, stream 0, start 1: peer cannot be reached: ", 1-i), nettest.Output(both))
		require.Contains(t, r.Out.String(), "no provider works: shm: no write with immediate has come through", nettest.Output(both))
	}
}

// TestFallbackBetweenUsers: processes of different users do not share memory.
func TestFallbackBetweenUsers(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Root(t) // to become another user
	need.Program(t, "setpriv")
	need.Full(t)
	// Where the other user can read it.
	dir, err := os.MkdirTemp("", "sluice-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	// By another process: a file that this one writes cannot be executed (ETXTBSY) while a child
	// of another test, forked meanwhile, has its descriptor.
	copied := filepath.Join(dir, "program")
	require.NoError(t, exec.Command("cp", ranks.Program(), copied).Run())
	prefix := []string{"sh", "-c", "shift; exec setpriv --reuid=65534 --regid=65534 --clear-groups " + copied + ` "$@"`, "sh"}
	fallsBack(t, startRanks(t, ranks.Free(t), []nettest.Place{{}, {Prefix: prefix, Env: []string{"HOME=/tmp"}}}, "meet", "10"), "shm", "tcp")
}

// TestFallbackBehindFirewall: the network drops what goes to the ports of one
// provider.
func TestFallbackBehindFirewall(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Networks(t)
	need.Full(t)
	one, _ := networks(t)
	env := []string{envProviders + "=tcp,shm"}
	fallsBack(t, startRanks(t, "127.0.0.1:20004", []nettest.Place{{Prefix: one, Env: env}, {Prefix: one, Env: env}}, "firewall", "10"), "tcp", "shm")
}

// behindFirewall has the network drop what goes to the port of this node's tcp
// device, before any rank connects to it.
func behindFirewall(ctx context.Context, n *Node, args []string) error {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.listener.Addr().(*net.TCPAddr).Port))
	if err != nil {
		return err
	}
	defer conn.Close()
	ports, err := n.ports("tcp", conn)
	if err != nil {
		return err
	}
	d, err := n.device(ports[0])
	if err != nil {
		return err
	}
	attr, err := d.ctx.QueryPort(1)
	if err != nil {
		return err
	}
	// The rule for addresses of this host comes first unless it is moved.
	if n.Rank() == 0 {
		err = errors.Join(nettest.IP("rule", "add", "pref", "100", "lookup", "local"), nettest.IP("rule", "del", "pref", "0"))
	}
	err = errors.Join(err, nettest.IP("rule", "add", "pref", fmt.Sprint(10+n.Rank()), "ipproto", "tcp", "dport", fmt.Sprint(attr.LID), "blackhole"))
	if err := errors.Join(err, n.job.Barrier(ctx)); err != nil {
		return err
	}
	return meetAll(ctx, n, args)
}

func init() { acts["firewall"] = act{do: behindFirewall} }

// fallsBack waits for two ranks that must have ended up on another provider than
// the first.
func fallsBack(t *testing.T, list []*nettest.Rank, first, then string) {
	t.Helper()
	for _, r := range list {
		err := <-r.End
		require.NoError(t, err, nettest.Output(list))
	}
	for i, r := range list {
		out := r.Out.String()
		require.Contains(t, out, fmt.Sprintf("rank %d reaches %d through %s, which is up\n", i, 1-i, then), nettest.Output(list))
		require.Contains(t, out, fmt.Sprintf("channel: provider not used rank=%d peer=%d provider=%s reason=", i, 1-i, first), nettest.Output(list))
		require.Equal(t, 1, strings.Count(out, "provider not used"), out)
	}
}
