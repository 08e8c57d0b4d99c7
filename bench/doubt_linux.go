package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

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
