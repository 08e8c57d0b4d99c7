package machine

import (
	"os"
	"path/filepath"
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

// TestShares: caches are counted once, by the CPUs that share them.
func TestShares(t *testing.T) {
	dir := t.TempDir()
	require.Zero(t, shares(dir, 3))
	for name, text := range map[string]string{
		"cpu0/cache/index2/level": "2\n", "cpu0/cache/index2/shared_cpu_list": "0\n",
		"cpu0/cache/index3/level": "3\n", "cpu0/cache/index3/shared_cpu_list": "0-1\n",
		"cpu1/cache/index2/level": "2\n", "cpu1/cache/index2/shared_cpu_list": "1\n",
		"cpu1/cache/index3/level": "3\n", "cpu1/cache/index3/shared_cpu_list": "0-1\n",
		"cpu10/cache/index3/level": "3\n", "cpu10/cache/index3/shared_cpu_list": "2,10\n",
		"cpu11/cache/index3/level":   "3\n", // without the list
		"cpufreq/cache/index3/level": "3\n", "cpufreq/cache/index3/shared_cpu_list": "all\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	require.Equal(t, 2, shares(dir, 3))
	require.Equal(t, 2, shares(dir, 2))
}
