//go:build !race && (amd64 || arm64)

package wait

// Pause tells the CPU n times that it is in a spin loop.
//
//go:noescape
func Pause(n uint32)

// StoreRelease64 stores v to *p; everything that the caller stored before is
// visible to whoever loads v from *p atomically.
//
// sync/atomic has only sequentially consistent stores, which on amd64 are XCHG:
// 4.5 ns when the line is at hand, and when it is not (the peer has just read
// it) the CPU stands still until it is, because XCHG drains the store buffer. A
// release store is a plain MOV there and STLR on arm64; the call costs 1 ns. It
// does not order a later load: whoever needs that (the sleeper's flag) uses
// sync/atomic or [Barrier].
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

// PrefetchWrite fetches the line of p for writing, and does not wait for it: others
// that have a copy lose it meanwhile, and not when the line is written.
//
//go:noescape
func PrefetchWrite(p *uint64)

// Prefetch fetches the line of p for reading.
//
//go:noescape
func Prefetch(p *uint64)
