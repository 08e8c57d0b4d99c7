//go:build !linux

package channel

import (
	"sync/atomic"
	"time"
)

// Without futexes a sleeper polls at this interval.
const nap = 50 * time.Microsecond

func barriers() bool { return false }

func barrier() {}

func sleepOn(p *uint32, v uint32, d time.Duration) {
	for end := time.Now().Add(d); atomic.LoadUint32(p) == v && time.Now().Before(end); {
		time.Sleep(nap)
	}
}

func wakeSleepers(*uint32) {}
