package roce

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// Two hosts, as network namespaces:
//
//	    hosts[0]                    hosts[1]
//	+--------------+            +--------------+
//	|  198.18.0.1  | -- veth -- |  198.18.0.2  |
//	|   fd00::1    |            |   fd00::2    |
//	+--------------+            +--------------+

// host is a network namespace.
type host string

// hostsMade numbers the hosts of this process.
var hostsMade atomic.Int64

// newHost makes one without interfaces.
func newHost(t testing.TB) host {
	t.Helper()
	h := host(fmt.Sprintf("sluiceX%d-%d", os.Getpid(), hostsMade.Add(1)))
	require.NoError(t, ip("netns", "add", string(h)))
	t.Cleanup(func() { require.NoError(t, ip("netns", "del", string(h))) })
	return h
}

// hosts makes two hosts, connected by interfaces "veth0" of this MTU. They end with the test.
func hosts(t testing.TB, mtu int) [2]host {
	t.Helper()
	need.Networks(t)
	var two [2]host
	for i := range two {
		two[i] = newHost(t)
	}
	require.NoError(t, ip("-n", string(two[0]), "link", "add", "veth0", "mtu", fmt.Sprint(mtu), "type", "veth", "peer", "name", "veth0", "mtu", fmt.Sprint(mtu), "netns", string(two[1])))
	for i, h := range two {
		// RFC 2544: 198.18.0.0/15 is for tests of networks.
		h.ip(t, "addr", "add", fmt.Sprintf("198.18.0.%d/24", i+1), "dev", "veth0")
		h.ip(t, "addr", "add", fmt.Sprintf("fd00::%d/64", i+1), "dev", "veth0", "nodad")
		h.ip(t, "link", "set", "veth0", "up")
		h.ip(t, "link", "set", "lo", "up")
		// No rate limit, as on loopback: "port unreachable" is reported at once.
		for _, limit := range []string{"ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"} {
			require.NoError(t, h.in(func() error { return os.WriteFile("/proc/sys/net/"+limit, []byte("0"), 0) }))
		}
	}
	return two
}

func (h host) ip(t testing.TB, args ...string) {
	t.Helper()
	require.NoError(t, ip(append([]string{"-n", string(h)}, args...)...))
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// in runs f inside the namespace, on a separate thread: what f opens or starts belongs to that
// namespace.
func (h host) in(f func() error) error {
	runtime.LockOSThread()
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	ns, err := unix.Open("/run/netns/"+string(h), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return err
	}
	err = f()
	// A thread that cannot return stays locked, and ends with its goroutine.
	if e := unix.Setns(own, unix.CLONE_NEWNET); e != nil {
		return e
	}
	runtime.UnlockOSThread()
	return err
}

// open opens a device of the host.
func (h host) open(t testing.TB, device string, cfg verbs.Config) (ctx *verbs.Context) {
	t.Helper()
	require.NoError(t, h.in(func() error {
		dev, err := verbs.Find(device)
		if err == nil {
			ctx, err = dev.Open(cfg)
		}
		return err
	}))
	return ctx
}
