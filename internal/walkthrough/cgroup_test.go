package walkthrough

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroup is one of memory and CPU time that a container has to itself: the directories of both controllers,
// which are the same in version 2.
type cgroup struct{ Memory, CPU string }

const hierarchy = "/sys/fs/cgroup"

// newCgroup makes one with limits in bytes and thousandths of a CPU; 0: none.
func newCgroup(name string, memory, milli int64) (g cgroup, err error) {
	type setting struct{ file, value string }
	var ofMemory, ofCPU []setting
	if _, e := os.Stat(hierarchy + "/cgroup.controllers"); e == nil {
		// As root of the hierarchy, or in it alone, this process may hand controllers on.
		if err := write(hierarchy+"/cgroup.subtree_control", "+memory +cpu"); err != nil {
			return g, err
		}
		g = cgroup{filepath.Join(hierarchy, name), filepath.Join(hierarchy, name)}
		ofMemory = []setting{{"memory.max", strconv.FormatInt(memory, 10)}}
		ofCPU = []setting{{"cpu.max", fmt.Sprint(milli*100, 100_000)}}
	} else {
		g = cgroup{filepath.Join(hierarchy, "memory", name), filepath.Join(hierarchy, "cpu", name)}
		ofMemory = []setting{{"memory.limit_in_bytes", strconv.FormatInt(memory, 10)}}
		ofCPU = []setting{{"cpu.cfs_period_us", "100000"}, {"cpu.cfs_quota_us", strconv.FormatInt(milli*100, 10)}}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.remove())
		}
	}()
	for _, dir := range g.dirs() {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return g, err
		}
	}
	if memory > 0 {
		write(filepath.Join(g.Memory, "memory.swap.max"), "0") // where the kernel has it: pods do not swap
		for _, s := range ofMemory {
			err = errors.Join(err, write(filepath.Join(g.Memory, s.file), s.value))
		}
	}
	if milli > 0 {
		for _, s := range ofCPU {
			err = errors.Join(err, write(filepath.Join(g.CPU, s.file), s.value))
		}
	}
	return g, err
}

func write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0) // it is the kernel that makes these
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (g cgroup) dirs() []string {
	if g.Memory == g.CPU {
		return []string{g.Memory}
	}
	return []string{g.Memory, g.CPU}
}

// enter moves this process into it.
func (g cgroup) enter() error {
	for _, dir := range g.dirs() {
		if err := write(filepath.Join(dir, "cgroup.procs"), "0"); err != nil {
			return err
		}
	}
	return nil
}

// remove removes it, once the kernel has seen that its last process has ended.
func (g cgroup) remove() error {
	var err error
	for _, dir := range g.dirs() {
		for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			e := os.Remove(dir)
			if e == nil || errors.Is(e, os.ErrNotExist) {
				break
			}
			if !errors.Is(e, syscall.EBUSY) || time.Now().After(until) {
				err = errors.Join(err, e)
				break
			}
		}
	}
	return err
}

// ooms is how often the kernel has killed in it for want of memory.
func (g cgroup) ooms() (n int) {
	for _, file := range []string{"memory.events", "memory.oom_control"} { // version 2, version 1
		b, _ := os.ReadFile(filepath.Join(g.Memory, file))
		for line := range strings.Lines(string(b)) {
			if _, err := fmt.Sscanf(line, "oom_kill %d", &n); err == nil {
				return n
			}
		}
	}
	return 0
}
