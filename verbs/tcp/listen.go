package tcp

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/lobby"
	"github.com/sluice-hpc/sluice/verbs"
)

// accept accepts connections until the listener is closed. A goroutine for each does the
// handshake; the hall limits their number.
func (a *adapter) accept(l net.Listener, gid verbs.GID) {
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			if a.hall.strangers.Enter(nc) {
				a.wg.Go(func() {
					defer a.hall.leave(nc)
					a.welcome(nc, gid)
				})
			}
		case errors.Is(err, net.ErrClosed):
			return
		default:
			// Usually out of descriptors: wait for some to be free again.
			err = limits.Files(err)
			a.deaf.Store(&deafness{err, time.Now()})
			a.log.warn("tcp: cannot accept connections, retrying", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-a.life.Done():
				return
			}
		}
	}
}

const acceptPause = 50 * time.Millisecond

// deafness is why connections could not be accepted at a time.
type deafness struct {
	error
	at time.Time
}

// Limits on connections of strangers, and of peers whose QP is not in RTR yet.
const (
	maxStrangers = 128
	maxGuests    = 4096
)

// hall holds accepted connections that no QP owns yet: strangers, which have not proved the
// secret, and guests, which have.
type hall struct {
	strangers lobby.Lobby
	mu        sync.Mutex
	guests    map[net.Conn]struct{}
}

// admit makes a stranger a guest, if it is still there and there is room.
func (h *hall) admit(nc net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.strangers.Leave(nc) || len(h.guests) >= maxGuests {
		return false
	}
	if h.guests == nil {
		h.guests = map[net.Conn]struct{}{}
	}
	h.guests[nc] = struct{}{}
	return true
}

// leave removes a connection that is closed or about to belong to a QP.
func (h *hall) leave(nc net.Conn) {
	h.strangers.Leave(nc)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.guests, nc)
}

// close closes all connections; no connection can enter any more.
func (h *hall) close() {
	h.strangers.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	for nc := range h.guests {
		nc.Close()
	}
}
