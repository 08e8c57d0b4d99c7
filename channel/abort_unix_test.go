//go:build unix

package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// computing has every fourth rank of abortJob compute, which costs a CPU until the job ends.
const computing = "computing"

// abortJob is a job whose rank args[0] aborts it with code 7 and goes on, while
// the others sleep, wait for each other and for a rank that they have never talked to, and
// compute where args[1] says so.
func abortJob(ctx context.Context, n *Node, args []string) error {
	if err := halo(ctx, n, 2, hooks{}); err != nil {
		return err
	}
	if err := notePID(); err != nil {
		return err
	}
	if err := n.job.Barrier(ctx); err != nil {
		return err
	}
	if n.Rank() == number(args[0]) {
		n.Abort(7, "enough")
	}
	switch n.Rank() % 4 {
	case 0:
		for sum := 1; len(args) > 1 && args[1] == computing; sum *= 3 {
			if sum == 0 { // odd numbers have odd products
				return errors.New("arithmetic")
			}
		}
		select {}
	case 2:
		select {}
	}
	b := make([]byte, 8)
	r := Must(n.DeclareReceive(Contiguous(b), (n.Rank()+1)%n.Size(), OnStream(99)))
	for {
		r.Start()
		r.Wait() // and does not want to know
		time.Sleep(time.Millisecond)
	}
}

// envPIDs names the file where ranks that are to be aborted note their process numbers.
// Not on standard output: a launcher that aborts a job may lose what ranks have written.
const envPIDs = "SLUICE_CHANNEL_TEST_PIDS"

func notePID() error {
	path := os.Getenv(envPIDs)
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, os.Getpid())
	return errors.Join(err, f.Close())
}

// notedPIDs returns what n ranks have noted.
func notedPIDs(t *testing.T, n int, path, out string) []int {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err, out)
	lines := strings.Fields(string(b))
	require.Len(t, lines, n, out)
	pids := make([]int, n)
	for i, l := range lines {
		pids[i] = number(l)
	}
	return pids
}

// bare is the environment without what launchers have said, and with an act.
func bare(act string, env ...string) []string {
	return append(append(boot.WithoutLauncher(os.Environ()), ranks.Variables(act)...), env...)
}

// command runs a program to its end and returns its exit status and what was
// written.
func command(t *testing.T, env []string, args ...string) (int, string) {
	t.Helper()
	cmd := exec.CommandContext(within(t), args[0], args[1:]...)
	cmd.Env, cmd.WaitDelay = env, 5*time.Second
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		require.NoError(t, err, "%v: %s", args, out)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// gone requires that no process is left.
func gone(t *testing.T, pids []int, out string) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, limit, time.Millisecond, out)
	}
}

const abortSecret = "SLUICE_SECRET=" + testSecret

// TestAbortUnderLaunchers: Abort of one rank ends all, whatever they are doing, and
// the launcher returns the code.
func TestAbortUnderLaunchers(t *testing.T) {
	t.Parallel() // it waits most of the time
	me := ranks.Program()
	culprits := []string{"0", "1", "3"}
	for i, c := range []struct {
		name, launcher string // of sluice run: what it does with the others
	}{
		{"sluice run", "kill"},
		{"sluice run, others go on", "continue"},
		{"Hydra", "mpiexec.hydra -n 4"},
		{"Hydra, PMI_PORT", "mpiexec.hydra -pmi-port -n 4"},
		{"Open MPI", "mpirun.openmpi --allow-run-as-root --oversubscribe -n 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(c.launcher)
			launched := len(args) > 1
			does := "sleeping"
			if c.launcher == "continue" || need.WantLong() { // the others are killed, whatever they do
				does = computing
			}
			if launched {
				need.Program(t, args[0])
			}
			if c.launcher != "kill" {
				need.Full(t)
			}
			for k, culprit := range culprits {
				if k != i%len(culprits) && !need.WantLong() {
					continue
				}
				pids := filepath.Join(t.TempDir(), "pids")
				var status int
				var out string
				if launched {
					status, out = command(t, bare("abort", abortSecret, envPIDs+"="+pids, ranks.Folder(t)), append(args, me, culprit, does)...)
				} else {
					status, out = sluiceRun(t, launch.Options{
						Size: 4, Args: []string{me, culprit, does}, Env: bare("abort", envPIDs+"="+pids),
						OnFailure: map[string]launch.OnFailure{"kill": launch.Kill, "continue": launch.Continue}[c.launcher],
					})
				}
				require.Equal(t, 7, status, out)
				gone(t, notedPIDs(t, 4, pids, out), out)
			}
		})
	}
}

// sluiceRun does what the command does, and returns its exit status and what was written.
func sluiceRun(t *testing.T, o launch.Options) (int, string) {
	t.Helper()
	var out lockedBuffer
	o.Stdout, o.Stderr = &out, &out
	r, err := launch.Run(within(t), o)
	require.NoError(t, err, out.String())
	return r.ExitStatus(), out.String()
}

// TestAbortByHand: where there is no launcher, every process ends with the code.
func TestAbortByHand(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Full(t)
	me := ranks.Program()
	for i, rank := range []string{"SLUICE_RANK", "JOB_COMPLETION_INDEX"} {
		for k, culprit := range []string{"0", "3"} {
			if i != k && !need.WantLong() {
				continue
			}
			t.Run(rank+" "+culprit, func(t *testing.T) {
				server, does := ranks.Free(t), "sleeping"
				if need.WantLong() { // as where sluice run has the others go on
					does = computing
				}
				var wg sync.WaitGroup
				var status [4]int
				var out [4]string
				for i := range status {
					wg.Go(func() {
						status[i], out[i] = command(t, bare("abort", abortSecret, rank+"="+strconv.Itoa(i), "SLUICE_SIZE=4", "SLUICE_SERVER="+server), me, culprit, does)
					})
				}
				wg.Wait()
				require.Equal(t, [4]int{7, 7, 7, 7}, status, "%q", out)
			})
		}
	}
}

// TestAbortAlone: a job of one has an end too.
func TestAbortAlone(t *testing.T) {
	t.Parallel() // it waits most of the time
	status, out := command(t, bare("abort"), ranks.Program(), "0")
	require.Equal(t, 7, status, out)
	require.True(t, bytes.Contains([]byte(out), []byte("terminating the process because the job is over")), out)
}
