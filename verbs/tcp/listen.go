package tcp

import (
	"container/list"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
)

// accept takes connections until the listener is closed. Each is led through
// the handshake by a goroutine of its own; the lobby bounds how many there are.
func (a *adapter) accept(l net.Listener, gid verbs.GID) {
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			if a.lobby.enter(nc) {
				a.wg.Go(func() {
					defer a.lobby.leave(nc)
					a.welcome(nc, gid)
				})
			}
		case errors.Is(err, net.ErrClosed):
			return
		default:
			// Out of descriptors, as a rule: some will be free again.
			a.log.warn("tcp: cannot accept", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-a.life.Done():
				return
			}
		}
	}
}

const acceptPause = 50 * time.Millisecond

// Bounds of what strangers, and peers whose time has not come, can occupy.
const (
	maxStrangers = 128
	maxGuests    = 4096
)

// lobby holds accepted connections that are not a QP's yet: strangers, who have
// proved nothing, and guests, who have. A stranger too many drives out the one
// who has been there longest.
type lobby struct {
	mu        sync.Mutex
	closed    bool
	strangers list.List // of net.Conn, oldest first
	guests    map[net.Conn]struct{}
}

// enter notes a stranger; false: the lobby is closed, and so is the connection.
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

// admit makes a stranger a guest, if he is still there and there is room.
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

// leave forgets a connection: it is closed, or has become a QP's.
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

// close closes everything; nobody enters any more.
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
