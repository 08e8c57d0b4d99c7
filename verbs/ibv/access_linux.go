//go:build cgo

package ibv

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-hpc/sluice/internal/rdmadev"
)

// forbidden returns the file of one of the devices if each of them has a file that exists
// and that this process may not open: libibverbs lists such devices nevertheless. It returns
// "" if one may be opened, or if that is not known.
func forbidden(devices []string) (file string) {
	for _, d := range devices {
		file = verbsFile(d)
		if file == "" {
			return ""
		}
		f, err := os.OpenFile(file, os.O_RDWR, 0) // a cgroup may forbid what the file's mode allows
		if err == nil {
			f.Close()
		}
		if !errors.Is(err, fs.ErrPermission) {
			return ""
		}
	}
	return file
}

// verbsFile returns the file through which a device is opened; empty if it is not known.
func verbsFile(device string) string {
	for _, file := range rdmadev.CharDevices(device) {
		if strings.HasPrefix(filepath.Base(file), "uverbs") {
			return file
		}
	}
	return ""
}
