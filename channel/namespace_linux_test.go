package channel

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Ranks that share memory and ranks that do not, made with name spaces: abstract
// sockets belong to the network name space, and numbers of processes to theirs.
//
//	   network one                 network two
//	+--------------+            +--------------+
//	|  198.18.0.1  | -- veth -- |  198.18.0.2  |
//	+--------------+            +--------------+

// pairs of networks so far, of tests that run at the same time, too.
var pairs atomic.Int32

// networks makes two networks that only see each other, and returns the commands
// that begin those of processes inside. They end with the test.
func networks(t *testing.T) (one, two []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("name spaces need root")
	}
	installed(t, "ip", "unshare")
	pair := pairs.Add(1)
	names := []string{fmt.Sprintf("sluiceA%d.%d", os.Getpid(), pair), fmt.Sprintf("sluiceB%d.%d", os.Getpid(), pair)}
	for _, name := range names {
		if err := ip("netns", "add", name); err != nil {
			t.Skipf("no network name spaces: %v", err)
		}
		t.Cleanup(func() { require.NoError(t, ip("netns", "del", name)) })
	}
	if err := ip("-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", names[1]); err != nil {
		t.Skipf("no veth devices: %v", err)
	}
	for i, name := range names {
		// RFC 2544: 198.18.0.0/15 is for tests of networks.
		require.NoError(t, ip("-n", name, "addr", "add", fmt.Sprintf("198.18.0.%d/24", i+1), "dev", "veth0"))
		require.NoError(t, ip("-n", name, "link", "set", "veth0", "up"))
		require.NoError(t, ip("-n", name, "link", "set", "lo", "up"))
	}
	return []string{"ip", "netns", "exec", names[0]}, []string{"ip", "netns", "exec", names[1]}
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// place is where a rank runs.
type place struct {
	prefix []string // of its command
	flags  uintptr  // of clone(2): the name spaces that it has for itself
	env    []string
}

// rank is a process that was started.
type rank struct {
	cmd *exec.Cmd
	out *lockedBuffer
	end chan error // of Wait
}

// startRanks starts a rank in each place, all told by hand where to meet.
func startRanks(t *testing.T, server string, places []place, act string, args ...string) []*rank {
	t.Helper()
	ranks := make([]*rank, len(places))
	for i, p := range places {
		r := &rank{out: new(lockedBuffer), end: make(chan error, 1)}
		argv := append(append(append([]string{}, p.prefix...), testBinary(t)), args...)
		r.cmd = exec.CommandContext(within(t), argv[0], argv[1:]...)
		r.cmd.Env = append(bare(act, abortSecret, fmt.Sprintf("SLUICE_RANK=%d", i), fmt.Sprintf("SLUICE_SIZE=%d", len(places)), "SLUICE_SERVER="+server), p.env...)
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: p.flags}
		r.cmd.Stdout, r.cmd.Stderr, r.cmd.WaitDelay = r.out, r.out, 5*time.Second
		if err := r.cmd.Start(); err != nil {
			if p.flags != 0 {
				t.Skipf("clone with flags %#x: %v", p.flags, err)
			}
			require.NoError(t, err)
		}
		go func() { r.end <- r.cmd.Wait() }()
		t.Cleanup(func() { r.cmd.Process.Kill() })
		ranks[i] = r
	}
	return ranks
}

// everything is what all ranks have written.
func everything(ranks []*rank) string {
	var b strings.Builder
	for i, r := range ranks {
		fmt.Fprintf(&b, "--- rank %d\n%s", i, r.out)
	}
	return b.String()
}

// TestNameSpaces: whether two ranks share memory is found out by trying, whatever
// the numbers of processes and the names of hosts are.
func TestNameSpaces(t *testing.T) {
	one, two := networks(t)
	const own = syscall.CLONE_NEWPID
	const all = own | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS
	const near, far = "127.0.0.1:20001", "198.18.0.1:20001"
	ordered := []string{EnvTransport + "=shm,tcp"}
	renamed := func(prefix []string, name string) []string {
		return append(append([]string{}, prefix...), "sh", "-c", "hostname "+name+` && exec "$0" "$@"`)
	}
	for _, c := range []struct {
		name   string
		server string
		places []place
		apart  int // ranks from here on are in the second network
		first  bool
	}{
		{"processes of their own", near, []place{{one, own, nil}, {one, own, nil}}, 2, true},
		{"processes of their own, of the other's parent, and of the parent", near, []place{{one, own, nil}, {one, 0, nil}, {one, own, nil}}, 3, false},
		{"everything of their own but the network", near, []place{{renamed(one, "this"), all, nil}, {renamed(one, "that"), all, nil}}, 2, true},
		{"networks of their own", far, []place{{one, 0, nil}, {two, 0, nil}}, 1, false},
		{"networks and processes of their own", far, []place{{one, own, nil}, {two, own, nil}}, 1, true},
		{"everything of their own", far, []place{{one, all, nil}, {two, all, nil}}, 1, true},
		{"two networks of two", far, []place{{one, 0, nil}, {one, own, nil}, {two, 0, nil}, {two, own, nil}}, 2, false},
		{"two networks of two, in an order of the environment", far, []place{{one, 0, ordered}, {one, 0, ordered}, {two, 0, ordered}, {two, 0, ordered}}, 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranks := startRanks(t, c.server, c.places, "meet", "10")
			for _, r := range ranks {
				err := <-r.end
				require.NoError(t, err, everything(ranks))
			}
			for i, r := range ranks {
				for j := range ranks {
					if i == j {
						continue
					}
					provider := "shm"
					if (i < c.apart) != (j < c.apart) {
						provider = "tcp"
					}
					require.Contains(t, r.out.String(), fmt.Sprintf("rank %d reaches %d through %s, which is up\n", i, j, provider), everything(ranks))
					require.Contains(t, r.out.String(), fmt.Sprintf("rank %d, %s up: sent 40 messages", j, provider))
				}
				if c.first {
					require.Contains(t, r.out.String(), "process 1\n", "two processes of one number")
				}
				require.NotContains(t, r.out.String(), "provider not used")
			}
		})
	}
}

// TestSharedAddress: both hosts have an address of the same number, as those of
// container bridges are, which leads each of them to itself, and their ranks listen
// at the same few ports.
func TestSharedAddress(t *testing.T) {
	one, two := networks(t)
	for _, prefix := range [][]string{one, two} {
		require.NoError(t, ip("-n", prefix[3], "addr", "add", "198.19.0.1/24", "dev", "lo"))
		out, err := exec.Command("ip", "netns", "exec", prefix[3], "sh", "-c", "echo 30000 30199 >/proc/sys/net/ipv4/ip_local_port_range").CombinedOutput()
		require.NoError(t, err, string(out))
	}
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		ranks := startRanks(t, "198.18.0.1:20001", []place{{prefix: one}, {prefix: two}, {prefix: one}, {prefix: two}, {prefix: one}, {prefix: two}}, "meet", "5")
		for _, r := range ranks {
			err := <-r.end
			require.NoError(t, err, everything(ranks))
		}
	}
}

// TestDeathAcrossNameSpaces: a rank that is killed is mourned by those who cannot
// know the number of its process, or whom another process of that number survives.
func TestDeathAcrossNameSpaces(t *testing.T) {
	one, two := networks(t)
	for _, c := range []struct {
		name   string
		server string
		places []place
	}{
		{"processes of their own", "127.0.0.1:20002", []place{{one, syscall.CLONE_NEWPID, nil}, {one, syscall.CLONE_NEWPID, nil}, {one, 0, nil}}},
		{"networks and processes of their own", "198.18.0.1:20002", []place{{one, syscall.CLONE_NEWPID, nil}, {two, syscall.CLONE_NEWPID, nil}, {two, 0, nil}}},
	} {
		for victim := range c.places {
			t.Run(fmt.Sprintf("%s, rank %d", c.name, victim), func(t *testing.T) {
				ranks := startRanks(t, c.server, c.places, "meet", "50", "until the end")
				for i, r := range ranks {
					require.Eventually(t, func() bool { return strings.Contains(r.out.String(), "all have met\n") }, limit, time.Millisecond, "rank %d: %s", i, r.out)
				}
				require.NoError(t, ranks[victim].cmd.Process.Kill())
				for i, r := range ranks {
					err := <-r.end
					if i == victim {
						require.Error(t, err)
						continue
					}
					require.NoError(t, err, everything(ranks))
					require.Contains(t, r.out.String(), fmt.Sprintf("rank %d ended: ", i))
					require.Regexp(t, fmt.Sprintf(`(to|from) rank %d, stream \d(, start \d+)?: peer died`, victim), r.out.String())
				}
			})
		}
	}
}
