package launch

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// Cores lists the CPUs of the affinity mask of this process, one of each core before any second
// hardware threads. Two threads of a core have half of it each, but exchange cache lines without
// leaving the core.
func Cores() ([]int, error) {
	cpus, err := usableCPUs()
	return coresFirst(cpus, CoreOf), err
}

// CoreOf names the core of which a CPU is a hardware thread, by the list of its threads: "0",
// "0,4", "0-1" (Documentation/ABI/stable/sysfs-devices-system-cpu).
func CoreOf(cpu int) string {
	b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	if err != nil {
		return strconv.Itoa(cpu)
	}
	return strings.TrimSpace(string(b))
}

// coresFirst orders CPUs by how many of the same core come before them; coreOf is
// the same for those.
func coresFirst(cpus []int, coreOf func(cpu int) string) []int {
	type thread struct{ cpu, nth int }
	var threads []thread
	seen := map[string]int{}
	for _, cpu := range cpus {
		core := coreOf(cpu)
		threads = append(threads, thread{cpu, seen[core]})
		seen[core]++
	}
	slices.SortStableFunc(threads, func(a, b thread) int { return a.nth - b.nth })
	var list []int
	for _, t := range threads {
		list = append(list, t.cpu)
	}
	return list
}

// usableCPUs lists the CPUs of the affinity mask of this process.
func usableCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(unix.Getpid(), &set); err != nil {
		return nil, err
	}
	var list []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list, nil
}

// bindThread binds the calling thread, which must be locked, to one CPU. Processes that it starts
// inherit the binding.
func bindThread(cpu int) (undo func(), err error) {
	var old, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return nil, err
	}
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return nil, err
	}
	return func() { unix.SchedSetaffinity(0, &old) }, nil
}
