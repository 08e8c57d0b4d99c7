// Package limits says what the system lets this process have, as far as files of the kernel say: /proc
// and those of cgroups.
package limits

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// Host is what this host reports about itself in files.
type Host struct{ fs.FS }

// Field returns the word behind a name in a file.
func (h Host) Field(file, name string) string {
	return h.fields(file)(name)
}

// fields reads a file, and returns what returns the word behind a name in it.
func (h Host) fields(file string) func(name string) string {
	b, _ := fs.ReadFile(h.FS, file)
	return func(name string) string { return field(string(b), name) }
}

func field(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return ""
}

// Number returns the first number in a file; false if there is none, for example if it says "max".
func (h Host) Number(file string) (uint64, bool) {
	b, err := fs.ReadFile(h.FS, file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil
}

// Room is how much more memory this process may have according to one bound.
type Room struct {
	Left  uint64 // bytes
	Swap  uint64 // and as many by swapping
	Most  uint64 // that all processes under the bound may have
	Bound string // for people
}

// Memory lists the rooms for memory: that of the machine, and those of each cgroup from that of
// this process upwards. Pages of files count as room.
func (h Host) Memory() (list []Room) { return h.rooms(math.MaxUint64) }

// rooms is Memory, but the room may be larger than Left says if that is enough: files of the kernel
// that count pages take some milliseconds.
func (h Host) rooms(enough uint64) (list []Room) {
	meminfo := h.fields("proc/meminfo")
	kib := func(name string) (uint64, bool) {
		n, err := strconv.ParseUint(meminfo(name), 10, 64)
		return n << 10, err == nil
	}
	swap, _ := kib("SwapFree:")
	if left, ok := kib("MemAvailable:"); ok {
		most, _ := kib("MemTotal:")
		list = append(list, Room{left, swap, most, "MemAvailable"})
	}
	for _, dir := range h.Groups("memory") {
		for _, names := range []struct {
			most, used    string
			files         []string
			swap, swapped string
		}{
			{"/memory.max", "/memory.current", []string{"inactive_file", "active_file", "slab_reclaimable"}, "/memory.swap.max", "/memory.swap.current"}, // version 2
			{"/memory.limit_in_bytes", "/memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}, "", ""},                           // version 1
		} {
			most, ok := h.Number(dir + names.most)
			if !ok {
				continue
			}
			used := uint64(0)
			if most < unlimited { // to look takes time
				used, _ = h.Number(dir + names.used)
			}
			if most-min(used, most) < enough {
				stat := h.fields(dir + "/memory.stat")
				for _, name := range names.files {
					file, _ := strconv.ParseUint(stat(name+" "), 10, 64)
					used -= min(file, used)
				}
			}
			r := Room{most - min(used, most), swap, most, fmt.Sprintf("%d MiB in /%s%s", most>>20, dir, names.most)}
			if most, ok := h.Number(dir + names.swap); ok {
				swapped, _ := h.Number(dir + names.swapped)
				r.Swap = min(swap, most-min(swapped, most))
			}
			list = append(list, r)
		}
	}
	return list
}

// unlimited is less than what version 1 says where there is no limit.
const unlimited = 1 << 62

// Groups returns the directories of the cgroups that a controller of either version has
// this process in, its own first (cgroups(7)).
func (h Host) Groups(controller string) (dirs []string) {
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
