package xdp

import (
	"sync/atomic"
	"unsafe"
)

// control is the end of the memory: words that all seats share.
type control struct {
	fill, comp *uint32 // holder of the ring's lock: number of the seat + 1; 0: free
	busy       []uint32
}

// owner in a lock is the port itself.
const owner = 1 << 31

func (s Shape) control(mem []byte) control {
	word := func(off int) *uint32 { return (*uint32)(unsafe.Pointer(&mem[s.umemBytes()+off])) }
	return control{word(0), word(line), unsafe.Slice(word(2*line), s.frames())}
}

func tryLock(l *uint32, holder uint32) bool { return atomic.CompareAndSwapUint32(l, 0, holder) }
func unlock(l *uint32, holder uint32) bool  { return atomic.CompareAndSwapUint32(l, holder, 0) }

// give returns the frames of the received packets from to end of ring rx to the fill ring,
// whose lock the caller holds. It skips descriptors of anything that is not a frame.
func (s Shape) give(fill, rx *ring, from, end uint32) {
	p := atomic.LoadUint32(fill.prod)
	for room := fill.mask + 1 - (p - atomic.LoadUint32(fill.cons)); from != end && room <= fill.mask+1 && room > 0; from++ {
		a := rx.packet(from).Addr &^ uint64(s.Chunk-1)
		if a >= uint64(s.sendBase()) {
			continue
		}
		*fill.addr(p) = a
		p++
		room--
	}
	atomic.StoreUint32(fill.prod, p)
}
