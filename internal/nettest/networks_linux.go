package nettest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// Network is a network namespace, by its name.
type Network string

// pairs of networks so far, of tests that run at the same time, too.
var pairs atomic.Int32

// Networks makes two networks that only see each other. They end with the test.
//
//	   network one                 network two
//	+--------------+            +--------------+
//	|  198.18.0.1  | -- veth -- |  198.18.0.2  |
//	+--------------+            +--------------+
func Networks(t *testing.T) (two [2]Network) {
	t.Helper()
	need.Networks(t)
	pair := pairs.Add(1)
	for i := range two {
		two[i] = Network(fmt.Sprintf("sluice%c%d.%d", 'A'+i, os.Getpid(), pair))
		require.NoError(t, IP("netns", "add", string(two[i])))
		t.Cleanup(func() { require.NoError(t, IP("netns", "del", string(two[i]))) })
	}
	require.NoError(t, two[0].IP("link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", string(two[1])))
	for i, n := range two {
		// RFC 2544: 198.18.0.0/15 is for tests of networks.
		require.NoError(t, n.IP("addr", "add", address(i)+"/24", "dev", "veth0"))
		require.NoError(t, n.IP("link", "set", "veth0", "up"))
		require.NoError(t, n.IP("link", "set", "lo", "up"))
	}
	return two
}

// LeadNowhere gives each of two networks n more addresses, listed before the one that leads to the
// other: they are on lo, and what is sent to those of the other network goes to no host.
func LeadNowhere(t *testing.T, two [2]Network, n int) {
	t.Helper()
	const empty = "198.18.0.9"
	for i, w := range two {
		require.NoError(t, w.IP("neigh", "add", empty, "lladdr", "02:00:00:00:00:09", "dev", "veth0"))
		require.NoError(t, w.IP("route", "add", fmt.Sprintf("10.%d.0.0/16", 1-i), "via", empty))
		for k := range n {
			require.NoError(t, w.IP("addr", "add", fmt.Sprintf("10.%d.%d.1/32", i, k), "dev", "lo"))
		}
	}
}

// address is that of a network.
func address(i int) string { return fmt.Sprintf("198.18.0.%d", i+1) }

// Command begins that of a process inside.
func (n Network) Command() []string { return []string{"ip", "netns", "exec", string(n)} }

// IP runs ip(8) inside.
func (n Network) IP(args ...string) error { return IP(append([]string{"-n", string(n)}, args...)...) }

// IP runs ip(8).
func IP(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
