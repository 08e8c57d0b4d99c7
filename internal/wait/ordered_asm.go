//go:build !race && (amd64 || arm64)

package wait

// Pause tells the CPU n times that it is in a spin loop.
//
//go:noescape
func Pause(n uint32)

// StoreRelease64 stores v to *p; everything that the caller stored before is
// visible to a goroutine or process that loads v from *p atomically.
//
// sync/atomic has only sequentially consistent stores, which on amd64 are XCHG. That takes
// 4.5 ns if the line is in the cache. If it is not (the peer has just read it), the CPU
// stalls until it is, because XCHG drains the store buffer. A release store is a plain MOV
// on amd64 and STLR on arm64; the call costs 1 ns. It does not order a later load: code that
// needs that (such as a sleeper's flag) uses sync/atomic or [Barrier].
//
//go:noescape
func StoreRelease64(p *uint64, v uint64)

// StoreRelease32 is [StoreRelease64] for 32 bits.
//
//go:noescape
func StoreRelease32(p *uint32, v uint32)

// StoreRelaxed32 stores v to *p, which others load atomically; it orders
// nothing. A word-sized store is never torn (Go memory model, "Implementation
// Restrictions for Programs Containing Data Races").
func StoreRelaxed32(p *uint32, v uint32) { *p = v }

// StoreRelaxed64 is [StoreRelaxed32] for 64 bits.
func StoreRelaxed64(p *uint64, v uint64) { *p = v }

// PrefetchWrite fetches the line of p for writing without waiting for it, so that the copies
// in other caches are invalidated now and not at the time of the write.
//
//go:noescape
func PrefetchWrite(p *uint64)

// Prefetch fetches the line of p for reading.
//
//go:noescape
func Prefetch(p *uint64)

// Prefetches is [Prefetch] for each line of the n > 0 bytes from p on. If p is not at the beginning of a line, it
// may leave out the last.
//
//go:noescape
func Prefetches(p *byte, n int)
