package xdp

import (
	"sync/atomic"
	"unsafe"
)

// control is the end of the memory: words that all seats share.
type control struct {
	fill, comp *uint32 // who has the lock of the ring: number of the seat + 1, 0 for nobody
	busy       []uint32
}

// owner in a lock is the port itself.
const owner = 1 << 31

func (s Shape) control(mem []byte) control {
	word := func(off int) *uint32 { return (*uint32)(unsafe.Pointer(&mem[s.umemBytes()+off])) }
	return control{word(0), word(line), unsafe.Slice(word(2*line), s.frames())}
}

func tryLock(l *uint32, who uint32) bool { return atomic.CompareAndSwapUint32(l, 0, who) }
func unlock(l *uint32, who uint32) bool  { return atomic.CompareAndSwapUint32(l, who, 0) }

// give puts the frames of the packets from to end of a ring of received packets back
// into the fill ring, of which the caller has the lock. What is no frame is left out.
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
