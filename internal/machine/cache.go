package machine

import (
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Ring is the size of a ring of memory through which one CPU passes bytes on to another: as large as the
// second-level cache of a CPU, or the next power of two, within bounds. When its lines are written again
// they have left that cache of the reader, and are not to be fetched from there.
var Ring = sync.OnceValue(func() int { return ringFor(cacheIn(cpu0, 2)) })

// LastCache is the size in bytes of the third-level cache that a CPU shares with others; 0: it is not known.
var LastCache = sync.OnceValue(func() int { return cacheIn(cpu0, 3) })

// LastCaches is the size in bytes of all third-level caches of the host together, which are taken to be alike; 0: it
// is not known.
var LastCaches = sync.OnceValue(func() int { return LastCache() * caches("/sys/devices/system/cpu", 3) })

const cpu0 = "/sys/devices/system/cpu/cpu0/cache"

// caches is how many caches of a level the CPUs have together, from how many of them share that of the first.
func caches(dir string, level int) int {
	cpus, _ := filepath.Glob(filepath.Join(dir, "cpu[0-9]*"))
	for _, set := range ofLevel(filepath.Join(dir, "cpu0", "cache"), level, "shared_cpu_map") {
		sharers := 0
		for _, digit := range set { // hexadecimal, with commas between groups
			n, _ := strconv.ParseUint(string(digit), 16, 4)
			sharers += bits.OnesCount64(n)
		}
		if sharers > 0 {
			return (len(cpus) + sharers - 1) / sharers
		}
	}
	return 0
}

// Bounds of Ring.
const (
	RingLeast = 256 << 10
	RingMost  = 2 << 20
)

func ringFor(cache int) int {
	if cache == 0 {
		return 1 << 20 // what most CPUs of servers have
	}
	return min(max(1<<bits.Len(uint(cache-1)), RingLeast), RingMost)
}

// cacheIn reads the size in bytes of the cache of a level among those of a CPU, 0 if it is not there.
func cacheIn(dir string, level int) int {
	for _, size := range ofLevel(dir, level, "size") {
		kib, ok := strings.CutSuffix(size, "K")
		if n, err := strconv.ParseUint(kib, 10, 32); ok && err == nil {
			return int(n) << 10
		}
	}
	return 0
}

// ofLevel reads the files of a name of the caches of a level among those of a CPU
// (Linux, Documentation/ABI/testing/sysfs-devices-system-cpu).
func ofLevel(dir string, level int, name string) (texts []string) {
	levels, _ := filepath.Glob(filepath.Join(dir, "index*", "level"))
	for _, file := range levels {
		if b, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(b)) != strconv.Itoa(level) {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(filepath.Dir(file), name)); err == nil {
			texts = append(texts, strings.TrimSpace(string(b)))
		}
	}
	return texts
}
