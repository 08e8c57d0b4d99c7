//go:build unix

package boot

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// openSecretFile opens the file without waiting for the writer of a FIFO.
func openSecretFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// checkPrivate returns nil if no other user can read or write the file.
func checkPrivate(info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&^0o600 != 0 {
		return fmt.Errorf("mode %#o, want 0600", mode)
	}
	return checkOwner(info)
}

// checkOwnDirectory returns nil if no other user can write to the directory.
func checkOwnDirectory(info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("mode %#o: other users can write to it", mode)
	}
	return checkOwner(info)
}

func checkOwner(info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d, this process to user %d", st.Uid, os.Geteuid())
	}
	return nil
}
