package channel

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// bell is what the peers of a node ring to wake it: in memory that they reach. It
// is rung only while somebody sleeps; for the ringer that is a look at a line that
// hardly ever changes.
type bell struct {
	sleepers uint32
	word     uint32
}

const bellSize = 128 // alone in its lines

// viewBell returns the bell in mem.
func viewBell(mem []byte) (*bell, error) {
	if len(mem) != bellSize || uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%64 != 0 {
		return nil, fmt.Errorf("%w: bell of %d bytes, want %d", ErrProtocol, len(mem), bellSize)
	}
	return (*bell)(unsafe.Pointer(unsafe.SliceData(mem))), nil
}

// ring wakes who sleeps. The caller has made visible what he is to see.
func (b *bell) ring() {
	if atomic.LoadUint32(&b.sleepers) != 0 {
		b.strike()
	}
}

// ringer is a bell of somebody else's, and how often it had to be struck.
type ringer struct {
	*bell
	struck atomic.Uint64
}

// ring wakes who sleeps, as that of bell.
func (r *ringer) ring() {
	if atomic.LoadUint32(&r.sleepers) != 0 {
		r.strike()
		r.struck.Add(1)
	}
}

// strike wakes everybody, asleep or about to be.
func (b *bell) strike() {
	atomic.AddUint32(&b.word, 1)
	wakeSleepers(&b.word)
}
