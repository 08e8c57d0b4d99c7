//go:build race || (!amd64 && !arm64)

package wait

import (
	"runtime"
	"sync/atomic"
)

// Pause tells the CPU n times that it is in a spin loop.
func Pause(n uint32) {
	for range n {
		runtime.KeepAlive(n)
	}
}

// StoreRelease64 stores v to *p; everything that the caller stored before is
// visible to a goroutine or process that loads v from *p atomically. The assembly versions
// say why it exists.
func StoreRelease64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// StoreRelease32 is [StoreRelease64] for 32 bits.
func StoreRelease32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// StoreRelaxed32 stores v to *p, which others load atomically; it orders nothing.
func StoreRelaxed32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// StoreRelaxed64 is [StoreRelaxed32] for 64 bits.
func StoreRelaxed64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// PrefetchWrite does nothing here; elsewhere it fetches the line of p for writing.
func PrefetchWrite(*uint64) {}

// Prefetch does nothing here; elsewhere it fetches the line of p for reading.
func Prefetch(*uint64) {}

// Prefetches does nothing here; elsewhere it fetches the lines of n > 0 bytes from p on for reading.
func Prefetches(*byte, int) {}
