//go:build linux

package ibv_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// compile runs the C compiler in testdata.
func compile(t testing.TB, args ...string) {
	cc := append(need.Compiler(t), args...)
	cmd := exec.Command(cc[0], cc[1:]...)
	cmd.Dir = "testdata"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%q: %s", cc, out)
}

// The declarations of abi.h are those of the distribution's header.
func TestABI(t *testing.T) {
	need.Header(t, verbsHeader)
	compile(t, "-Wall", "-Werror", "-fsyntax-only", "abi.c")
}
