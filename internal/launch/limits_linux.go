package launch

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// tasksPerRank is the least number of threads of a Go program that communicates.
	tasksPerRank = 4
	// memoryPerRank is the least memory of such a program, in bytes.
	memoryPerRank = 4 << 20
	// ourFiles is how many descriptors are left to this process besides those of ranks.
	ourFiles = 32
)

// systemBounds lists the bounds set by the system. Anything that cannot be determined is no bound.
func systemBounds(filesPerRank int) []bound {
	h := host{os.DirFS("/")}
	list := append(h.tasks(), h.memory()...)
	var files, tasks unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		list = append(list, fileBound(files.Cur, filesPerRank))
	}
	if unix.Getrlimit(unix.RLIMIT_NPROC, &tasks) == nil && !h.exempt() {
		list = append(list, taskBound("RLIMIT_NPROC", tasks.Cur, ownTasks()))
	}
	return list
}

func fileBound(most uint64, perRank int) bound {
	left := max(clamp(most)-ourFiles, 0)
	return bound{left / perRank, fmt.Sprintf("RLIMIT_NOFILE is %d, and each rank uses %d descriptors of the launcher", most, perRank)}
}

func taskBound(name string, most, used uint64) bound {
	left := max(clamp(most)-clamp(used), 0)
	return bound{left / tasksPerRank, fmt.Sprintf("%s is %d tasks, of which %d are in use, and each rank needs at least %d", name, most, used, tasksPerRank)}
}

func memoryBound(name string, left uint64) bound {
	return bound{clamp(left) / memoryPerRank, fmt.Sprintf("%s leaves %d MiB, and each rank needs at least %d", name, left>>20, memoryPerRank>>20)}
}

// clamp converts a number that may mean infinity to an int.
func clamp(n uint64) int { return int(min(n, math.MaxInt)) }

// exempt says whether this process is exempt from RLIMIT_NPROC: fork(2).
func (h host) exempt() bool {
	if os.Getuid() == 0 {
		return true
	}
	caps, err := strconv.ParseUint(h.field("proc/self/status", "CapEff:"), 16, 64)
	return err == nil && caps&(1<<unix.CAP_SYS_RESOURCE|1<<unix.CAP_SYS_ADMIN) != 0
}

// ownTasks counts the threads of all processes of this user, as far as they can be seen.
func ownTasks() (n uint64) {
	list, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	uid := uint32(os.Getuid())
	for _, d := range list {
		if c := d.Name()[0]; c < '0' || c > '9' {
			continue
		}
		info, err := os.Stat("/proc/" + d.Name() + "/task")
		if err != nil {
			continue // it has ended
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == uid {
			n += uint64(st.Nlink) - 2 // a directory for each thread
		}
	}
	return n
}

// host is what this host reports about itself in files.
type host struct{ fs.FS }

// field returns the word behind a name in a file.
func (h host) field(file, name string) string {
	b, err := fs.ReadFile(h.FS, file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return ""
}

// number returns the first number in a file; false if there is none, for example if it says "max".
func (h host) number(file string) (uint64, bool) {
	b, err := fs.ReadFile(h.FS, file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil
}

// tasks lists the bounds on tasks: that of the kernel, and those of each cgroup from that of this
// process upwards.
func (h host) tasks() (list []bound) {
	if b, err := fs.ReadFile(h.FS, "proc/loadavg"); err == nil {
		if words := strings.Fields(string(b)); len(words) > 3 { // running/all
			_, all, _ := strings.Cut(words[3], "/")
			used, _ := strconv.ParseUint(all, 10, 64)
			for _, name := range []string{"pid_max", "threads-max"} {
				if most, ok := h.number("proc/sys/kernel/" + name); ok {
					list = append(list, taskBound("kernel."+name, most, used))
				}
			}
		}
	}
	for _, dir := range h.groups("pids") {
		if most, ok := h.number(dir + "/pids.max"); ok {
			used, _ := h.number(dir + "/pids.current")
			list = append(list, taskBound("pids.max in /"+dir, most, used))
		}
	}
	return list
}

// memory lists the bounds on memory in the same way. Pages of files count as available.
func (h host) memory() (list []bound) {
	if kib, err := strconv.ParseUint(h.field("proc/meminfo", "MemAvailable:"), 10, 64); err == nil {
		list = append(list, memoryBound("MemAvailable", kib<<10))
	}
	for _, dir := range h.groups("memory") {
		for _, names := range []struct{ most, used, inactive, active string }{
			{"/memory.max", "/memory.current", "inactive_file", "active_file"},                               // version 2
			{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file", "total_active_file"}, // version 1
		} {
			most, ok := h.number(dir + names.most)
			if !ok {
				continue
			}
			used, _ := h.number(dir + names.used)
			for _, name := range []string{names.inactive, names.active} {
				file, _ := strconv.ParseUint(h.field(dir+"/memory.stat", name+" "), 10, 64)
				used -= min(file, used)
			}
			list = append(list, memoryBound(fmt.Sprintf("%d MiB in /%s%s", most>>20, dir, names.most), most-min(used, most)))
		}
	}
	return list
}

// groups returns the directories of the cgroups that a controller of either version has
// this process in, its own first (cgroups(7)).
func (h host) groups(controller string) (dirs []string) {
	memberships, err := fs.ReadFile(h.FS, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := fs.ReadFile(h.FS, "proc/self/mountinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(memberships)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || parts[1] != "" && !has(parts[1], controller) {
			continue
		}
		for mount := range strings.Lines(string(mounts)) {
			if dir, point := groupOf(mount, parts[1] == "", controller, parts[2]); dir != "" {
				for ; len(dir) > len(point); dir = path.Dir(dir) {
					dirs = append(dirs, dir)
				}
				dirs = append(dirs, point)
				break
			}
		}
	}
	return dirs
}

// groupOf returns the path of a cgroup in a mount and the mount point, without the leading slash;
// nothing if it is not a mount of that controller (proc_pid_mountinfo(5)).
func groupOf(mount string, unified bool, controller, group string) (dir, point string) {
	where, what, ok := strings.Cut(mount, " - ")
	fields, kind := strings.Fields(where), strings.Fields(what)
	if !ok || len(fields) < 5 || len(kind) < 3 {
		return "", ""
	}
	switch {
	case unified && kind[0] == "cgroup2":
	case !unified && kind[0] == "cgroup" && has(kind[2], controller):
	default:
		return "", ""
	}
	root, point := fields[3], strings.TrimPrefix(path.Clean(fields[4]), "/")
	below, ok := strings.CutPrefix(group, strings.TrimSuffix(root, "/"))
	if !ok || below != "" && below[0] != '/' || strings.Contains(below, "/..") {
		below = "" // it belongs to another namespace: only its root is visible
	}
	return path.Join(point, below), point
}

// has says whether a list with commas has an entry.
func has(list, entry string) bool { return strings.Contains(","+list+",", ","+entry+",") }
