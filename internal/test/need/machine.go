package need

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-hpc/sluice/internal/limits"
)

// Root skips a test that needs the rights of user 0.
func Root(t testing.TB) {
	t.Helper()
	check(t, "root", os.Geteuid() == 0, fmt.Sprintf("this is user %d", os.Geteuid()))
}

// LimitedUser is the need that [User] states.
const LimitedUser = "a user whose locked memory is limited"

// lockable is the most memory that may be locked where that counts as limited.
const lockable = 1 << 30

// User skips a test that needs a user without privileges whose locked memory is limited.
func User(t testing.TB) {
	t.Helper()
	uid, limit := os.Geteuid(), lockedMemory()
	check(t, LimitedUser, uid != 0 && limit <= lockable, fmt.Sprintf("this is user %d, and may lock %d bytes", uid, limit))
}

// Program skips a test that starts programs which are not installed.
func Program(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := exec.LookPath(name)
		Probe(t, "program "+filepath.Base(name), err)
	}
}

// Compiler skips a test that needs a C compiler, and returns its command: $CC, or cc.
func Compiler(t testing.TB) []string {
	t.Helper()
	cc := strings.Fields(cmp.Or(os.Getenv("CC"), "cc"))
	_, err := exec.LookPath(cc[0])
	Probe(t, "a C compiler", err)
	return cc
}

// Header skips a test that needs to compile C with a header of the system, and returns the
// compiler's command.
func Header(t testing.TB, header string) []string {
	t.Helper()
	cc := Compiler(t)
	probe := exec.Command(cc[0], append(cc[1:], "-E", "-x", "c", "-")...)
	probe.Stdin = strings.NewReader("#include <" + header + ">\n")
	out, err := probe.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	Probe(t, "<"+header+">", err)
	return cc
}

// Loopback skips a test that needs a loopback interface which is up.
func Loopback(t testing.TB) {
	t.Helper()
	all, err := net.Interfaces()
	for _, i := range all {
		if i.Flags&(net.FlagLoopback|net.FlagUp) == net.FlagLoopback|net.FlagUp {
			check(t, "a loopback interface", true, "")
			return
		}
	}
	check(t, "a loopback interface", false, fmt.Sprintf("none of %d interfaces is up: %v", len(all), err))
}

// Address skips a test that needs this address to listen at.
func Address(t testing.TB, address string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err == nil {
		l.Close()
	}
	Probe(t, "address "+address, err)
}

// Slurm skips a test that starts a Slurm cluster on this machine: internal/boot/testdata/slurm.sh.
func Slurm(t testing.TB) {
	t.Helper()
	Root(t)
	Program(t, "srun", "sbatch", "salloc", "slurmctld", "slurmd", "munged")
}

// Networks skips a test that makes network namespaces and veth devices between them.
func Networks(t testing.TB) {
	t.Helper()
	Root(t)
	Program(t, "ip", "unshare")
	Probe(t, "network namespaces with veth devices", networks())
}

// Files skips a test that needs so many open files at a time.
func Files(t testing.TB, n uint64) {
	t.Helper()
	limit := openFiles()
	check(t, fmt.Sprintf("%d open files", n), limit >= n, fmt.Sprintf("RLIMIT_NOFILE is %d", limit))
}

// Memory skips a test that takes so many GiB of memory.
func Memory(t testing.TB, gib int) {
	t.Helper()
	Probe(t, fmt.Sprintf("%d GiB of memory", gib), limits.Fits(uint64(gib)<<30))
}

// Unix skips a test of what only Unix has: modes of files, a shell.
func Unix(t testing.TB) {
	t.Helper()
	check(t, "Unix", isUnix, "this is another system")
}
