package sshd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/netns"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Cluster is a host of the launcher, "home", and others, "h1", "h2" and so on, each with network, mount and
// UTS namespaces of its own, the others also with a PID namespace, and files that are those of this machine,
// but for /run. In the configuration of ssh at home, "h1" stands for the address of that host. The hosts end
// with the test, also if it is killed.
type Cluster struct {
	t      testing.TB
	star   *netns.Star
	folder string
	hosts  []*Host // home first
}

// Host is a host of a Cluster.
type Host struct {
	net  netns.Namespace
	init *os.Process // of its PID namespace; nil: of home
	pids string      // that namespace
}

// New makes a cluster of n hosts beside home. Settings are lines for sshd_config(5); scratch is the size of
// the folder for temporary files of h1 and so on, as in mount(8).
func New(t testing.TB, n int, scratch string, settings ...string) *Cluster {
	t.Helper()
	need.Networks(t)
	need.Program(t, "ssh", "sshd", "ssh-keygen")
	c := &Cluster{t: t, folder: t.TempDir()}
	var err error
	c.star, err = netns.NewStar(n + 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.star.Close()) })
	out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", c.file("key")).CombinedOutput()
	require.NoError(t, err, "%s", out)

	var config strings.Builder
	c.hosts = []*Host{{net: c.star.Hosts[0]}}
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&config, "Host %s\n  HostName %s\n", c.Name(i), netns.Address(i))
	}
	fmt.Fprintf(&config, "Host *\n  IdentityFile %s\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n", c.file("key"))
	c.write("ssh_config", config.String())
	c.write("sshd_config", strings.Join(append([]string{
		"HostKey " + c.file("key"), "AuthorizedKeysFile " + c.file("key.pub"), "StrictModes no", "UsePAM no", "PermitRootLogin yes",
		"PidFile " + pidFile, "UseDNS no", "SetEnv TMPDIR=/run/tmp", "MaxStartups 200",
	}, settings...), "\n")+"\n")
	for i := 1; i <= n; i++ {
		c.hosts = append(c.hosts, c.boot(i, scratch))
	}
	return c
}

func (c *Cluster) file(name string) string { return filepath.Join(c.folder, name) }

func (c *Cluster) write(name, text string) {
	require.NoError(c.t, os.WriteFile(c.file(name), []byte(text), 0o600))
}

// Name is that of a host, from 1 on.
func (c *Cluster) Name(i int) string { return "h" + strconv.Itoa(i) }

// Host returns a host: 0 is home.
func (c *Cluster) Host(i int) *Host { return c.hosts[i] }

const spaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS

// pidFile is what sshd writes once it listens: it goes into the background before that.
const pidFile = "/run/sshd.pid"

// boot starts sshd on a host, which listens when boot returns. The shell that is its first process ends with its
// standard input, and has the kernel end all others.
func (c *Cluster) boot(i int, scratch string) *Host {
	const script = `mount --make-rprivate / && mount -t proc proc /proc && mount -t tmpfs run /run && mkdir -m 755 /run/sshd &&
		mkdir /run/tmp && mount -t tmpfs -o "size=$3" tmp /run/tmp && hostname "$1" && "$(command -v sshd)" -f "$2" -E /run/log || exit
		until [ -e "$4" ]; do sleep 0.01; done; echo ready && read end`
	cmd := exec.Command("sh", "-c", script, "sh", c.Name(i), c.file("sshd_config"), scratch, pidFile)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: spaces | syscall.CLONE_NEWPID}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(c.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(c.t, err)
	h := &Host{net: c.star.Hosts[i]}
	require.NoError(c.t, h.net.In(cmd.Start))
	c.t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	late := time.AfterFunc(ranks.Limit, func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	late.Stop()
	require.NoError(c.t, err)
	require.Equal(c.t, "ready\n", line)
	h.init = cmd.Process
	h.pids, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", h.init.Pid))
	require.NoError(c.t, err)
	return h
}

// Command is a command at home, to be started by Start.
func (c *Cluster) Command(ctx context.Context, args ...string) *exec.Cmd {
	const script = `mount --make-rprivate / && mount --bind "$0" /etc/ssh/ssh_config && hostname home && exec "$@"`
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", script, c.file("ssh_config")}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: spaces}
	return cmd
}

// Start starts a command of [Cluster.Command].
func (c *Cluster) Start(cmd *exec.Cmd) error { return c.hosts[0].net.In(cmd.Start) }

// Vanish has no packet reach the host any more, or leave it.
func (h *Host) Vanish() error { return h.net.Vanish() }

// Path is where a file of the host is here.
func (h *Host) Path(name string) string { return fmt.Sprintf("/proc/%d/root%s", h.init.Pid, name) }

// Processes lists the processes of the host, except the first and sshd, but with its sessions: their ids
// here, and what they run.
func (h *Host) Processes() map[int]string {
	list := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || h.init != nil && pid == h.init.Pid {
			continue
		}
		if pids, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err != nil || pids != h.pids {
			continue
		}
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty of a zombie
		text := strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
		if text != "" && !strings.Contains(text, "[listener]") {
			list[pid] = text
		}
	}
	return list
}

// AwaitQuiet waits until no process is left on the hosts, of those that Processes lists.
func (c *Cluster) AwaitQuiet() {
	c.t.Helper()
	for _, h := range c.hosts[1:] {
		h.AwaitQuiet(c.t)
	}
}

// AwaitQuiet does so for a host.
func (h *Host) AwaitQuiet(t testing.TB) {
	t.Helper()
	ctx, left := ranks.Within(t), map[int]string{0: ""}
	for ; len(left) > 0; time.Sleep(time.Millisecond) {
		left = h.Processes()
		require.NoError(t, ctx.Err(), "%v", left)
	}
}

// Run runs a command at home to its end, and returns its output, standard error after standard output.
func (c *Cluster) Run(ctx context.Context, env []string, args ...string) (out string, status int) {
	c.t.Helper()
	cmd := c.Command(ctx, args...)
	cmd.Env = env
	var b strings.Builder
	cmd.Stdout, cmd.Stderr = &b, &b
	require.NoError(c.t, c.Start(cmd))
	cmd.Wait()
	return b.String(), cmd.ProcessState.ExitCode()
}
