package tcp

import (
	"container/list"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/verbs"
)

// accept accepts connections until the listener is closed. A goroutine for each does the
// handshake; the lobby limits their number.
func (a *adapter) accept(l net.Listener, gid verbs.GID) {
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			a.deaf.Store(nil)
			if a.lobby.enter(nc) {
				a.wg.Go(func() {
					defer a.lobby.leave(nc)
					a.welcome(nc, gid)
				})
			}
		case errors.Is(err, net.ErrClosed):
			return
		default:
			// Usually out of descriptors: wait for some to be free again.
			err = limits.Files(err)
			a.deaf.Store(&err)
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

// Limits on connections of strangers, and of peers whose QP is not in RTR yet.
const (
	maxStrangers = 128
	maxGuests    = 4096
)

// lobby holds accepted connections that no QP owns yet: strangers, which have not proved the
// secret, and guests, which have. A stranger beyond the limit evicts the oldest one.
type lobby struct {
	mu        sync.Mutex
	closed    bool
	strangers list.List // of net.Conn, oldest first
	guests    map[net.Conn]struct{}
}

// enter adds a stranger. False: the lobby is closed, and so is the connection.
func (y *lobby) enter(nc net.Conn) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.closed {
		nc.Close()
		return false
	}
	y.strangers.PushBack(nc)
	if y.strangers.Len() > maxStrangers {
		y.strangers.Remove(y.strangers.Front()).(net.Conn).Close()
	}
	return true
}

// admit makes a stranger a guest, if it is still there and there is room.
func (y *lobby) admit(nc net.Conn) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	if !y.remove(nc) || len(y.guests) >= maxGuests {
		return false
	}
	if y.guests == nil {
		y.guests = map[net.Conn]struct{}{}
	}
	y.guests[nc] = struct{}{}
	return true
}

// leave removes a connection that is closed or now belongs to a QP.
func (y *lobby) leave(nc net.Conn) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.remove(nc)
	delete(y.guests, nc)
}

func (y *lobby) remove(nc net.Conn) bool {
	for e := y.strangers.Front(); e != nil; e = e.Next() {
		if e.Value == nc {
			y.strangers.Remove(e)
			return true
		}
	}
	return false
}

// close closes all connections; no connection can enter any more.
func (y *lobby) close() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.closed = true
	for e := y.strangers.Front(); e != nil; e = e.Next() {
		e.Value.(net.Conn).Close()
	}
	for nc := range y.guests {
		nc.Close()
	}
}
