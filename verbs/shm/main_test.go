//go:build linux

package shm_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/test/refuse"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/shm"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

// envForbid makes this process, and those that it starts, do without
// process_vm_readv.
const envForbid = "SLUICE_SHM_TEST_FORBID_CMA"

func TestMain(m *testing.M) {
	if os.Getenv(envForbid) != "" {
		if err := errors.Join(refuse.Call(unix.SYS_PROCESS_VM_READV), refuse.Call(unix.SYS_PROCESS_VM_WRITEV)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if os.Getenv(envByBoard) != "" {
		shm.GoByBoard()
	}
	verbstest.Main(m, map[string]func([]string) error{"open": openAndWait})
}

// Everything works without process_vm_readv, too.
func TestConformanceWithoutCMA(t *testing.T) {
	if os.Getenv(envForbid) != "" {
		var b [1]byte
		local := []unix.Iovec{{Base: &b[0], Len: 1}}
		_, err := unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&b[0])), Len: 1}}, 0)
		require.ErrorIs(t, err, unix.EPERM, "the filter is not there")
		return
	}
	groups := need.InShort("Opcodes|Model", "SGE|Opcodes|Inline|Order|Violations|Model|Death")
	again(t, envForbid, "^(TestConformance|TestConformanceWithoutCMA)$", groups)
}

// again runs groups of the suite in a process of its own with a variable set, with -short. For
// long tests it runs all groups, without, but no long ones. It states no needs: what these tests lack
// there, they have in this process.
func again(t *testing.T, variable, tests, groups string) {
	t.Helper()
	pattern, flags := tests+"/^("+groups+")$", []string{"-test.short"}
	if need.WantLong() {
		pattern, flags = tests, nil
	}
	require.Contains(t, ranks.Again(t, pattern, []string{variable + "=1", need.LongVariable + "=", need.LogVariable + "="}, flags...), "--- PASS: TestConformance ")
}

// envByBoard makes this process use boards even for CQs with a single QP.
const envByBoard = "SLUICE_SHM_TEST_BY_BOARD"

// Everything also works if CQs with a single QP use their board.
func TestConformanceByBoard(t *testing.T) {
	need.Full(t)
	need.NoRace(t, "the detector sees nothing of a board in shared memory")
	again(t, envByBoard, "^TestConformance$", "Completion|Order|Notify|States|RNR|SRQ|Concurrency|Closing|Model|Death")
}

// listening says whether the abstract socket of a context exists.
func listening(t *testing.T, gid string) bool {
	sockets, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	return strings.Contains(string(sockets), "@sluice-shm-"+gid)
}

// named lists files that this provider could have created, if it created any.
func named(t *testing.T) []string {
	var all []string
	for _, dir := range []string{"/dev/shm", os.TempDir()} {
		l, err := filepath.Glob(filepath.Join(dir, "*sluice-*"))
		require.NoError(t, err)
		all = append(all, l...)
	}
	return all
}

// openAndWait opens the device, says so, and waits for a signal that ends the process.
func openAndWait([]string) error {
	d, err := verbs.Find("shm")
	if err != nil {
		return err
	}
	ctx, err := d.Open(verbs.Config{})
	if err != nil {
		return err
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	if _, err := pd.AllocMR(1<<20, verbs.AccessAll); err != nil {
		return err
	}
	gid, err := ctx.QueryGID(1, 0)
	if err != nil {
		return err
	}
	fmt.Printf("%x\n", gid[:])
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// However a process ends, it leaves nothing behind.
func TestNothingStaysBehind(t *testing.T) {
	before := named(t)
	for _, sig := range []os.Signal{os.Kill, syscall.SIGTERM, syscall.SIGSEGV} {
		cmd := ranks.Command(t.Context(), "open")
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		gid, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		gid = strings.TrimSpace(gid)
		require.True(t, listening(t, gid), "the test does not see the process")
		require.NoError(t, cmd.Process.Signal(sig))
		require.Error(t, cmd.Wait())
		in.Close()
		require.False(t, listening(t, gid), "after %v", sig)
		require.Subset(t, before, named(t), "after %v", sig)
	}
}
