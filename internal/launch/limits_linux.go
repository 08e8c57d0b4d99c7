package launch

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
)

const (
	// tasksPerRank is the least number of threads of a Go program that communicates.
	tasksPerRank = 4
	// memoryPerRank is the least memory of such a program, in bytes, and memoryPerPair what each rank keeps
	// of each: its address. Both are measured: docs/scale.md.
	memoryPerRank = 4 << 20
	memoryPerPair = 300
	// ourFiles is how many descriptors are left to this process besides those of ranks.
	ourFiles = 32
)

// systemBounds lists the bounds set by the system. Anything that cannot be determined is no bound.
func systemBounds(filesPerRank int) []bound {
	h := limits.Host{FS: os.DirFS("/")}
	list := append(tasks(h), memory(h)...)
	list = append(list, descriptorBound(filesPerRank, 0)...)
	var tasks unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &tasks) == nil && !exempt(h) {
		list = append(list, taskBound("RLIMIT_NPROC", tasks.Cur, ownTasks(), "ulimit -u"))
	}
	return list
}

// descriptorBound lists the bound set by RLIMIT_NOFILE where so many descriptors are taken besides.
func descriptorBound(perRank, besides int) []bound {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return nil
	}
	return []bound{fileBound(files.Cur-min(files.Cur, uint64(besides)), perRank)}
}

func fileBound(most uint64, perRank int) bound {
	left := max(clamp(most)-ourFiles, 0)
	return bound{left / perRank, fmt.Sprintf("RLIMIT_NOFILE is %d, and each rank uses %d descriptors of the launcher", most, perRank), "ulimit -n"}
}

func taskBound(name string, most, used uint64, raise string) bound {
	left := max(clamp(most)-clamp(used), 0)
	return bound{left / tasksPerRank, fmt.Sprintf("%s is %d tasks, of which %d are in use, and each rank needs at least %d", name, most, used, tasksPerRank), raise}
}

func memoryBound(name string, left uint64) bound {
	// the larger n of memoryPerPair n² + memoryPerRank n = left
	half := memoryPerRank / (2.0 * memoryPerPair)
	most := math.Sqrt(half*half+float64(left)/memoryPerPair) - half
	return bound{int(most), fmt.Sprintf("%s leaves %d MiB, and each rank needs at least %d, and %d bytes for each rank of the job", name, left>>20, memoryPerRank>>20, memoryPerPair), ""}
}

// clamp converts a number that may mean infinity to an int.
func clamp(n uint64) int { return int(min(n, math.MaxInt)) }

// exempt says whether this process is exempt from RLIMIT_NPROC: fork(2).
func exempt(h limits.Host) bool {
	if os.Getuid() == 0 {
		return true
	}
	caps, err := strconv.ParseUint(h.Field("proc/self/status", "CapEff:"), 16, 64)
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

// tasks lists the bounds on tasks: that of the kernel, and those of each cgroup from that of this
// process upwards.
func tasks(h limits.Host) (list []bound) {
	if b, err := fs.ReadFile(h.FS, "proc/loadavg"); err == nil {
		if words := strings.Fields(string(b)); len(words) > 3 { // running/all
			_, all, _ := strings.Cut(words[3], "/")
			used, _ := strconv.ParseUint(all, 10, 64)
			for _, name := range []string{"pid_max", "threads-max"} {
				if most, ok := h.Number("proc/sys/kernel/" + name); ok {
					list = append(list, taskBound("kernel."+name, most, used, "sysctl kernel."+name))
				}
			}
		}
	}
	for _, dir := range h.Groups("pids") {
		if most, ok := h.Number(dir + "/pids.max"); ok {
			used, _ := h.Number(dir + "/pids.current")
			list = append(list, taskBound("pids.max in /"+dir, most, used, "the limit on tasks of the batch job, service or container"))
		}
	}
	return list
}

// memory lists the bounds on memory in the same way.
func memory(h limits.Host) (list []bound) {
	for _, r := range h.Memory() {
		list = append(list, memoryBound(r.Bound, r.Left))
	}
	return list
}
