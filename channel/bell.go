package channel

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// bell is what peers ring to wake a node; it lies in memory that they can access. It is
// rung only while a goroutine of the node sleeps; otherwise the ringer merely reads a
// line that rarely changes.
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

// ring wakes the sleepers. The caller has already published what they are to see.
func (b *bell) ring() {
	if atomic.LoadUint32(&b.sleepers) != 0 {
		b.wakeAll()
	}
}

// ringer is the bell of a peer, and counts how often it was rung for a sleeper.
type ringer struct {
	*bell
	wakes atomic.Uint64
}

// ring is bell.ring.
func (r *ringer) ring() {
	if atomic.LoadUint32(&r.sleepers) != 0 {
		r.wakeAll()
		r.wakes.Add(1)
	}
}

// wakeAll wakes all goroutines that sleep or are about to.
func (b *bell) wakeAll() {
	atomic.AddUint32(&b.word, 1)
	wakeSleepers(&b.word)
}
