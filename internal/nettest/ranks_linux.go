package nettest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/xdp"
)

// Place is where a rank runs.
type Place struct {
	Prefix []string // of its command
	Flags  uintptr  // of clone(2): the name spaces that it has for itself
	Env    []string
}

// Rank is a process that was started.
type Rank struct {
	Cmd *exec.Cmd
	Out *logbuf.Buffer
	End chan error // of Wait
}

// secret is that of the jobs.
const secret = "SLUICE_SECRET=000102030405060708090a0b0c0d0e0f"

// Start starts this program in each place as a rank that plays an act, all told by hand where
// to meet. The environment has env more than that of this process, and what the place has.
func Start(t *testing.T, server string, places []Place, env []string, act string, args ...string) []*Rank {
	t.Helper()
	ctx := ranks.Within(t)
	list := make([]*Rank, len(places))
	for i, p := range places {
		r := &Rank{Out: new(logbuf.Buffer), End: make(chan error, 1)}
		argv := append(append(slices.Clone(p.Prefix), ranks.Program()), args...)
		r.Cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
		r.Cmd.Env = append(append(boot.WithoutLauncher(os.Environ()), ranks.Variables(act)...), secret, fmt.Sprintf("SLUICE_RANK=%d", i), fmt.Sprintf("SLUICE_SIZE=%d", len(places)), "SLUICE_SERVER="+server)
		r.Cmd.Env = append(append(r.Cmd.Env, env...), p.Env...)
		r.Cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: p.Flags}
		r.Cmd.Stdout, r.Cmd.Stderr, r.Cmd.WaitDelay = r.Out, r.Out, 5*time.Second
		require.NoError(t, r.Cmd.Start())
		go func() { r.End <- r.Cmd.Wait() }()
		t.Cleanup(func() { r.Cmd.Process.Kill() })
		list[i] = r
	}
	return list
}

// Output is what all ranks have written.
func Output(list []*Rank) string {
	var b strings.Builder
	for i, r := range list {
		fmt.Fprintf(&b, "--- rank %d\n%s", i, r.Out)
	}
	return b.String()
}

// Places makes two networks, and returns where in each a rank runs over a wire, until the
// test ends. The ranks of one network share an address. Over AF_XDP they share the queue of
// their interface, by the helper that runs in each; channels between them are in shared memory.
func Places(t *testing.T, wire string) (where [2]Place) {
	t.Helper()
	if wire == "xdp" {
		need.Probe(t, "AF_XDP", xdp.Supported())
	}
	for i, n := range Networks(t) {
		p := &where[i]
		p.Prefix, p.Env = n.Command(), []string{"SLUICE_TRANSPORT=" + wire, EnvAddress + "=" + address(i)}
		if wire == "xdp" {
			p.Env[0] += ",shm" // channels meet at loopback in one network, which is no device of it
			p.Env = append(p.Env, xdp.EnvHelper+"="+n.startHelper(t, address(i)))
		}
	}
	return where
}

// Between makes the places of a wire, and returns what runs jobs in both.
func Between(t *testing.T, wire string) Runner {
	t.Helper()
	where := Places(t, wire)
	var jobs atomic.Int32
	return func(t *testing.T, size int, env []string, act string, args ...string) (launch.Result, string) {
		t.Helper()
		places := make([]Place, size)
		for i := range places {
			places[i] = where[i%2]
		}
		list := Start(t, fmt.Sprintf("%s:%d", address(0), 20100+jobs.Add(1)), places, env, act, args...)
		result := launch.Result{Status: make([]int, size), First: -1}
		for i, r := range list {
			err := <-r.End
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				require.NoError(t, err, Output(list))
			}
			result.Status[i] = r.Cmd.ProcessState.ExitCode()
			if s := r.Cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
				result.Status[i] = 128 + int(s.Signal())
			}
			if result.Status[i] != 0 && result.First < 0 {
				result.First = i
			}
		}
		return result, Output(list)
	}
}
