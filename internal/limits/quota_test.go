package limits

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// The CPU time that this process may have is the least that its cgroups, of either version, grant.
func TestQuota(t *testing.T) {
	const unified, cpu = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
	for name, c := range map[string]struct {
		mount, group string
		files        map[string]string
		want         float64
	}{
		"none":           {unified, "0::/a/b", map[string]string{"a/b/cpu.max": "max 100000", "a/cpu.max": "max 100000"}, math.Inf(1)},
		"of a group":     {unified, "0::/a/b", map[string]string{"a/b/cpu.max": "150000 100000", "a/cpu.max": "max 100000"}, 1.5},
		"of one above":   {unified, "0::/a/b", map[string]string{"a/b/cpu.max": "800000 100000\n", "a/cpu.max": "100000 50000\n"}, 2},
		"version 1":      {cpu, "4:cpu,cpuacct:/a", map[string]string{"cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 0.5},
		"version 1 none": {cpu, "4:cpu,cpuacct:/a", map[string]string{"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, math.Inf(1)},
		"nonsense":       {unified, "0::/a", map[string]string{"a/cpu.max": "5 0"}, math.Inf(1)},
		"not readable":   {unified, "0::/a", nil, math.Inf(1)},
	} {
		t.Run(name, func(t *testing.T) {
			fs := fstest.MapFS{"proc/self/mountinfo": {Data: []byte(c.mount)}, "proc/self/cgroup": {Data: []byte(c.group + "\n")}}
			for file, text := range c.files {
				fs["sys/fs/cgroup/"+file] = &fstest.MapFile{Data: []byte(text)}
			}
			require.Equal(t, c.want, Host{fs}.Quota().CPUs())
		})
	}
}
