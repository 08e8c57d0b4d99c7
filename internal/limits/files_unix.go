//go:build unix

package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tooManyFiles is an error of running out of descriptors, and the limit.
type tooManyFiles struct {
	error
	limit string
}

func (e *tooManyFiles) Error() string { return e.error.Error() + ": " + e.limit }

func (e *tooManyFiles) Unwrap() error { return e.error }

// ErrFiles is the error of the system for too many open files in a process.
const ErrFiles = syscall.EMFILE

// Files adds to an error that says that there are too many open files which limit that is; so does one
// of the lookup of a name, which does not wrap its cause, and is [ErrFiles] then. Any other error is
// returned as it is.
func Files(err error) error {
	if lookupLacks(err) {
		err = fmt.Errorf("%w: %w", err, ErrFiles)
	}
	known := (*tooManyFiles)(nil)
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, ErrFiles):
		if most, ok := mostFiles(); ok {
			return &tooManyFiles{err, fmt.Sprintf("RLIMIT_NOFILE (ulimit -n) is %d", most)}
		}
	case errors.Is(err, syscall.ENFILE):
		return &tooManyFiles{err, "those of all processes, see fs.file-max"}
	}
	return err
}

// lookupLacks says whether an error is that of a lookup that had no descriptor. It may only say that it
// has not found the name, which may be in a file that it could not open.
func lookupLacks(err error) bool {
	lookup := (*net.DNSError)(nil)
	if !errors.As(err, &lookup) || errors.Is(err, ErrFiles) {
		return false
	}
	left, ok := FilesLeft(1)
	return ok && left < 1 || strings.Contains(lookup.Err, ErrFiles.Error())
}

func mostFiles() (uint64, bool) {
	var l syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return uint64(l.Cur), err == nil
}

// FilesLeft returns how many more descriptors this process may open, or enough if there are plenty more;
// false if the system does not say how many are open.
func FilesLeft(enough int) (int, bool) {
	most, ok := mostFiles()
	if next, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0); err == nil { // the lowest that is free; few that are open are higher
		unix.Close(next)
		if ok && most > 2*uint64(next+enough)+100 {
			return enough, true
		}
	}
	open, err := os.ReadDir("/proc/self/fd")
	switch {
	case errors.Is(err, ErrFiles):
		return 0, true
	case err != nil || !ok:
		return 0, false
	}
	return int(min(most, 1<<30)) - (len(open) - 1), true // without the one of the directory
}

// inode identifies a file in its file system.
func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Ino)
	}
	return 0
}
