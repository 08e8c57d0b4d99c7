package machine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Cache is the size in bytes of the second-level cache of a CPU, 0 where that is not known.
var Cache = sync.OnceValue(func() int { return cacheIn("/sys/devices/system/cpu/cpu0/cache") })

// cacheIn reads it from the caches of a CPU (Linux, Documentation/ABI/testing/sysfs-devices-system-cpu).
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
