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

// forbidden returns the file of one of the devices, if each of them has one that is
// there and that this process may not open: libibverbs lists such devices all the
// same. It is empty where one may be opened, or it is not known.
func forbidden(devices []string) (file string) {
	for _, d := range devices {
		file = verbsFile(d)
		if file == "" {
			return ""
		}
		f, err := os.OpenFile(file, os.O_RDWR, 0) // a cgroup may forbid what the mode allows
		if err == nil {
			f.Close()
		}
		if !errors.Is(err, fs.ErrPermission) {
			return ""
		}
	}
	return file
}

// verbsFile is the file by which a device is opened; empty where it is not known.
func verbsFile(device string) string {
	for _, file := range rdmadev.CharDevices(device) {
		if strings.HasPrefix(filepath.Base(file), "uverbs") {
			return file
		}
	}
	return ""
}
