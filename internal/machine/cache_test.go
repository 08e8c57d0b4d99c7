package machine

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCache: the size is that of the cache of the level; what does not say it is passed over.
func TestCache(t *testing.T) {
	dir := t.TempDir()
	require.Zero(t, cacheIn(dir, 2))
	require.Zero(t, cacheIn(filepath.Join(dir, "none"), 2))
	for name, text := range map[string]string{
		"index0/level": "1\n", "index0/size": "32K\n", "index1/level": "2\n", "index1/size": "nothing\n",
		"index2/level": "2\n", "index2/size": "1024K\n", "index3/level": "3\n", "index3/size": "32768K\n", "index4/level": "2\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	require.Equal(t, 1<<20, cacheIn(dir, 2))
	require.Equal(t, 32<<20, cacheIn(dir, 3))
	require.Zero(t, cacheIn(dir, 5))
	for cache, ring := range map[int]int{0: 1 << 20, 1: RingLeast, 512 << 10: 512 << 10, 1280 << 10: 2 << 20, 1 << 30: RingMost} {
		require.Equal(t, ring, ringFor(cache))
	}
}

// TestCaches: there are as many caches as groups of CPUs that share one.
func TestCaches(t *testing.T) {
	for _, c := range []struct {
		cpus    int
		sharers string
		want    int
	}{
		{2, "3\n", 1}, {16, "00ff\n", 2}, {96, "00000000,00000000,0000003f\n", 16}, {64, "ffff0000,0000ffff\n", 2}, {3, "3\n", 2},
		{4, "0\n", 0}, {4, "\n", 0}, {4, "", 0},
	} {
		dir := t.TempDir()
		require.Zero(t, caches(dir, 3))
		for i := range c.cpus {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "cpu"+strconv.Itoa(i), "cache", "index3"), 0o755))
		}
		require.NoError(t, os.Mkdir(filepath.Join(dir, "cpufreq"), 0o755))
		write := func(name, text string) {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "cpu0/cache", filepath.Dir(name)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "cpu0/cache", name), []byte(text), 0o644))
		}
		write("index2/level", "2\n")
		write("index2/shared_cpu_map", "1\n")
		write("index3/level", "3\n")
		if c.sharers != "" {
			write("index3/shared_cpu_map", c.sharers)
		}
		require.Equal(t, c.want, caches(dir, 3), "%d CPUs, %q", c.cpus, c.sharers)
		require.Equal(t, c.cpus, caches(dir, 2))
	}
}
