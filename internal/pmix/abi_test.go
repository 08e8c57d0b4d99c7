package pmix_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/pmix"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// The declarations of abi.h are those of the distribution's header, which Debian has in a folder of its
// own.
func TestABI(t *testing.T) {
	folders, err := filepath.Glob("/usr/lib/*/pmix2/include")
	require.NoError(t, err)
	t.Setenv("CPATH", strings.Join(folders, ":"))
	cc := need.Header(t, "pmix.h")
	cmd := exec.Command(cc[0], append(cc[1:], "-Wall", "-Werror", "-fsyntax-only", "abi.c")...)
	cmd.Dir = "testdata"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%q: %s", cc, out)
}

// What is no libpmix is not taken for one, and the right one still can be opened after it.
func TestNoLibrary(t *testing.T) {
	err := pmix.Open(filepath.Join(t.TempDir(), "libpmix.so.2"))
	if !pmix.Built {
		require.EqualError(t, err, "this program is built without cgo, or not for Linux: PMIx needs both")
		return
	}
	require.ErrorContains(t, err, "libpmix.so.2: cannot open shared object file")
	require.EqualError(t, pmix.Open("libc.so.6"), "libc.so.6: no symbol PMIx_Init")
	need.Probe(t, "libpmix.so.2", pmix.Open(""))
}
