//go:build !unix

package limits

import (
	"errors"
	"io/fs"
)

// ErrFiles is the error of the system for too many open files in a process.
var ErrFiles = errors.New("too many open files")

// Files adds to an error that says that there are too many open files which limit that is.
func Files(err error) error { return err }

// FilesLeft returns how many more descriptors this process may open; false if that is unknown.
func FilesLeft(int) (int, bool) { return 0, false }

func inode(fs.FileInfo) uint64 { return 0 }
