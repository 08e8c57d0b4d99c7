package channel

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/wait"
)

const bellSize = 128 // alone in its lines

// viewBell returns the bell in mem.
func viewBell(mem []byte) (*wait.Bell, error) {
	if len(mem) != bellSize || uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%64 != 0 {
		return nil, fmt.Errorf("%w: bell of %d bytes, want %d", ErrProtocol, len(mem), bellSize)
	}
	return (*wait.Bell)(unsafe.Pointer(unsafe.SliceData(mem))), nil
}

// ringer is the bell of a peer, and counts how often it was rung for a sleeper.
type ringer struct {
	bell  *wait.Bell
	wakes atomic.Uint64
}

func (r *ringer) ring() {
	if r.bell.Ring() {
		r.wakes.Add(1)
	}
}

// setBell sets the bell of the node, which sleeps by it from now on.
func (n *Node) setBell(b *wait.Bell) {
	n.bell, n.sleepers = b, wait.NewSleepers(b, n.driveAsleep)
}
