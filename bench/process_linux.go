package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

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

// moreDescriptors has this process open so many, if it may.
func moreDescriptors(n uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if l.Max < n {
		return fmt.Errorf("%d descriptors: the limit is %d (ulimit -n)", n, l.Max)
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
