//go:build linux

package ibv_test

import (
	"cmp"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// compiler is the C compiler with what $CC gives it for arguments.
func compiler(t testing.TB) []string {
	cc := strings.Fields(cmp.Or(os.Getenv("CC"), "cc"))
	if _, err := exec.LookPath(cc[0]); err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	return cc
}

// compile runs the C compiler in testdata.
func compile(t testing.TB, args ...string) {
	cc := append(compiler(t), args...)
	cmd := exec.Command(cc[0], cc[1:]...)
	cmd.Dir = "testdata"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%q: %s", cc, out)
}

// The declarations of abi.h are those of the distribution's header.
func TestABI(t *testing.T) {
	cc := compiler(t)
	probe := exec.Command(cc[0], append(cc[1:], "-E", "-x", "c", "-")...)
	probe.Stdin = strings.NewReader("#include <infiniband/verbs.h>\n")
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("no <infiniband/verbs.h> (package libibverbs-dev): %s", out)
	}
	compile(t, "-Wall", "-Werror", "-fsyntax-only", "abi.c")
}
