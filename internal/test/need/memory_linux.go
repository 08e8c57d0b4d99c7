package need

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// MemoryGroup skips a test that limits the memory of processes by a cgroup, and returns the file to
// which they write their number to be in one with this limit, in bytes. The group ends with the
// test.
func MemoryGroup(t testing.TB, limit int) (procs string) {
	t.Helper()
	dir, err := memoryGroup(fmt.Sprintf("sluice-test-%d", os.Getpid()), limit)
	Probe(t, "a memory cgroup of its own", err)
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("a process is left in the group: %v", err)
		}
	})
	return filepath.Join(dir, "cgroup.procs")
}

func memoryGroup(name string, limit int) (string, error) {
	var errs []error
	for _, v := range []struct{ root, file string }{
		{"/sys/fs/cgroup", "memory.max"},                   // version 2
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, // version 1
	} {
		dir := filepath.Join(v.root, name)
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			var f *os.File
			if f, err = os.OpenFile(filepath.Join(dir, v.file), os.O_WRONLY, 0); err == nil { // made by the kernel
				_, err = f.WriteString(strconv.Itoa(limit))
				if err = errors.Join(err, f.Close()); err == nil {
					return dir, nil
				}
			}
			err = errors.Join(err, os.Remove(dir))
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}
