//go:build unix

package boot

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// A FIFO must not make Join wait for a writer.
func TestSecretFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err := readSecretFile(path)
	require.ErrorContains(t, err, "not a regular file")
}

func TestForeignSecretFile(t *testing.T) {
	need.Root(t) // to give a file away
	path := filepath.Join(t.TempDir(), "foreign")
	require.NoError(t, os.WriteFile(path, []byte(hexSecret), 0o600))
	require.NoError(t, os.Chown(path, 65534, 65534))
	_, err := readSecretFile(path)
	require.ErrorContains(t, err, "belongs to user 65534, this process to user 0")
}
