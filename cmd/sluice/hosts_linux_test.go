package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/test/need"
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
	// listeners says where the processes of this network namespace listen while all layers do.
	acts["listeners"] = func([]string) int {
		channel.Main(func(ctx context.Context, n *channel.Node) error {
			job, err := impi.FromNode(ctx, n, impi.Config{})
			if err != nil {
				return err
			}
			in := make([]byte, 1)
			if err := n.Sendrecv(ctx, in, n.Rank()^1, in, n.Rank()^1); err != nil {
				return err
			}
			if _, err := n.Exchange(ctx, nil); err != nil { // all have opened their devices
				return err
			}
			if err := listening(); err != nil {
				return err
			}
			_, err = n.Exchange(ctx, nil)
			return errors.Join(err, job.Close(ctx))
		})
		return 0
	}
	tests = append(tests,
		test{"hosts", testHosts},
		test{"host lost", testHostLost},
		test{"launcher of hosts killed", testHostsOrphaned},
		test{"hosts without ssh", testHostsRefuse},
		test{"copies", testCopy},
		test{"nodes of Slurm", testSlurm},
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
		lines := slices.Sorted(strings.SplitSeq(strings.TrimSuffix(out, "\n"), "\n"))
		return slices.DeleteFunc(lines, aside)
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

	providers := []string{"tcp"}
	if need.WantLong() {
		providers = append(providers, "shm,tcp")
	}
	for _, provider := range providers {
		out, status = c.Run(ranks.Within(t), ranks.Environ("listeners", "SLUICE_TRANSPORT="+provider, "SLUICE_PORTS=30000-30019", "SLUICE_NET=198.18.0.0/16"),
			b.sluice, "run", "-H", "home:2,h1:2", "--map-by", "node", b.self)
		require.Zero(t, status, out)
		found := 0
		for line := range strings.Lines(out) {
			if aside(line) {
				continue
			}
			at, err := netip.ParseAddrPort(strings.TrimSpace(line))
			require.NoError(t, err, out)
			if at.Port() == 22 {
				continue
			}
			require.True(t, at.Addr().IsLoopback() || netip.MustParsePrefix("198.18.0.0/16").Contains(at.Addr()), out)
			require.True(t, at.Port() >= 30000 && at.Port() <= 30019, out)
			found++
		}
		require.Equal(t, 18, found, out) // said by both ranks of a host: two of each, and at home the rendezvous
	}
	out, status = c.Run(ranks.Within(t), ranks.Environ("listeners", "SLUICE_PORTS=30000-30001"), b.sluice, "run", "-H", "h1:4", b.self)
	require.NotZero(t, status, out)
	require.Contains(t, out, "SLUICE_PORTS=30000-30001: no port is free")
	out, status = c.Run(ranks.Within(t), ranks.Environ("listeners", "SLUICE_NET=10.0.0.0/8"), b.sluice, "run", "-H", "h1:2", b.self)
	require.Equal(t, 125, status, out)
	require.Contains(t, out, "SLUICE_NET=10.0.0.0/8: this host has no such address or interface: it has lo 127.0.0.1")
	c.AwaitQuiet()
}

// aside says that a line is no output of the program, but what is said of a host with fewer CPUs than ranks,
// or of ranks that are late because hosts are busy.
func aside(line string) bool {
	return strings.HasPrefix(line, "host ") || ranks.Late(line)
}

// listening prints the addresses at which TCP sockets of this network namespace listen.
func listening() error {
	for _, file := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile("/proc/self/net/" + file)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			if len(words) < 4 || words[3] != "0A" { // TCP_LISTEN, include/net/tcp_states.h
				continue
			}
			host, port, _ := strings.Cut(words[1], ":")
			n, err := strconv.ParseUint(port, 16, 16)
			raw, err2 := hex.DecodeString(host) // 32-bit words in the host's order
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			for i := 0; i < len(raw); i += 4 {
				binary.BigEndian.PutUint32(raw[i:], binary.NativeEndian.Uint32(raw[i:]))
			}
			ip, _ := netip.AddrFromSlice(raw)
			fmt.Println(netip.AddrPortFrom(ip.Unmap(), uint16(n)))
		}
	}
	return nil
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

	s = b.jobOf(t, c, "--host-timeout", "2s") // of which the other host answers ten times
	require.NoError(t, c.Host(2).Vanish())
	require.Equal(t, 125, s.status(t), s.stderr.String())
	require.Contains(t, s.stderr.String(), "host h2 (ranks 2-3): the host is lost: no answer for 2s")
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
	shell := filepath.Join(t.TempDir(), "shell") // the other host has time
	require.NoError(t, os.WriteFile(shell, []byte(`[ "$1" = h2 ] && set -- -o ConnectTimeout=1 "$@"; exec ssh "$@"`), 0o600))
	out, status = b.across(t, c, "wait", "--rsh", "sh "+shell, "-H", "h1,h2", b.self)
	require.Equal(t, 125, status, out)
	require.Contains(t, out, "host h2 (rank 1)")
	require.Contains(t, out, "timed out")

	out, status = b.across(t, c, "wait", "-H", "h1:1", "-n", "2", b.self)
	require.Equal(t, 2, status, out)
	require.Contains(t, out, "2 ranks for 1 slots")
	c.Host(1).AwaitQuiet(t)
}

// With --copy the hosts need nothing but a shell, and room; nothing is left there.
func testCopy(t *testing.T, b bed) {
	c := sshd.New(t, 2, "400m")
	folder, program := filepath.Join(t.TempDir(), "here"), "/run/only/sluice"
	require.NoError(t, os.Mkdir(folder, 0o700))
	// Home has its sluice where no other host has it.
	out, status := c.Run(ranks.Within(t), ranks.Environ("neighbors", "SLUICE_TRANSPORT=shm,tcp"), "sh", "-c",
		`mount -t tmpfs only /run && mkdir /run/only && cp "$0" "$1" /run/only && mv "/run/only/${1##*/}" /run/only/program && exec "$2" run --copy -H h1:2,h2:2 /run/only/program`,
		b.sluice, b.self, program)
	require.Zero(t, status, out)
	require.Contains(t, out, "0 of 4 at h1 has 3\n")
	c.AwaitQuiet()
	for i := 1; i <= 2; i++ {
		left, err := os.ReadDir(c.Host(i).Path("/run/tmp"))
		require.NoError(t, err)
		require.Empty(t, left)
	}

	c = sshd.New(t, 1, "1m")
	out, status = b.across(t, c, "wait", "--copy", "-H", "h1", b.self)
	require.Equal(t, 125, status, out)
	require.Contains(t, out, "host h1 (rank 0): no agent could be started: ssh, which is to copy "+b.sluice)
	require.Contains(t, out, "No space left on device")
	c.AwaitQuiet()
	left, err := os.ReadDir(c.Host(1).Path("/run/tmp"))
	require.NoError(t, err)
	require.Empty(t, left)

	// There is room for sluice, but not for the program.
	info, err := os.Stat(b.sluice)
	require.NoError(t, err)
	c = sshd.New(t, 1, strconv.Itoa(int(info.Size()>>10)+1024)+"k")
	out, status = b.across(t, c, "wait", "--copy", "-H", "h1", b.self)
	require.Equal(t, 125, status, out)
	require.Contains(t, out, "program0: no space left on device")
	c.AwaitQuiet()
}

// In an allocation of Slurm the ranks are on its nodes, by srun.
func testSlurm(t *testing.T, b bed) {
	need.Slurm(t)
	need.Full(t) // the cluster starts for seconds
	cmd := exec.CommandContext(ranks.Within(t), "../../internal/boot/testdata/slurm.sh", "salloc", "--quiet", "-N", "2", "-n", "4", b.sluice, "run", "--prefix", b.self)
	cmd.Env = ranks.Environ("neighbors", "SLUICE_TRANSPORT=shm,tcp")
	e := succeed(t, cmd)
	for rank := range 4 {
		require.Contains(t, e.stdout, fmt.Sprintf("[%d] %d of 4 at one has %d\n", rank, rank, (rank+3)%4))
	}

	// Each node has an agent; when sluice is killed, nothing is left.
	const script = `"$0" run --prefix "$1" >/run/out & until [ "$(grep -c pid /run/out)" = 4 ]; do sleep 0.05; done
		pgrep -c -f "^$0 agent"; pgrep -c -f "^$1"; kill -9 $!; while pgrep -f "^($0|$1)" >/dev/null; do sleep 0.05; done; echo over`
	cmd = exec.CommandContext(ranks.Within(t), "../../internal/boot/testdata/slurm.sh", "salloc", "--quiet", "-N", "2", "-n", "4", "sh", "-c", script, b.sluice, b.self)
	cmd.Env = ranks.Environ("wait")
	e = finish(t, cmd)
	require.Equal(t, "2\n4\nover\n", e.stdout, e.stderr)
}

// BenchmarkHosts is the time of a job of four ranks that exchange a message each: on this host, and on two
// with sshd.
func BenchmarkHosts(b *testing.B) {
	sluice := filepath.Join(b.TempDir(), "sluice")
	out, err := exec.Command("go", "build", "-o", sluice, ".").CombinedOutput()
	require.NoError(b, err, "%s", out)
	c := sshd.New(b, 2, "1m")
	for name, where := range map[string][]string{"one": {"-n", "4"}, "two": {"-H", "h1:2,h2:2"}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				args := append(append([]string{sluice, "run"}, where...), ranks.Program())
				out, status := c.Run(b.Context(), ranks.Environ("neighbors", "SLUICE_TRANSPORT=shm,tcp"), args...)
				require.Zero(b, status, out)
			}
		})
	}
}
