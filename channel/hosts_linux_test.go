package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/test/refuse"
	"github.com/sluice-hpc/sluice/verbs"
)

// Hosts that are odd: what they lack, and where their interfaces lead.

func init() {
	acts["large"] = act{do: large, prepare: func(args []string) error {
		return os.WriteFile(args[1], []byte(strconv.Itoa(os.Getpid())), 0)
	}}
	acts["cramped"] = act{do: cramped, prepare: acts["large"].prepare}
	acts["besiege"] = act{do: besiege}
	acts["starve"] = act{do: starve, options: []Option{WithConnectTimeout(time.Hour)}}
	// odd is a halo exchange of ranks of which those of the first argument lack the second.
	acts["odd"] = act{
		options: []Option{WithConnectTimeout(time.Hour)}, // what waits for it hangs
		do:      func(ctx context.Context, n *Node, args []string) error { return halo(ctx, n, 2, hooks{}) },
		prepare: func(args []string) error {
			if !strings.Contains(args[0], os.Getenv("SLUICE_RANK")) {
				return nil
			}
			switch args[1] {
			case "netlink":
				return refuse.Call(unix.SYS_SOCKET, refuse.Arg{Index: 0, Value: unix.AF_NETLINK})
			case "descriptors":
				few := uint64(number(args[2]))
				return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: few, Max: few})
			case "files": // of more than a few bytes
				return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 51200, Max: 51200})
			}
			return fmt.Errorf("lack of %s", args[1])
		},
	}
}

// large allocates as many bytes as the first argument says, in a cgroup that the second one names,
// while the last rank waits for the others.
func large(ctx context.Context, n *Node, args []string) error {
	asks := n.Rank() != n.Size()-1
	var err error
	if asks {
		_, err = n.Alloc(number(args[0]))
	}
	if e := n.job.Barrier(ctx); e != nil {
		return e
	}
	switch {
	case errors.Is(err, verbs.ErrNoMemory):
		fmt.Println("no memory:", err)
		_, err = n.Alloc(1 << 20) // the rank goes on
	case err == nil && asks:
		fmt.Println("all allocated")
	}
	return err
}

// cramped has all ranks allocate blocks of as many bytes as the first argument says, as often as the
// third says, in a cgroup that the second one names.
func cramped(ctx context.Context, n *Node, args []string) error {
	return ranks.Cramp(n.Alloc, func() error { return n.job.Barrier(ctx) }, number(args[0]), number(args[2]), verbs.ErrNoMemory)
}

// starve takes the descriptors that are left from rank 1, once it is connected, and has rank 0 pass it another.
func starve(ctx context.Context, n *Node, _ []string) error {
	if err := halo(ctx, n, 1, hooks{}); err != nil {
		return err
	}
	if n.Rank() == 1 {
		if err := leave(0); err != nil {
			return err
		}
	}
	if err := n.job.Barrier(ctx); err != nil {
		return err
	}
	if n.Rank() == 1 {
		h, err := n.DeclareReceive(Contiguous(make([]byte, 64<<20)), 0)
		if err != nil {
			return err
		}
		return h.Run(ctx)
	}
	m, err := n.Alloc(64 << 20) // an arena of its own
	if err != nil {
		return err
	}
	h, err := n.DeclareSend(Contiguous(m.Bytes()), 1)
	if err != nil {
		return err
	}
	return h.Run(ctx)
}

// leave lets this process open only so many more descriptors.
func leave(more int) error {
	next := Must(unix.Dup(0))
	most := uint64(next + more)
	return errors.Join(unix.Close(next), unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}))
}

// besiege has strangers that say nothing take the few descriptors of rank 1. The first must make room. Then
// there is room for some more, for a while.
func besiege(ctx context.Context, n *Node, _ []string) error {
	var held []int
	if n.Rank() == 1 {
		for range 3 {
			fd := Must(unix.Dup(0))
			held = append(held, fd)
		}
		if err := leave(3); err != nil {
			return err
		}
	}
	var strangers []net.Conn
	for range 2 {
		if err := n.job.Barrier(ctx); err != nil {
			return err
		}
		if n.Rank() == 0 {
			first := len(strangers)
			for range 8 {
				conn, err := net.Dial("tcp", netip.AddrPortFrom(n.addresses[1].addrs[0], n.addresses[1].port).String())
				if err != nil {
					return err
				}
				defer conn.Close()
				strangers = append(strangers, conn)
			}
			if err := ends(strangers[first]); err != nil {
				return err
			}
		}
		if err := n.job.Barrier(ctx); err != nil {
			return err
		}
		for _, fd := range held {
			unix.Close(fd)
		}
		held = nil
	}
	if n.Rank() == 0 { // the siege lasts until rank 1 closes its node
		return ends(strangers[len(strangers)-1])
	}
	return nil
}

// ends waits until a connection has been closed by the other side.
func ends(conn net.Conn) error {
	_, err := io.Copy(io.Discard, conn)
	if errors.Is(err, unix.ECONNRESET) {
		err = nil
	}
	return err
}

// TestBesieged: a rank whose descriptors are held by strangers that say nothing closes the oldest. It says
// that once, also if the closed ones leave room for several.
func TestBesieged(t *testing.T) {
	r, out := run(t, "tcp", 2, "besiege")
	require.Zero(t, r.ExitStatus(), out)
	require.Equal(t, 1, strings.Count(out, "cannot accept"), out)
}

// TestDescriptorsRunOut: a rank that runs out of descriptors once it is connected says so, and its peer
// that it is gone.
func TestDescriptorsRunOut(t *testing.T) {
	r, out := run(t, "shm", 2, "starve")
	require.NotContains(t, r.Status, 0, out)
	require.Regexp(t, `(?m)^\[1\] channel: receive from rank 0, .* cannot be reached: .*too many open files: RLIMIT_NOFILE \(ulimit -n\) is \d`, out)
	require.Regexp(t, `(?m)^\[0\] channel: send to rank 1, .* peer died`, out)
}

// TestTooLarge: an allocation beyond what a cgroup leaves is an error, and nothing is killed: neither
// the ranks that ask for it nor one that does not.
func TestTooLarge(t *testing.T) {
	procs := need.MemoryGroup(t, 320<<20)
	for _, c := range []struct {
		provider string
		size     int
		says     string
	}{
		{"shm", 1 << 30, "no memory: "},
		{"tcp", 1 << 30, "no memory: "},
		{"shm", 32 << 20, "all allocated"},
	} {
		t.Run(fmt.Sprint(c.provider, c.size), func(t *testing.T) {
			r, out := run(t, c.provider, 3, "large", fmt.Sprint(c.size), procs)
			require.Zero(t, r.ExitStatus(), out)
			require.Equal(t, 2, strings.Count(out, c.says), out)
			if c.size == 1<<30 {
				require.Regexp(t, `(?m)there is no room for 1024 MiB: \d+ MiB are available \(320 MiB in /sys/fs/cgroup/.*\): allocate less on each rank$`, out)
			}
		})
	}
}

// TestCramped: ranks that allocate at the same moment, or little by little, do not exceed the room of
// a cgroup together.
func TestCramped(t *testing.T) {
	need.Full(t)
	procs := need.MemoryGroup(t, 320<<20)
	for _, provider := range []string{"shm", "tcp"} {
		for _, size := range []int{150 << 20, 1 << 20, 64 << 10} {
			t.Run(fmt.Sprint(provider, size), func(t *testing.T) {
				r, out := run(t, provider, 3, "cramped", fmt.Sprint(size), procs, fmt.Sprint(max(1, 150<<20/size)))
				require.Zero(t, r.ExitStatus(), out)
				require.LessOrEqual(t, strings.Count(out, "blocks: <nil>"), 3*2, out)
				require.Regexp(t, `there is no room for \d+ MiB: \d+ MiB are available \(320 MiB in /sys/fs/cgroup/`, out)
			})
		}
	}
}

// TestWithoutNetlink: a rank that cannot list the interfaces of its host, as under a seccomp filter,
// is reached where it has reached the rendezvous.
func TestWithoutNetlink(t *testing.T) {
	for _, provider := range []string{"tcp", "shm"} {
		for _, which := range []string{"1", "01"} {
			t.Run(provider+"/"+which, func(t *testing.T) {
				r, out := run(t, provider, 2, "odd", which, "netlink")
				require.Zero(t, r.ExitStatus(), out)
			})
		}
	}
}

// TestWithoutDescriptors: a rank that has too few descriptors says so, and how many it may have,
// wherever it runs out of them; its peer says that it is gone, or what it says. Neither takes part of
// that for a fault of the other, or waits for as long as connecting may take.
func TestWithoutDescriptors(t *testing.T) {
	for _, provider := range []string{"tcp", "shm", "shm,tcp"} {
		for few := 10; few < 22; few++ {
			t.Run(fmt.Sprint(provider, few), func(t *testing.T) {
				if few%3 > 0 {
					need.Full(t)
				}
				t.Parallel()
				r, out := run(t, provider, 2, "odd", "1", "descriptors", fmt.Sprint(few))
				require.Equal(t, r.Status[0], r.Status[1], out)
				if r.Status[0] != 0 {
					require.NotRegexp(t, `(?m)^\[1\] .*rank 0 has no provider that works`, out)
					require.Regexp(t, fmt.Sprintf(`(?m)^\[1\] .*too many open files.*: RLIMIT_NOFILE \(ulimit -n\) is %d`, few), out)
				}
				for _, wrong := range []string{"panic", "malformed", "retry counter"} {
					require.NotContains(t, out, wrong)
				}
			})
		}
	}
}

// TestFileLimit: a rank whose files may not be as large as shared memory is says so, to its peer
// too.
func TestFileLimit(t *testing.T) {
	r, out := run(t, "shm,tcp", 2, "odd", "1", "files")
	require.Zero(t, r.ExitStatus(), out)
	require.Regexp(t, `(?m)^\[0\] .*provider not used .*RLIMIT_FSIZE \(ulimit -f\) is 51200 bytes`, out)
}

// TestInterfacesToNowhere: two hosts have many addresses at which neither reaches the other, as of
// container bridges. They are not even tried, since each has reached the rendezvous from one that leads
// somewhere.
func TestInterfacesToNowhere(t *testing.T) {
	need.Networks(t)
	both := nettest.Networks(t)
	nettest.LeadNowhere(t, both, 20)
	ranks := startRanks(t, "198.18.0.1:20001", []nettest.Place{{Prefix: both[0].Command()}, {Prefix: both[1].Command()}}, "meet", "2")
	for i, r := range ranks {
		require.NoError(t, <-r.End, nettest.Output(ranks))
		require.Contains(t, r.Out.String(), fmt.Sprintf("rank %d reaches %d through tcp, which is up\n", i, 1-i))
		require.NotRegexp(t, `[1-9]\d failed attempts`, r.Out.String()) // fewer than there are; a rank that connects at the same time refuses some
	}
}

// TestIPv6Alone: the loopback interface has ::1 alone.
func TestIPv6Alone(t *testing.T) {
	need.Networks(t)
	n := nettest.Networks(t)[0]
	require.NoError(t, n.IP("addr", "del", "198.18.0.1/24", "dev", "veth0"))
	require.NoError(t, n.IP("addr", "del", "127.0.0.1/8", "dev", "lo"))
	for _, transport := range []string{"shm", "tcp"} {
		place := nettest.Place{Prefix: n.Command(), Env: []string{EnvTransport + "=" + transport}}
		ranks := startRanks(t, "[::1]:20001", []nettest.Place{place, place}, "meet", "2")
		for i, r := range ranks {
			require.NoError(t, <-r.End, nettest.Output(ranks))
			require.Contains(t, r.Out.String(), fmt.Sprintf("rank %d reaches %d through %s, which is up\n", i, 1-i, transport))
		}
	}
}
