package limits

import (
	"io/fs"
	"math"
	"strconv"
	"strings"
)

// Quota is the CPU time that cgroups grant this process, together with all others in them: the
// directories of these cgroups.
type Quota struct {
	h    Host
	dirs []string
}

// Quota finds the cgroups of this process.
func (h Host) Quota() Quota { return Quota{h, h.Groups("cpu")} }

// CPUs is the number of CPUs of which the time is granted at most, a fraction perhaps; +Inf without
// a quota.
func (q Quota) CPUs() float64 {
	least := math.Inf(1)
	for _, dir := range q.dirs {
		words := strings.Fields(q.h.word(dir + "/cpu.max")) // version 2
		if len(words) == 0 {
			words = []string{q.h.word(dir + "/cpu.cfs_quota_us"), q.h.word(dir + "/cpu.cfs_period_us")} // version 1; -1: none
		}
		if len(words) != 2 {
			continue
		}
		quota, err := strconv.ParseUint(words[0], 10, 63)
		period, err2 := strconv.ParseUint(words[1], 10, 63)
		if err == nil && err2 == nil && quota > 0 && period > 0 {
			least = min(least, float64(quota)/float64(period))
		}
	}
	return least
}

// Group identifies the innermost cgroup among those of this kernel; 0 if there is none.
func (q Quota) Group() uint64 {
	if len(q.dirs) == 0 {
		return 0
	}
	info, err := fs.Stat(q.h.FS, q.dirs[0])
	if err != nil {
		return 0
	}
	return inode(info)
}

// word is all that a file says.
func (h Host) word(file string) string {
	b, _ := fs.ReadFile(h.FS, file)
	return strings.TrimSpace(string(b))
}
