package leak

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-hpc/sluice/internal/netpoll"
)

// resources is what the kernel keeps for this process that outlives no bug:
// its open descriptors and its shared mappings.
type resources struct {
	descriptors map[int]string    // number to what it refers to
	mappings    map[object]uint64 // bytes mapped of each object
}

// object is a mapped file: its inode tells apart two memfds of one name.
type object struct{ path, inode string }

// warm opens what stays for the life of the process: the epoll instance and the eventfd of Go's network
// poller, which appear with the first pollable descriptor, and the pipe of netpoll.
func warm() { netpoll.Look() }

func held() (resources, error) {
	descriptors, err := openDescriptors()
	if err != nil {
		return resources{}, err
	}
	mappings, err := sharedMappings()
	if err != nil {
		return resources{}, err
	}
	return resources{descriptors, mappings}, nil
}

// extra lists what now holds and r does not. A number that refers to
// something else than before counts: it was closed and opened again.
func (r resources) extra(now resources) []string {
	var list []string
	for fd, target := range now.descriptors {
		if r.descriptors[fd] != target {
			list = append(list, fmt.Sprintf("descriptor %d: %s", fd, target))
		}
	}
	for o, size := range now.mappings {
		if had := r.mappings[o]; size > had {
			list = append(list, fmt.Sprintf("mapping of %s (inode %s): %d bytes", o.path, o.inode, size-had))
		}
	}
	slices.Sort(list)
	return list
}

func openDescriptors() (map[int]string, error) {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	open := make(map[int]string, len(entries))
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		target, err := os.Readlink(dir + "/" + e.Name())
		if os.IsNotExist(err) {
			continue // closed since; that of ReadDir itself always is
		}
		if err != nil {
			return nil, err
		}
		open[fd] = target
	}
	return open, nil
}

// sharedMappings adds up the mappings that another process may see: every
// writable shared one, and any of a memfd or of a file in /dev/shm. Read-only
// shared mappings of ordinary files are left out: the C library keeps some.
func sharedMappings() (map[object]uint64, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	shared := make(map[object]uint64)
	s := bufio.NewScanner(f)
	for s.Scan() {
		o, size, ok, err := parseMapping(s.Text())
		if err != nil {
			return nil, err
		}
		if ok {
			shared[o] += size
		}
	}
	return shared, s.Err()
}

// parseMapping reads one line of proc_pid_maps(5):
//
//	address           perms offset  dev   inode       pathname
//	7f1c0000-7f1d0000 rw-s 00000000 00:01 1042        /memfd:arena (deleted)
//
// ok says whether the mapping counts as shared.
func parseMapping(line string) (o object, size uint64, ok bool, err error) {
	fields := strings.Fields(line)
	if len(fields) < 5 {
		return o, 0, false, fmt.Errorf("/proc/self/maps: cannot read %q", line)
	}
	from, to, _ := strings.Cut(fields[0], "-")
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	if err1 != nil || err2 != nil || end < start {
		return o, 0, false, fmt.Errorf("/proc/self/maps: cannot read %q", line)
	}
	perms := fields[1]
	o = object{path: strings.Join(fields[5:], " "), inode: fields[4]}
	ok = strings.Contains(perms, "w") && strings.HasSuffix(perms, "s") ||
		strings.HasPrefix(o.path, "/memfd:") || strings.HasPrefix(o.path, "/dev/shm/")
	return o, end - start, ok, nil
}
