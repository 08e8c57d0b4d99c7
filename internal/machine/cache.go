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
var Ring = sync.OnceValue(func() int { return ringFor(cacheIn("/sys/devices/system/cpu/cpu0/cache")) })

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

// cacheIn reads the size in bytes of the second-level cache among those of a CPU, 0 if it is not there
// (Linux, Documentation/ABI/testing/sysfs-devices-system-cpu).
func cacheIn(dir string) int {
	levels, _ := filepath.Glob(filepath.Join(dir, "index*", "level"))
	for _, level := range levels {
		if b, err := os.ReadFile(level); err != nil || strings.TrimSpace(string(b)) != "2" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(filepath.Dir(level), "size"))
		if err != nil {
			continue
		}
		kib, ok := strings.CutSuffix(strings.TrimSpace(string(b)), "K")
		if n, err := strconv.ParseUint(kib, 10, 32); ok && err == nil {
			return int(n) << 10
		}
	}
	return 0
}
