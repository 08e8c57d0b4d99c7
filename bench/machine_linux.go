package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/netns"
)

// governor returns the frequency governor of the first CPU; empty if the kernel does not control
// the frequency, as in most virtual machines.
func governor() string {
	b, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// systemCPUModel reads the name from /proc/cpuinfo, which has it under
// different titles on different architectures.
func systemCPUModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name", "Model", "cpu model", "uarch":
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// boundCPUs lists the CPUs that this process may run on.
func boundCPUs() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var cpus []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}

// tick is the unit of /proc/stat: USER_HZ is 100 on all architectures that Go
// runs on (proc_stat(5)).
const tick = 10 * time.Millisecond

func readCPUTimes() (cpuTimes, bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{}, false
	}
	return parseCPUTimes(string(b))
}

// parseCPUTimes reads the first line of proc_stat(5):
//
//	cpu  user nice system idle iowait irq softirq steal guest guest_nice
//
// The last two are part of the first two.
func parseCPUTimes(stat string) (cpuTimes, bool) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return cpuTimes{}, false
	}
	var t cpuTimes
	for i, f := range fields[1:9] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil || n < 0 {
			return cpuTimes{}, false
		}
		d := time.Duration(n) * tick
		t.total += d
		switch i {
		case 3, 4: // idle, iowait
		case 7:
			t.steal = d
		default:
			t.busy += d
		}
	}
	return t, true
}

// declarePeek lets rank 0 read memory of the next rank with process_vm_readv(2).
func declarePeek(ctx context.Context, b *bed, m *measurement) series {
	s := newCopying(b, m)
	type place struct {
		PID     int     `json:"pid"`
		Address uintptr `json:"address"`
	}
	all := share(ctx, b, place{os.Getpid(), uintptr(unsafe.Pointer(unsafe.SliceData(s.from)))}, nil)
	_, next := neighbours(b)
	there := []unix.RemoteIovec{{Base: all[next].Address, Len: len(s.from)}}
	s.read = func(into []byte) {
		here := []unix.Iovec{{Base: unsafe.SliceData(into)}}
		here[0].SetLen(len(into))
		if n := must1(unix.ProcessVMReadv(all[next].PID, here, there, 0)); n != len(into) {
			must(fmt.Errorf("read memory of rank %d: %d of %d bytes", next, n, len(into)))
		}
	}
	return s
}

// processFigures are of this process, private memory in KiB: proc_pid_status(5),
// proc_pid_maps(5) and proc_pid_smaps_rollup(5).
func processFigures() (_ map[string]float64, err error) {
	defer catch(&err)
	read := func(file string) string { return string(must1(os.ReadFile("/proc/self/" + file))) }
	return map[string]float64{
		"descriptors": float64(len(must1(os.ReadDir("/proc/self/fd"))) - 1), // without that of the folder itself
		"mappings":    float64(strings.Count(read("maps"), "\n")),
		"threads":     must1(sumFields(read("status"), "Threads")),
		"private":     must1(sumFields(read("smaps_rollup"), "Private_Clean", "Private_Dirty")),
	}, nil
}

// sumFields adds up the numbers of lines "NAME: NUMBER ...".
func sumFields(text string, names ...string) (sum float64, err error) {
	for _, name := range names {
		found := false
		for line := range strings.Lines(text) {
			rest, ok := strings.CutPrefix(line, name+":")
			if f := strings.Fields(rest); ok && len(f) > 0 {
				n, err := strconv.ParseUint(f[0], 10, 53)
				if err != nil {
					return 0, fmt.Errorf("%s: %w", name, err)
				}
				sum, found = sum+float64(n), true
			}
		}
		if !found {
			return 0, fmt.Errorf("no line %q", name)
		}
	}
	return sum, nil
}

// moreDescriptors raises the limit of open descriptors to so many, if this process may.
func moreDescriptors(n uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if l.Max < n {
		return fmt.Errorf("it needs %d descriptors, but the limit is %d (ulimit -n)", n, l.Max)
	}
	l.Cur = max(l.Cur, n)
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
}

// monotonic is the time of a clock that all processes of a host share, in ns.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // there always is one
	return t.Nano()
}

// newStar makes network namespaces connected by a router, which may lose packets, and a listener
// in the first one. They last as long as a process inside.
func newStar(hosts int) (s *netns.Star, ln net.Listener, err error) {
	defer catch(&err)
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, nil, fmt.Errorf("%w: nft, which makes the router lose packets", errNotInstalled)
	}
	s = must1(netns.NewStar(hosts))
	defer undo(func() { _ = s.Close() })
	must(s.Hosts[0].In(func() (err error) {
		ln, err = net.Listen("tcp4", netns.Address(0).String()+":0")
		return err
	}))
	return s, ln, nil
}

// onHosts makes each rank of a job start on a host of its own, at the router that envRouter names.
func onHosts(o *launch.Options) (_ io.Closer, err error) {
	defer catch(&err)
	s, ln := must2(newStar(o.Size))
	defer undo(func() { _ = s.Close() })
	must(s.Cut())
	o.Listener = ln
	o.Bind = launch.None // only a thread is bound, and another one starts the ranks
	o.Place = func(rank int, start func() error) error { return s.Hosts[rank].In(start) }
	o.Env = append(o.Env, envRouter+"="+s.Router.Path())
	return s, nil
}

// lose makes the router of this rank's star lose so many percent of all packets.
func lose(percent float64) {
	router := must1(netns.Open(os.Getenv(envRouter)))
	defer router.Close()
	must(router.Lose(int(percent * 10)))
}
