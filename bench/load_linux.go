package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf is the CPU time of a process. Its clock is that of clock_getcpuclockid(3).
func cpuOf(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED (include/linux/posix-timers.h)
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|sched), &t)
	return time.Duration(t.Nano()), err
}

// bindSelf binds the calling thread, which becomes the goroutine's own.
func bindSelf(cpu int) error {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}

var errNoCPUGroup = errors.New("no cgroup hierarchy has the CPU controller")

// cpuGroup is the directory of the cgroup of CPUs that this process is in.
type cpuGroup struct {
	dir   string
	mount string // of the hierarchy, which dir is beneath or the same as
	v2    bool
}

// findCPUGroup reads /proc/self/cgroup (cgroups(7)) and /proc/self/mountinfo:
//
//	4:cpu,cpuacct:/system.slice/x.service
//	0::/system.slice/x.service
//
//	30 23 0:26 /root /mount/point rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
//
// A hierarchy of version 1 with the controller is the one that counts.
func findCPUGroup(cgroup, mountinfo string) (g cpuGroup, err error) {
	paths := map[bool]string{} // by version 2
	for line := range strings.Lines(cgroup) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) != 3:
		case f[0] == "0" && f[1] == "":
			paths[true] = f[2]
		case slices.Contains(strings.Split(f[1], ","), "cpu"):
			paths[false] = f[2]
		}
	}
	for _, v2 := range []bool{false, true} {
		path, ok := paths[v2]
		if !ok {
			continue
		}
		for line := range strings.Lines(mountinfo) {
			before, after, _ := strings.Cut(line, " - ")
			at, of := strings.Fields(before), strings.Fields(after)
			if len(at) < 5 || len(of) < 3 {
				continue
			}
			is := of[0] == "cgroup2"
			if !v2 {
				is = of[0] == "cgroup" && slices.Contains(strings.Split(of[2], ","), "cpu")
			}
			below, inside := strings.CutPrefix(path, strings.TrimSuffix(at[3], "/"))
			if is && inside {
				return cpuGroup{dir: filepath.Join(at[4], below), mount: at[4], v2: v2}, nil
			}
		}
	}
	return g, errNoCPUGroup
}

// quotaGroup is a cgroup with a quota, beneath that of this process, which is in it.
type quotaGroup struct {
	dir  string
	home string // where this process was
}

// quotaPeriod is the usual one, that of the kernel (Documentation/scheduler/sched-bwc.rst).
const quotaPeriod = 100 * time.Millisecond

// newQuotaGroup makes one that grants so many CPUs, and moves this process there.
func newQuotaGroup(cpus float64) *quotaGroup {
	defer during(func() string { return "CPU quota by cgroup" })
	g := must1(findCPUGroup(string(must1(os.ReadFile("/proc/self/cgroup"))), string(must1(os.ReadFile("/proc/self/mountinfo")))))
	parent := g.dir
	if g.v2 {
		parent = must1(g.delegated())
	}
	q := &quotaGroup{dir: filepath.Join(parent, fmt.Sprintf("sluice-bench-%d", os.Getpid())), home: g.dir}
	must(os.Mkdir(q.dir, 0o755))
	defer undo(func() { _ = q.Close() })
	period, quota := quotaPeriod.Microseconds(), int64(cpus*float64(quotaPeriod.Microseconds()))
	if g.v2 {
		must(writeGroup(q.dir, "cpu.max", fmt.Sprintf("%d %d", quota, period)))
	} else {
		must(writeGroup(q.dir, "cpu.cfs_period_us", fmt.Sprint(period)))
		must(writeGroup(q.dir, "cpu.cfs_quota_us", fmt.Sprint(quota)))
	}
	must(writeGroup(q.dir, "cgroup.procs", strconv.Itoa(os.Getpid())))
	return q
}

func writeGroup(dir, file, text string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)
}

// delegated is the cgroup of version 2 beneath which one with a quota can be: this one, if
// its children may have the controller, else the nearest above it whose children have.
// Where a cgroup has processes the kernel refuses the first, but in the root.
func (g *cpuGroup) delegated() (string, error) {
	has := func(dir string) bool {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		return err == nil && slices.Contains(strings.Fields(string(b)), "cpu")
	}
	var refused error
	if !has(g.dir) {
		refused = writeGroup(g.dir, "cgroup.subtree_control", "+cpu")
	}
	for dir := g.dir; ; dir = filepath.Dir(dir) {
		if has(dir) {
			return dir, nil
		}
		if dir == g.mount || dir == "/" {
			return "", errors.Join(errNoCPUGroup, refused)
		}
	}
}

// Close moves this process back, and removes the cgroup when the last process has left it.
func (q *quotaGroup) Close() error {
	err := writeGroup(q.home, "cgroup.procs", strconv.Itoa(os.Getpid()))
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		gone := os.Remove(q.dir)
		if gone == nil {
			return err
		}
		if !errors.Is(gone, unix.EBUSY) || time.Now().After(until) {
			return errors.Join(err, gone)
		}
	}
}
