package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// processStats is what a process has.
type processStats struct{ descriptors, threads, mappings, private float64 } // private in KiB

// processFigures are of this process: proc_pid_status(5), proc_pid_maps(5) and
// proc_pid_smaps_rollup(5).
func processFigures() (s processStats, err error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return s, err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return s, err
	}
	rollup, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return s, err
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return s, err
	}
	s.descriptors = float64(len(fds) - 1) // that of the folder itself
	s.mappings = float64(strings.Count(string(maps), "\n"))
	if s.threads, err = sumFields(string(status), "Threads"); err != nil {
		return s, err
	}
	s.private, err = sumFields(string(rollup), "Private_Clean", "Private_Dirty")
	return s, err
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

// moreDescriptors has this process open so many, if it may.
func moreDescriptors(n uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if l.Max < n {
		return &DescriptorError{n, l.Max}
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
