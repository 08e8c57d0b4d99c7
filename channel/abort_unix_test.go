//go:build unix

package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// abortJob is a job whose rank args[0] aborts it with code 7 and goes on, while
// the others compute, sleep, and wait for each other and for a rank that they have
// never talked to.
func abortJob(ctx context.Context, n *Node, args []string) error {
	if err := halo(ctx, n, 2, hooks{}); err != nil {
		return err
	}
	fmt.Printf("pid %d\n", os.Getpid())
	if err := n.job.Barrier(ctx); err != nil {
		return err
	}
	if n.Rank() == number(args[0]) {
		n.Abort(7, "enough")
	}
	switch n.Rank() % 4 {
	case 0, 1:
		for sum := 1; ; sum *= 3 {
			if sum == 0 { // odd numbers have odd products
				return errors.New("arithmetic")
			}
		}
	case 2:
		select {}
	}
	b := make([]byte, 8)
	r, err := n.DeclareReceive(Contiguous(b), (n.Rank()+1)%n.Size(), OnStream(99))
	if err != nil {
		return err
	}
	for {
		r.Start()
		r.Wait() // and does not want to know
	}
}

// bare is the environment without what launchers have said, and with an act.
func bare(act string, env ...string) []string {
	return append(append(boot.WithoutLauncher(os.Environ()), envAct+"="+act, "GORACE=atexit_sleep_ms=0"), env...)
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

// installed skips the test where a program is not.
func installed(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed: %v", name, err)
		}
	}
}

func testBinary(t *testing.T) string {
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// freeAddress returns an address where nobody listens.
func freeAddress(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	return ln.Addr().String()
}

var pidLine = regexp.MustCompile(`(?m)pid ([0-9]+)$`)

// gone requires that n processes have said that they were there, and that none is
// left.
func gone(t *testing.T, n int, out string) {
	t.Helper()
	pids := pidLine.FindAllStringSubmatch(out, -1)
	require.Len(t, pids, n, out)
	for _, pid := range pids {
		require.Eventually(t, func() bool { return errors.Is(syscall.Kill(number(pid[1]), 0), syscall.ESRCH) }, limit, time.Millisecond, out)
	}
}

const abortSecret = "SLUICE_SECRET=" + testSecret

// TestAbortUnderLaunchers: Abort of one rank ends all, whatever they are doing, and
// the launcher returns the code.
func TestAbortUnderLaunchers(t *testing.T) {
	t.Parallel() // it waits most of the time
	me := testBinary(t)
	sluice := t.TempDir() + "/sluice"
	out, err := exec.Command("go", "build", "-o", sluice, "../cmd/sluice").CombinedOutput()
	require.NoError(t, err, string(out))
	culprits := []string{"0", "1", "3"}
	if testing.Short() {
		culprits = culprits[2:]
	}
	for _, c := range []struct{ name, launcher string }{
		{"sluice run", sluice + " run -n 4"},
		{"sluice run, others go on", sluice + " run --on-failure continue -n 4"},
		{"Hydra", "mpiexec.hydra -n 4"},
		{"Hydra, PMI_PORT", "mpiexec.hydra -pmi-port -n 4"},
		{"Open MPI", "mpirun.openmpi --allow-run-as-root --oversubscribe -n 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := strings.Fields(c.launcher)
			installed(t, args[0])
			for _, culprit := range culprits {
				status, out := command(t, bare("abort", abortSecret), append(args, me, culprit)...)
				require.Equal(t, 7, status, out)
				gone(t, 4, out)
			}
		})
	}
}

// TestAbortByHand: where there is no launcher, every process ends with the code.
func TestAbortByHand(t *testing.T) {
	me := testBinary(t)
	for _, rank := range []string{"SLUICE_RANK", "JOB_COMPLETION_INDEX"} {
		for _, culprit := range []string{"0", "3"} {
			t.Run(rank+" "+culprit, func(t *testing.T) {
				server := freeAddress(t)
				var wg sync.WaitGroup
				var status [4]int
				var out [4]string
				for i := range status {
					wg.Go(func() {
						status[i], out[i] = command(t, bare("abort", abortSecret, rank+"="+strconv.Itoa(i), "SLUICE_SIZE=4", "SLUICE_SERVER="+server), me, culprit)
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
	status, out := command(t, bare("abort"), testBinary(t), "0")
	require.Equal(t, 7, status, out)
	require.True(t, bytes.Contains([]byte(out), []byte("the process ends with its job")), out)
}
