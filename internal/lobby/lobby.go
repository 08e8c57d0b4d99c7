// Package lobby bounds the connections of strangers: those that have been accepted and have not
// said yet which peer they are.
package lobby

import (
	"io"
	"slices"
	"sync"
)

// Lobby holds strangers. One beyond Max evicts the oldest: no stranger is given a time, which one
// that waits for a CPU would exceed. Any number of goroutines may use it.
type Lobby struct {
	Max int // at least 1

	mu     sync.Mutex
	closed bool
	list   []io.Closer // oldest first
}

// Enter adds a stranger. False: the lobby is closed, and so is the stranger.
func (y *Lobby) Enter(c io.Closer) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.closed {
		c.Close()
		return false
	}
	if len(y.list) >= y.Max {
		y.evict()
	}
	y.list = append(y.list, c)
	return true
}

// Evict frees a descriptor for a connection that could not be accepted: it evicts the oldest stranger. False:
// there is none but the newest, which may have taken the last descriptor.
func (y *Lobby) Evict() bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	if len(y.list) < 2 {
		return false
	}
	y.evict()
	return true
}

func (y *Lobby) evict() {
	y.list[0].Close()
	y.list = slices.Delete(y.list, 0, 1)
}

// Leave takes a stranger out, which is one no more. False: it has been evicted, and closed.
func (y *Lobby) Leave(c io.Closer) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	i := slices.Index(y.list, c)
	if i < 0 {
		return false
	}
	y.list = slices.Delete(y.list, i, i+1)
	return true
}

// Len is how many strangers there are.
func (y *Lobby) Len() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return len(y.list)
}

// Close closes all strangers; none can enter any more.
func (y *Lobby) Close() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.closed = true
	for _, c := range y.list {
		c.Close()
	}
	y.list = nil
}
