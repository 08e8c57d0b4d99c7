package channel

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// Ranks that share memory and ranks that do not, made with name spaces: abstract
// sockets belong to the network name space, and numbers of processes to theirs.
//
//	   network one                 network two
//	+--------------+            +--------------+
//	|  198.18.0.1  | -- veth -- |  198.18.0.2  |
//	+--------------+            +--------------+

// networks makes two, and returns the commands that begin those of processes inside.
func networks(t *testing.T) (one, two []string) {
	t.Helper()
	both := nettest.Networks(t)
	return both[0].Command(), both[1].Command()
}

func startRanks(t *testing.T, server string, places []nettest.Place, act string, args ...string) []*nettest.Rank {
	t.Helper()
	return nettest.Start(t, server, places, nil, act, args...)
}

// TestNameSpaces: whether two ranks share memory is found out by trying, whatever
// the numbers of processes and the names of hosts are.
func TestNameSpaces(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Networks(t)
	need.Full(t)
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
		places []nettest.Place
		apart  int // ranks from here on are in the second network
		first  bool
	}{
		{"processes of their own", near, []nettest.Place{{Prefix: one, Flags: own}, {Prefix: one, Flags: own}}, 2, true},
		{"processes of their own, of the other's parent, and of the parent", near, []nettest.Place{{Prefix: one, Flags: own}, {Prefix: one}, {Prefix: one, Flags: own}}, 3, false},
		{"everything of their own but the network", near, []nettest.Place{{Prefix: renamed(one, "this"), Flags: all}, {Prefix: renamed(one, "that"), Flags: all}}, 2, true},
		{"networks of their own", far, []nettest.Place{{Prefix: one}, {Prefix: two}}, 1, false},
		{"networks and processes of their own", far, []nettest.Place{{Prefix: one, Flags: own}, {Prefix: two, Flags: own}}, 1, true},
		{"everything of their own", far, []nettest.Place{{Prefix: one, Flags: all}, {Prefix: two, Flags: all}}, 1, true},
		{"two networks of two", far, []nettest.Place{{Prefix: one}, {Prefix: one, Flags: own}, {Prefix: two}, {Prefix: two, Flags: own}}, 2, false},
		{"two networks of two, in an order of the environment", far, []nettest.Place{{Prefix: one, Env: ordered}, {Prefix: one, Env: ordered}, {Prefix: two, Env: ordered}, {Prefix: two, Env: ordered}}, 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			switch c.name {
			case "processes of their own", "networks of their own", "networks and processes of their own", "two networks of two":
				need.Long(t) // the others have that, too
			}
			ranks := startRanks(t, c.server, c.places, "meet", "10")
			for _, r := range ranks {
				err := <-r.End
				require.NoError(t, err, nettest.Output(ranks))
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
					require.Contains(t, r.Out.String(), fmt.Sprintf("rank %d reaches %d through %s, which is up\n", i, j, provider), nettest.Output(ranks))
					require.Contains(t, r.Out.String(), fmt.Sprintf("rank %d, %s up: sent 40 messages", j, provider))
				}
				if c.first {
					require.Contains(t, r.Out.String(), "process 1\n", "two processes of one number")
				}
				require.NotContains(t, r.Out.String(), "provider not used")
			}
		})
	}
}

// TestSharedAddress: both hosts have an address of the same number, as those of
// container bridges are, which leads each of them to itself, and their ranks listen
// at the same few ports.
func TestSharedAddress(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Networks(t)
	need.Full(t)
	one, two := networks(t)
	for _, prefix := range [][]string{one, two} {
		require.NoError(t, nettest.IP("-n", prefix[3], "addr", "add", "198.19.0.1/24", "dev", "lo"))
		out, err := exec.Command("ip", "netns", "exec", prefix[3], "sh", "-c", "echo 30000 30199 >/proc/sys/net/ipv4/ip_local_port_range").CombinedOutput()
		require.NoError(t, err, string(out))
	}
	rounds, places := 1, []nettest.Place{{Prefix: one}, {Prefix: two}, {Prefix: one}, {Prefix: two}}
	if need.WantLong() {
		rounds, places = 5, append(places, places[:2]...)
	}
	for range rounds {
		ranks := startRanks(t, "198.18.0.1:20001", places, "meet", "5")
		for _, r := range ranks {
			err := <-r.End
			require.NoError(t, err, nettest.Output(ranks))
		}
	}
}

// TestDeathAcrossNameSpaces: the death of a rank is detected by ranks that cannot know its
// process ID, or for which another process with that ID is still alive.
func TestDeathAcrossNameSpaces(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Networks(t)
	need.Full(t)
	one, two := networks(t)
	for _, c := range []struct {
		name   string
		server string
		places []nettest.Place
	}{
		{"processes of their own", "127.0.0.1:20002", []nettest.Place{{Prefix: one, Flags: syscall.CLONE_NEWPID}, {Prefix: one, Flags: syscall.CLONE_NEWPID}, {Prefix: one}}},
		{"networks and processes of their own", "198.18.0.1:20002", []nettest.Place{{Prefix: one, Flags: syscall.CLONE_NEWPID}, {Prefix: two, Flags: syscall.CLONE_NEWPID}, {Prefix: two}}},
	} {
		for victim := range c.places {
			t.Run(fmt.Sprintf("%s, rank %d", c.name, victim), func(t *testing.T) {
				if victim == 1 || c.server != "127.0.0.1:20002" {
					need.Long(t) // as the others; between networks as in TestDeath over tcp
				}
				ranks := startRanks(t, c.server, c.places, "meet", "50", "until the end")
				for i, r := range ranks {
					require.Eventually(t, func() bool { return strings.Contains(r.Out.String(), "all have met\n") }, limit, time.Millisecond, "rank %d: %s", i, r.Out)
				}
				require.NoError(t, ranks[victim].Cmd.Process.Kill())
				for i, r := range ranks {
					err := <-r.End
					if i == victim {
						require.Error(t, err)
						continue
					}
					require.NoError(t, err, nettest.Output(ranks))
					require.Contains(t, r.Out.String(), fmt.Sprintf("rank %d ended: ", i))
					require.Regexp(t, fmt.Sprintf(`(to|from) rank %d, stream \d(, start \d+)?: peer died`, victim), r.Out.String())
				}
			})
		}
	}
}
