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

// reap waits for the child, ends its group between its end and its removal, while the number of
// the group still belongs to it, and returns its status.
func (c *child) reap() int {
	pid := c.cmd.Process.Pid
	ended := c.poll()
	for err := error(unix.EINTR); !ended && err == unix.EINTR; {
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		ended = err == nil
	}
	if !ended { // the system refuses both: the group is ended a moment later
		status := remove(pid)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reaped = true
		signalGroup(c.cmd.Process, os.Kill)
		return exitStatus(status)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	signalGroup(c.cmd.Process, os.Kill)
	c.reaped = true
	c.cmd.Wait() // for which an exit status other than 0 is an error
	if p := c.cmd.ProcessState; p != nil {
		return exitStatus(p.Sys().(syscall.WaitStatus))
	}
	return exitStatus(remove(pid)) // package os waits with waitid(2)
}

// remove waits for the end of a child with wait4(2).
func remove(pid int) (s syscall.WaitStatus) {
	for {
		switch _, err := syscall.Wait4(pid, &s, 0, nil); err {
		case nil:
			return s
		case syscall.EINTR:
		default:
			return 0xff << 8 // it is unknown: no success
		}
	}
}

// poll returns when the child has ended, or earlier, with false, if its end cannot be polled for, as
// before Linux 5.10. Unlike waitid(2) it takes no OS thread, of which a program can have at most 10,000.
func (c *child) poll() (ended bool) {
	fd, err := unix.PidfdOpen(c.cmd.Process.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		ended = n == 1
		return ended || err != nil && err != unix.EINTR
	})
	return ended && err == nil
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
