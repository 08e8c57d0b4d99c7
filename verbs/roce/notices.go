package roce

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// notices are what is to be logged. What finds out holds locks, which a handler may keep for any
// time: the driver, which holds none, writes them.
type notices struct {
	out  *slog.Logger
	some atomic.Bool
	mu   sync.Mutex
	lost []lostPeer // maxNotices at most
	more int        // that there was no room for
}

// lostPeer is a queue pair whose peer was taken for dead.
type lostPeer struct {
	num    uint32
	peer   peer
	vendor uint32
	silent time.Duration
}

const maxNotices = 16

// lose has it logged that a peer is lost.
func (n *notices) lose(l lostPeer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.lost) == maxNotices {
		n.more++
	} else {
		n.lost = append(n.lost, l)
	}
	n.some.Store(true)
}
