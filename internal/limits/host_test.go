package limits

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// Memory fits where the machine and all cgroups have room for it, that of files and of swapping
// included.
func TestFits(t *testing.T) {
	files := func(names map[string]string) fstest.MapFS {
		fs := fstest.MapFS{
			"proc/self/mountinfo": {Data: []byte("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")},
			"proc/self/cgroup":    {Data: []byte("0::/a/b\n")},
		}
		for name, data := range names {
			fs[name] = &fstest.MapFile{Data: []byte(data)}
		}
		return fs
	}
	const group = "sys/fs/cgroup/a/"
	for _, c := range []struct {
		name  string
		files map[string]string
		room  uint64 // MiB, without what stays free
		left  uint64 // without swapping
		says  string
	}{
		{"the machine", map[string]string{"proc/meminfo": "MemAvailable: 102400 kB\nSwapFree: 0 kB\n"}, 100, 100, "100 MiB are available (MemAvailable): allocate less on each rank"},
		{"with swapping", map[string]string{"proc/meminfo": "MemAvailable: 102400 kB\nSwapFree: 51200 kB\n"}, 150, 100, "150 MiB are available (MemAvailable)"},
		{"a group above", map[string]string{
			"proc/meminfo":           "MemAvailable: 102400 kB\n",
			group + "memory.max":     "83886080\n",
			group + "memory.current": "62914560\n",
			group + "memory.stat":    "inactive_file 10485760\nactive_file 1048576\nslab_reclaimable 1048576\n",
		}, 27, 32, "27 MiB are available (80 MiB in /sys/fs/cgroup/a/memory.max)"},
		{"a group that may swap some", map[string]string{
			"proc/meminfo":                "MemAvailable: 102400 kB\nSwapFree: 51200 kB\n",
			group + "memory.max":          "83886080\n",
			group + "memory.current":      "62914560\n",
			group + "memory.swap.max":     "20971520\n",
			group + "memory.swap.current": "10485760\n",
		}, 25, 20, "25 MiB are available (80 MiB in /sys/fs/cgroup/a/memory.max)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Host{files(c.files)}
			_, err := h.piece(c.room << 20)
			require.NoError(t, err)
			_, err = h.piece((c.room + 1) << 20)
			require.ErrorContains(t, err, c.says)
			n, err := h.piece(1)
			require.NoError(t, err)
			require.LessOrEqual(t, n*sharers, c.room<<20+reserve, "that together exceed it")
			require.EqualValues(t, 1<<20, h.left(1<<20))
			require.Equal(t, c.left<<20, h.left(1<<40))
		})
	}
	n, err := Host{fstest.MapFS{}}.piece(1 << 60)
	require.NoError(t, err, "nothing is known")
	require.EqualValues(t, mostPiece, n)
	require.Error(t, Fits(1<<60))
}
