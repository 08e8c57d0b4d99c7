package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

func TestFindCPUGroup(t *testing.T) {
	t.Parallel()
	const (
		v1     = "30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
		v2     = "31 23 0:27 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
		memory = "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
		docker = "33 23 0:29 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
		bare   = "24 1 0:21 / /proc rw\n"
	)
	for _, c := range []struct {
		name, cgroup, mounts string
		want                 cpuGroup
	}{
		{"version 1", "4:cpu,cpuacct:/a\n1:name=systemd:/b\n", memory + v1, cpuGroup{"/sys/fs/cgroup/cpu,cpuacct/a", "/sys/fs/cgroup/cpu,cpuacct", false}},
		{"version 2", "0::/user.slice/x.scope\n", v2, cpuGroup{"/sys/fs/cgroup/user.slice/x.scope", "/sys/fs/cgroup", true}},
		{"root", "0::/\n", bare + v2, cpuGroup{"/sys/fs/cgroup", "/sys/fs/cgroup", true}},
		{"hybrid", "4:cpu:/a\n0::/b\n", v2 + v1, cpuGroup{"/sys/fs/cgroup/cpu,cpuacct/a", "/sys/fs/cgroup/cpu,cpuacct", false}},
		{"container", "0::/docker/abc/c\n", docker, cpuGroup{"/sys/fs/cgroup/c", "/sys/fs/cgroup", true}},
		{"cpuset is not cpu", "3:cpuset:/a\n0::/b\n", v2, cpuGroup{"/sys/fs/cgroup/b", "/sys/fs/cgroup", true}},
	} {
		got, err := findCPUGroup(c.cgroup, c.mounts)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
	}
	for name, c := range map[string][2]string{
		"none":            {"", ""},
		"not mounted":     {"0::/a\n", memory},
		"another path":    {"0::/elsewhere\n", docker},
		"no such lines":   {"x\n:\n", "- cgroup\n"},
		"memory of ver 1": {"5:memory:/a\n", memory},
	} {
		_, err := findCPUGroup(c[0], c[1])
		require.ErrorIs(t, err, errNoCPUGroup, name)
	}
}

// TestQuota: the command is in a cgroup with half a CPU for each rank, which is gone after it;
// what it says of itself is passed on.
func TestQuota(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	cmd := bench(ctx, "load", "quota", "-n", "3", "sh", "-c", `cat /proc/self/cgroup; echo "$SLUICE_BENCH_LOAD"; exit 7`)
	var told bytes.Buffer
	cmd.Stderr = &told
	out, err := cmd.Output()
	var refused error
	if strings.Contains(told.String(), "CPU quota by cgroup") {
		refused = errors.New(told.String())
	}
	need.Probe(t, "CPU quotas by cgroups", refused)
	require.Error(t, err)
	require.Equal(t, 7, cmd.ProcessState.ExitCode(), told.String())
	own := "sluice-bench-" + strconv.Itoa(cmd.Process.Pid)
	require.Contains(t, string(out), "/"+own)
	require.Contains(t, string(out), "\nquota\n")
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil { // else it is another's, which has gone meanwhile
			require.NotEqual(t, own, d.Name(), path)
		}
		return nil
	})
	require.NoError(t, err)
}

// TestLoadEnds: what computes beside a command ends with it, and with the bench that has
// started both, even by SIGKILL.
func TestLoadEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, p *os.Process){
		"by itself": func(*testing.T, *os.Process) {},
		"SIGTERM":   func(t *testing.T, p *os.Process) { require.NoError(t, p.Signal(syscall.SIGTERM)) },
		"SIGINT":    func(t *testing.T, p *os.Process) { require.NoError(t, p.Signal(syscall.SIGINT)) },
		"SIGKILL":   func(t *testing.T, p *os.Process) { require.NoError(t, p.Kill()) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), bound)
			defer cancel()
			then := "exec sleep 1000"
			if name == "by itself" {
				then = "true"
			}
			cmd := bench(ctx, "load", "busy", "sh", "-c", `echo "$SLUICE_BENCH_LOAD" $$; `+then)
			said, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			b := make([]byte, 4096)
			n, err := said.Read(b)
			require.NoError(t, err)
			all, command, ok := strings.Cut(strings.TrimSpace(string(b[:n])), " ")
			require.True(t, ok)
			all, ok = strings.CutPrefix(all, "busy:")
			require.True(t, ok, all)
			list := strings.Split(all, ",")
			if name != "SIGKILL" { // after a SIGKILL nothing can end the command
				list = append(list, command)
			}
			end(t, cmd.Process)
			_ = cmd.Wait() // it may have been killed
			for _, text := range list {
				pid, err := strconv.Atoi(text)
				require.NoError(t, err)
				require.Eventually(t, func() bool { return hasEnded(pid) }, bound, time.Millisecond, "process %d", pid)
			}
			if pid, err := strconv.Atoi(command); err == nil && name == "SIGKILL" {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
	}
}

// hasEnded: the process has ended, though it may not have been waited for.
func hasEnded(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(state, "Z")
}

// TestCPUOf: the clock of a process counts its work, of ours as the kernel counts it.
func TestCPUOf(t *testing.T) {
	before, err := cpuOf(os.Getpid())
	require.NoError(t, err)
	compute(1 << 20)
	after, err := cpuOf(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, after, before)
	_, err = cpuOf(1 << 22) // beyond PID_MAX_LIMIT
	require.ErrorIs(t, err, unix.EINVAL)
}

func TestSumFields(t *testing.T) {
	t.Parallel()
	const text = "Rss:  10 kB\nPrivate_Clean:   4 kB\nPrivate_Dirty:\t38 kB\nThreads:\t7\n"
	for _, c := range []struct {
		names []string
		want  float64
	}{{[]string{"Threads"}, 7}, {[]string{"Private_Clean", "Private_Dirty"}, 42}} {
		got, err := sumFields(text, c.names...)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	for _, names := range [][]string{{"Private"}, {"Threads", "Swap"}} {
		_, err := sumFields(text, names...)
		require.Error(t, err)
	}
	_, err := sumFields("Threads:\tmany\n", "Threads")
	require.Error(t, err)
}

// TestLossy: messages arrive, and are what was sent, where packets are lost, and from several
// senders at a time.
func TestLossy(t *testing.T) {
	need.Networks(t)
	need.Program(t, "nft")
	need.Full(t)
	for _, args := range []string{
		"loss --provider tcp --loss 0,1 --time 50ms", "loss --provider roce --loss 1 --window 8 --time 50ms",
		"incast --provider tcp --ranks 3 --time 50ms", "incast --provider roce --ranks 3 --time 50ms",
	} {
		t.Run(args, func(t *testing.T) {
			r := decode(t, output(t, append(strings.Fields(args), "--json")...))
			require.Empty(t, r.Missing)
			require.NotEmpty(t, r.Results)
			for _, v := range r.Results {
				if v.Failed != "" && v.Loss > 0 && v.Provider == providerRoCE {
					continue // as requests may, today
				}
				require.NoError(t, v.check(), "%+v", v)
				require.Positive(t, v.P50)
			}
		})
	}
}
