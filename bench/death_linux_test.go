package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// endless are measurements between two ranks that do not end by themselves.
func endless(t *testing.T) map[string][]string {
	list := map[string][]string{}
	for _, provider := range providers(t) {
		list[provider] = []string{"verbs", "lat", "--provider", provider, "--sizes", "8"}
		list["channel "+provider] = []string{"channel", "lat", "--provider", provider, "--sizes", "8"}
		list["halo "+provider] = []string{"halo", "--provider", provider, "--axis", "all"}
	}
	for name := range list {
		list[name] = append(list[name], "--time", "1h")
	}
	return list
}

// A rank that is killed in the middle ends the run, with an error, soon.
func TestRankKilled(t *testing.T) {
	need.Full(t)
	for name, args := range endless(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), bound)
			defer cancel()
			cmd := bench(ctx, args...)
			var told bytes.Buffer
			cmd.Stderr = &told
			require.NoError(t, cmd.Start())
			ranks := ranksOf(t, cmd.Process.Pid)
			require.NoError(t, syscall.Kill(ranks[1], syscall.SIGKILL))
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit)
			require.NotZero(t, exit.ExitCode())
			require.NotEmpty(t, told.String())
			gone(t, ranks)
		})
	}
}

// Interrupted, both ranks end, and nothing is left.
func TestInterrupted(t *testing.T) {
	need.Full(t)
	for name, args := range endless(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), bound)
			defer cancel()
			cmd := bench(ctx, args...)
			require.NoError(t, cmd.Start())
			ranks := ranksOf(t, cmd.Process.Pid)
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit)
			gone(t, ranks)
		})
	}
}

// ranksOf waits until the process has two children that have used CPU time
// enough to be measuring, and returns them.
func ranksOf(t *testing.T, pid int) []int {
	t.Helper()
	var ranks []int
	require.Eventually(t, func() bool {
		ranks = ranks[:0]
		tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
		if err != nil {
			return false
		}
		for _, task := range tasks {
			b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + task.Name() + "/children")
			if err != nil {
				continue
			}
			for _, f := range strings.Fields(string(b)) {
				child, err := strconv.Atoi(f)
				if err != nil {
					return false
				}
				ranks = append(ranks, child)
			}
		}
		if len(ranks) != 2 {
			return false
		}
		for _, r := range ranks {
			if cpuTicks(r) < 20 {
				return false
			}
		}
		return true
	}, bound, 10*time.Millisecond)
	return ranks
}

// cpuTicks is the user time of a process, in ticks of 10 ms (proc_pid_stat(5)).
func cpuTicks(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 12 {
		return 0
	}
	n, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0
	}
	return n
}

// gone verifies that processes are no more.
func gone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, bound, 10*time.Millisecond)
	}
}
