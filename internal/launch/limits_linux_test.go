package launch

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/limits"
	procs "github.com/sluice-hpc/sluice/internal/test/ranks"
)

// More ranks than the host bears are refused before anything is started, with the figures,
// unless that is what is asked for.
func TestLimitError(t *testing.T) {
	made := filepath.Join(t.TempDir(), "made")
	o := Options{Size: boot.MaxSize, Args: []string{"touch", made}}
	r, err := Run(procs.Within(t), o)
	var e *LimitError
	require.ErrorAs(t, err, &e)
	require.Equal(t, boot.MaxSize, e.Ranks)
	require.Positive(t, e.Most)
	require.Less(t, e.Most, boot.MaxSize)
	require.ErrorContains(t, err, "launch: 1048576 ranks, at most ")
	require.ErrorContains(t, err, e.What)
	require.Equal(t, -1, r.First)
	_, err = os.Stat(made)
	require.ErrorIs(t, err, os.ErrNotExist)

	o.Oversubscribe = true
	require.NoError(t, o.bearable(o.bounds()))
}

// Of several bounds the least is told; ranks up to it are started.
func TestBearable(t *testing.T) {
	bounds := []bound{{300, "much", ""}, {100, "little", ""}, {200, "some", "it"}, {-5, "less than nothing", ""}}
	for _, c := range []struct {
		size, bounds int
		most         int
		what         string
	}{
		{100, 3, 0, ""}, {101, 3, 100, "little"}, {200, 3, 100, "little"}, {1000, 1, 300, "much"}, {1, 4, 0, "less than nothing"}, {1, 0, 0, ""},
	} {
		o := Options{Size: c.size}
		err := o.bearable(bounds[:c.bounds])
		if c.what == "" {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, &LimitError{Ranks: c.size, Most: c.most, What: c.what}, err)
	}
	o := Options{Size: 201, Oversubscribe: true}
	require.NoError(t, o.bearable(bounds))
	require.Equal(t, &LimitError{201, 200, "some", "it", nil}, o.exceeded(hard(bounds)))
	o.Size = 200
	require.Nil(t, o.exceeded(hard(bounds)))
	var e *LimitError
	require.ErrorAs(t, (&Options{Size: 201}).bearable(bounds[:3]), &e)
	require.Equal(t, &LimitError{201, 100, "little", "", &LimitError{201, 200, "some", "it", nil}}, e)
}

// Sharing CPUs is in order, up to a point.
func TestCPUBound(t *testing.T) {
	for cpus, most := range map[int]int{1: 256, 2: 256, 3: 384, 64: 8192} {
		require.Equal(t, most, cpuBound(cpus).most)
	}
	for _, o := range []Options{{}, {Stdout: os.Stdout}, {Stdout: os.Stdout, Stderr: os.Stderr}} {
		require.Positive(t, o.filesPerRank())
	}
}

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		b    bound
		most int
		what string
	}{
		{fileBound(1024, 5), (1024 - ourFiles) / 5, "RLIMIT_NOFILE is 1024"},
		{fileBound(10, 5), 0, "RLIMIT_NOFILE is 10"},
		{fileBound(math.MaxUint64, 3), (math.MaxInt - ourFiles) / 3, ""},
		{taskBound("RLIMIT_NPROC", 1000, 200, "it"), 200, "RLIMIT_NPROC is 1000 tasks, of which 200 are in use"},
		{taskBound("RLIMIT_NPROC", 100, 200, "it"), 0, ""},
		{taskBound("RLIMIT_NPROC", math.MaxUint64, 200, "it"), (math.MaxInt - 200) / tasksPerRank, ""},
		{memoryBound("MemAvailable", 100<<20), 24, "MemAvailable leaves 100 MiB"},
		{memoryBound("MemAvailable", 16<<30), 3311, "each rank needs at least 4, and 300 bytes for each rank of the job"},
		{memoryBound("MemAvailable", 0), 0, ""},
		{memoryBound("MemAvailable", math.MaxUint64), 247963062, ""},
	} {
		require.Equal(t, c.most, c.b.most, c.b.what)
		require.Contains(t, c.b.what, c.what)
	}
}

func TestOwnTasks(t *testing.T) {
	require.GreaterOrEqual(t, ownTasks(), uint64(threads(t)))
}

// What bounds tasks and memory is found in cgroups of either version, in all of them from
// that of this process upwards, and in containers.
func TestHost(t *testing.T) {
	const (
		v1Mounts = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:5 - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
		v2Mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	)
	for _, c := range []struct {
		name   string
		files  map[string]string
		tasks  []int
		memory []int
	}{
		{"nothing", nil, nil, nil},
		{"kernel", map[string]string{
			"proc/loadavg":                "0.00 0.01 0.05 2/400 12345\n",
			"proc/sys/kernel/pid_max":     "32768\n",
			"proc/sys/kernel/threads-max": "2400\n",
			"proc/meminfo":                "MemTotal:  16000000 kB\nMemAvailable:    8192 kB\n",
		}, []int{(32768 - 400) / tasksPerRank, 500}, []int{1}},
		{"version 2", map[string]string{
			"proc/self/cgroup":                                  "0::/user.slice/job.scope\n",
			"proc/self/mountinfo":                               v2Mounts,
			"sys/fs/cgroup/user.slice/job.scope/pids.max":       "max\n",
			"sys/fs/cgroup/user.slice/job.scope/pids.current":   "7\n",
			"sys/fs/cgroup/user.slice/pids.max":                 "1000\n",
			"sys/fs/cgroup/user.slice/pids.current":             "200\n",
			"sys/fs/cgroup/user.slice/job.scope/memory.max":     "104857600\n",
			"sys/fs/cgroup/user.slice/job.scope/memory.current": "62914560\n",
			"sys/fs/cgroup/user.slice/job.scope/memory.stat":    "anon 1\nfile 31457280\ninactive_file 20971520\nactive_file 10485760\n",
			"sys/fs/cgroup/user.slice/memory.max":               "max\n",
		}, []int{200}, []int{17}},
		{"version 1", map[string]string{
			"proc/self/cgroup":                                    "8:pids:/job\n4:memory:/job/step\n1:cpu,cpuacct:/\n0::/\n",
			"proc/self/mountinfo":                                 v1Mounts,
			"sys/fs/cgroup/pids/job/pids.max":                     "50\n",
			"sys/fs/cgroup/pids/job/pids.current":                 "10\n",
			"sys/fs/cgroup/memory/job/step/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/job/memory.limit_in_bytes":      "41943040\n",
			"sys/fs/cgroup/memory/job/memory.usage_in_bytes":      "41943040\n",
			"sys/fs/cgroup/memory/job/memory.stat":                "cache 1\ntotal_inactive_file 8388608\ntotal_active_file 12582912\n",
		}, []int{10}, []int{175334315, 4}},
		{"container: what its own root is called outside", map[string]string{
			"proc/self/cgroup":             "0::/docker/abc/inner\n",
			"proc/self/mountinfo":          "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			"sys/fs/cgroup/pids.max":       "500\n",
			"sys/fs/cgroup/inner/pids.max": "100\n",
		}, []int{25, 125}, nil},
		{"a namespace that is not this one", map[string]string{
			"proc/self/cgroup":       "0::/../../elsewhere\n",
			"proc/self/mountinfo":    v2Mounts,
			"sys/fs/cgroup/pids.max": "40\n",
		}, []int{10}, nil},
		{"nonsense", map[string]string{
			"proc/self/cgroup":       "x\n0::\n::::\n",
			"proc/self/mountinfo":    "a b - c\n\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2\n",
			"proc/loadavg":           "0.00\n",
			"proc/meminfo":           "MemAvailable:\n",
			"sys/fs/cgroup/pids.max": "40\n",
		}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := fstest.MapFS{}
			for name, content := range c.files {
				files[name] = &fstest.MapFile{Data: []byte(content)}
			}
			most := func(list []bound) (n []int) {
				for _, b := range list {
					require.NotEmpty(t, strings.TrimSpace(b.what))
					n = append(n, b.most)
				}
				return n
			}
			h := limits.Host{FS: files}
			require.Equal(t, c.tasks, most(tasks(h)))
			require.Equal(t, c.memory, most(memory(h)))
		})
	}
}
