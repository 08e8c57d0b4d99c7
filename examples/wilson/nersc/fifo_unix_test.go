//go:build unix

package nersc

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is no regular file is refused, and not waited for.
func TestIrregular(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	held, err := os.OpenFile(fifo, os.O_RDWR, 0) // or to open it to read would wait
	require.NoError(t, err)
	defer held.Close()
	for _, path := range []string{fifo, t.TempDir()} {
		_, err := Open(path)
		require.EqualError(t, err, "open "+path+": not a regular file; copy it into one")
	}
}
