package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/test/sshd"
)

func init() {
	// neighbors exchanges messages in a ring.
	acts["neighbors"] = func([]string) int {
		channel.Main(func(ctx context.Context, n *channel.Node) error {
			in := make([]byte, 1)
			right, left := (n.Rank()+1)%n.Size(), (n.Rank()+n.Size()-1)%n.Size()
			if err := n.Sendrecv(ctx, []byte{byte(n.Rank())}, right, in, left); err != nil {
				return err
			}
			host, err := os.Hostname()
			fmt.Printf("%d of %d at %s has %d\n", n.Rank(), n.Size(), host, in[0])
			return err
		})
		return 0
	}
	// secrets says in which of the processes here the secret can be seen: arguments, and variables of other
	// programs than ranks.
	acts["secrets"] = func([]string) int {
		secret := os.Getenv(boot.EnvSecret)
		all, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range all {
			arguments, _ := os.ReadFile(dir + "/cmdline")
			variables, _ := os.ReadFile(dir + "/environ")
			if strings.Contains(string(arguments), secret) || strings.Contains(string(variables), secret) && !strings.Contains(string(variables), boot.EnvRank+"=") {
				fmt.Printf("seen in %q\n", arguments)
			}
		}
		fmt.Println(len(all) > 3, len(secret))
		return 0
	}
	tests = append(tests,
		test{"hosts", testHosts},
		test{"host lost", testHostLost},
		test{"launcher of hosts killed", testHostsOrphaned},
		test{"hosts without ssh", testHostsRefuse},
	)
}

// across runs sluice at home.
func (b bed) across(t *testing.T, c *sshd.Cluster, do string, args ...string) (out string, status int) {
	t.Helper()
	return c.Run(ranks.Within(t), ranks.Environ(do, "SLUICE_TRANSPORT=shm,tcp"), append([]string{b.sluice, "run"}, args...)...)
}

// The ranks of two hosts are one job.
func testHosts(t *testing.T, b bed) {
	c := sshd.New(t, 2, "1m")
	sorted := func(out string) []string {
		return slices.Sorted(strings.SplitSeq(strings.TrimSuffix(out, "\n"), "\n"))
	}
	out, status := b.across(t, c, "neighbors", "-H", "h1:2,h2:2", b.self)
	require.Zero(t, status, out)
	require.Equal(t, []string{"0 of 4 at h1 has 3", "1 of 4 at h1 has 0", "2 of 4 at h2 has 1", "3 of 4 at h2 has 2"}, sorted(out))

	hosts := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(hosts, []byte("home # without ssh\nh1 slots=2\nh2 slots=2\n"), 0o600))
	out, status = b.across(t, c, "neighbors", "--hostfile", hosts, "-n", "4", "--map-by", "node", "--prefix", b.self)
	require.Zero(t, status, out)
	require.Equal(t, []string{"[0] 0 of 4 at home has 3", "[1] 1 of 4 at h1 has 0", "[2] 2 of 4 at h2 has 1", "[3] 3 of 4 at h1 has 2"}, sorted(out))

	out, status = b.across(t, c, "secrets", "-H", "h1:1,home:2", "-n", "2", "--prefix", "--on-failure", "continue", b.self,
		":", "-x", "A=it's", "--wdir", "/usr", "sh", "-c", `echo "$A" "$PWD"; exit 3`)
	require.Equal(t, 3, status, out)
	require.Equal(t, []string{"[0] true 64", "[1] true 64", "[2] it's /usr", "sluice run: rank 2 failed with status 3"}, sorted(out))
	c.AwaitQuiet()
}

// jobOf starts ranks that wait on h1 and h2, two on each.
func (b bed) jobOf(t *testing.T, c *sshd.Cluster, args ...string) *session {
	t.Helper()
	cmd := c.Command(ranks.Within(t), append(append([]string{b.sluice, "run", "-H", "h1:2,h2:2", "--prefix"}, args...), b.self)...)
	cmd.Env = ranks.Environ("wait", "SLUICE_TRANSPORT=shm,tcp")
	s := startBy(t, cmd, func() error { return c.Start(cmd) })
	s.pids(t, 4)
	return s
}

// agents are the processes of sluice on a host.
func agents(b bed, h *sshd.Host) (pids []int) {
	for pid, text := range h.Processes() {
		if text == b.sluice+" agent" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A host whose agent is killed is named, and so is one that does not answer any more; nothing is left on
// those that can be reached.
func testHostLost(t *testing.T, b bed) {
	c := sshd.New(t, 2, "1m")
	s := b.jobOf(t, c)
	found := agents(b, c.Host(2))
	require.Len(t, found, 1)
	require.NoError(t, syscall.Kill(found[0], syscall.SIGKILL))
	require.Equal(t, 125, s.status(t), s.stderr.String())
	require.Contains(t, s.stderr.String(), "host h2 (ranks 2-3): the host is lost: its agent ended without a result")
	c.AwaitQuiet()

	s = b.jobOf(t, c, "--host-timeout", "1s")
	require.NoError(t, c.Host(2).Vanish())
	require.Equal(t, 125, s.status(t), s.stderr.String())
	require.Contains(t, s.stderr.String(), "host h2 (ranks 2-3): the host is lost: no answer for 1s")
	c.Host(1).AwaitQuiet(t)
}

// When the launcher is killed, nothing is left on the hosts; neither when its ssh is.
func testHostsOrphaned(t *testing.T, b bed) {
	c := sshd.New(t, 2, "1m")
	s := b.jobOf(t, c)
	require.NoError(t, s.cmd.Process.Kill())
	c.AwaitQuiet()

	s = b.jobOf(t, c)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, s.status(t), s.stderr.String())
	c.AwaitQuiet()
}

// Hosts that cannot be reached, or refuse, are named with what ssh says.
func testHostsRefuse(t *testing.T, b bed) {
	c := sshd.New(t, 2, "1m", "Match LocalAddress 198.18.3.2", "AuthorizedKeysFile none")
	out, status := b.across(t, c, "wait", "-H", "h1,h2", b.self)
	require.Equal(t, 125, status, out)
	require.Contains(t, out, "host h2 (rank 1): no agent could be started: ssh: exit status 255; it wrote: ")
	require.Contains(t, out, "Permission denied")

	require.NoError(t, c.Host(2).Vanish())
	out, status = b.across(t, c, "wait", "--rsh", "ssh -o ConnectTimeout=1", "-H", "h1,h2", b.self)
	require.Equal(t, 125, status, out)
	require.Contains(t, out, "host h2 (rank 1)")
	require.Contains(t, out, "timed out")

	out, status = b.across(t, c, "wait", "-H", "h1:1", "-n", "2", b.self)
	require.Equal(t, 2, status, out)
	require.Contains(t, out, "2 ranks for 1 slots")
	c.Host(1).AwaitQuiet(t)
}
