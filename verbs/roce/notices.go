package roce

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// notices holds records to be logged. The code that adds them holds locks, and a log handler may
// block for any time; the driver, which holds none, writes them.
type notices struct {
	out  *slog.Logger
	some atomic.Bool
	mu   sync.Mutex
	lost []lostPeer // maxNotices at most
	more int        // those for which there was no room
}

// lostPeer is a queue pair whose peer was declared dead.
type lostPeer struct {
	num    uint32
	peer   peer
	vendor uint32
	silent time.Duration
}

const maxNotices = 16

// lose adds a record that a peer is lost.
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
