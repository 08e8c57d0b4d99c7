package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	tests = append(tests,
		test{"launcher killed", testLauncherKilled},
		test{"inner launcher killed", testInnerKilled},
		test{"launcher of wrappers killed", testWrappedKilled},
		test{"stop and continue", testStop},
		test{"binding", testBind},
		test{"too many ranks", testTooMany},
		test{"many ranks ended", testManyEnded},
	)
}

// Nothing is left when the launcher is killed so that it cannot clean up.
func testLauncherKilled(t *testing.T, b bed) {
	s := start(t, b.command(t, "catch", "run", "-n", "4", "--prefix", b.self))
	var fds []int
	for _, pid := range s.pids(t, 4) {
		fds = append(fds, ranks.Watch(t, pid))
	}
	require.NoError(t, s.cmd.Process.Kill())
	for _, fd := range fds {
		ranks.Ended(t, fd)
	}
}

// When the outer launcher dies, so do the inner ones.
func testInnerKilled(t *testing.T, b bed) {
	s := start(t, b.command(t, "catch", "run", b.sluice, "run", "-n", "2", "--prefix", b.self))
	var fds []int
	for _, pid := range s.pids(t, 2) {
		fds = append(fds, ranks.Watch(t, pid))
	}
	require.NoError(t, s.cmd.Process.Kill())
	for _, fd := range fds {
		ranks.Ended(t, fd)
	}
}

// Ranks that the kernel does not end with the launcher, because a shell runs between them, end
// themselves, except those that are to live on.
func testWrappedKilled(t *testing.T, b bed) {
	s := start(t, b.command(t, "member", "run", "-n", "3", "--prefix", "sh", "-c", `"$0"; true`, b.self))
	var fds []int
	pids := s.pids(t, 3)
	for _, pid := range pids {
		fds = append(fds, ranks.Watch(t, pid))
	}
	require.NoError(t, s.cmd.Process.Kill())
	ranks.Ended(t, fds[0])
	ranks.Ended(t, fds[1])
	require.NotContains(t, "ZX", state(pids[2]))
	require.NoError(t, unix.Kill(pids[2], syscall.SIGKILL))
	ranks.Ended(t, fds[2])
}

// state is the letter of proc_pid_stat(5).
func state(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return err.Error()
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[:1]
}

// SIGTSTP stops the ranks and sluice, twice; SIGCONT lets them go on.
func testStop(t *testing.T, b bed) {
	b.stop(t, b.command(t, "catch", "run", "-n", "2", "--prefix", b.self))
	// With agents, sluice has the signals written before it stops; on one CPU nothing else would write them.
	cmd := b.command(t, "catch", "run", "-H", "localhost:2", "--prefix", b.self)
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	b.stop(t, cmd)
}

func (b bed) stop(t *testing.T, cmd *exec.Cmd) {
	s := start(t, cmd)
	pids := s.pids(t, 2)
	all := append(pids, s.cmd.Process.Pid)
	for range 2 {
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGTSTP))
		require.Eventually(t, func() bool {
			for _, pid := range all {
				if state(pid) != "T" {
					return false
				}
			}
			return true
		}, limit, time.Millisecond)
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
		text := fmt.Sprintf("got %d", syscall.SIGCONT)
		require.Equal(t, []string{text, text}, s.next(t, 2))
	}
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGUSR2))
	require.Equal(t, 5, s.status(t))
}

func testBind(t *testing.T, b bed) {
	var set unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &set))
	var cpus []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	const size = 3
	e := succeed(t, b.command(t, "cpus", "run", "-n", fmt.Sprint(size), "--bind", "core", b.self))
	for rank := range size { // ranks that follow on one another share a CPU
		i := rank
		if size > len(cpus) {
			i = rank * len(cpus) / size
		}
		require.Contains(t, e.lines(), fmt.Sprintf("%d %d", rank, cpus[i]))
	}
	// What concerns a host is said with its name.
	many := runtime.NumCPU() + 1
	e = succeed(t, b.command(t, "cpus", "run", "-H", fmt.Sprint("localhost:", many), b.self))
	require.Contains(t, e.stderr, fmt.Sprintf("host localhost: %d ranks share %d CPUs", many, runtime.NumCPU()))
	status := ranks.ReadFile(t, "/proc/self/status")
	e = finish(t, b.command(t, "cpus", "run", "-n", "1", b.self))
	require.Equal(t, []string{"0 " + allowed(string(status))}, e.lines(), "not bound unless asked")
}

// limited is sluice whose limits a command of the shell sets.
func (b bed) limited(t *testing.T, ulimit, do string, args ...string) *exec.Cmd {
	cmd := b.command(t, do, args...)
	cmd.Args = append([]string{"sh", "-c", ulimit + `; exec "$@"`, "sh"}, cmd.Args...)
	cmd.Path = "/bin/sh"
	return cmd
}

// More ranks than the host can take are not started. With --oversubscribe, if starting fails,
// the ranks that were started are ended.
func testTooMany(t *testing.T, b bed) {
	for _, c := range []struct {
		cmd  *exec.Cmd
		says []string
	}{
		{b.command(t, "args", "run", "-n", "100000", b.self, "here"), []string{"100000 ranks, at most ", "--oversubscribe "}},
		{b.limited(t, "ulimit -n 64", "args", "run", "-n", "100", b.self, "here"), []string{"100 ranks, at most 6: ", "RLIMIT_NOFILE is 64", "--oversubscribe cannot help: raise ulimit -n"}},
		{b.limited(t, "ulimit -n 64", "args", "run", "-H", "localhost:20", b.self, "here"), []string{"host localhost (ranks 0-19): 20 ranks, at most 6: ", "RLIMIT_NOFILE is 64", "--oversubscribe cannot help: raise ulimit -n"}},
	} {
		e := finish(t, c.cmd)
		require.Equal(t, 125, e.status, e.stderr)
		require.Empty(t, e.stdout)
		for _, text := range c.says {
			require.Contains(t, e.stderr, text)
		}
	}
	e := finish(t, b.limited(t, "ulimit -n 64", "wait", "run", "-n", "100", "--prefix", "--oversubscribe", b.self))
	require.Equal(t, 126, e.status, e.stderr)
	require.Contains(t, e.stderr, "too many open files")
	require.Contains(t, e.stderr, "--oversubscribe cannot help: raise ulimit -n")
	for line := range strings.Lines(e.stdout) {
		_, pid, ok := strings.Cut(line, "pid ")
		require.True(t, ok, line)
		program, _ := os.Readlink("/proc/" + strings.TrimSpace(pid) + "/exe")
		require.NotEqual(t, b.self, program)
	}
}

// One signal ends many ranks, when all are there and while they are being started.
func testManyEnded(t *testing.T, b bed) {
	const many = 200
	sleepers := func() *session {
		return start(t, b.command(t, "", "run", "-n", fmt.Sprint(many), "--prefix", "sh", "-c", "echo pid $$; exec sleep 1000"))
	}
	s := sleepers()
	var fds []int
	for _, pid := range s.pids(t, many) {
		fds = append(fds, ranks.Watch(t, pid))
	}
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, s.status(t))
	for _, fd := range fds {
		ranks.Ended(t, fd)
	}

	s = sleepers()
	require.True(t, s.lines.Scan())
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGINT))
	for more := true; more; more = s.lines.Scan() {
		_, text, ok := strings.Cut(s.lines.Text(), "pid ")
		require.True(t, ok, s.lines.Text())
		var pid int
		_, err := fmt.Sscan(text, &pid)
		require.NoError(t, err)
		if fd, err := unix.PidfdOpen(pid, 0); err == nil { // else it has ended
			ranks.Ended(t, fd)
			unix.Close(fd)
		}
	}
	require.Equal(t, 130, s.status(t), s.stderr.String())
}
