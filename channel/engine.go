package channel

import (
	"maps"
	"slices"
	"time"
)

// starve makes the engine serve a stream whose sends wait for slots.
func (n *Node) starve(s *sendStream) {
	n.mu.Lock()
	if !slices.Contains(n.starving, s) {
		n.starving = append(n.starving, s)
	}
	n.mu.Unlock()
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// engineTick bounds how long a send waits for a slot whose release is not announced.
const engineTick = time.Millisecond

// serve makes the engine serve a stream whose messages are longer than its pipe.
func (n *Node) serve(s *sendStream) {
	n.mu.Lock()
	n.served[s] = &served{}
	n.mu.Unlock()
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// engine does what Test would do while the program computes: it publishes sends that wait for
// slots, and packs messages longer than a pipe.
func (n *Node) engine() {
	for {
		select {
		case <-n.life.Done():
			return
		case <-n.kick:
		}
		useful := false
		for n.life.Err() == nil {
			n.mu.Lock()
			streams, served := slices.Clone(n.starving), maps.Clone(n.served)
			n.mu.Unlock()
			if len(streams) == 0 && len(served) == 0 {
				break
			}
			// Peers pay for ringing a sleeper's bell, so do not sleep on it merely to
			// see that the users pack by themselves.
			awake := len(streams) == 0 && !useful
			var mark uint32
			if !awake {
				mark = n.bell.Listen()
			}
			for _, s := range streams {
				n.relieve(s)
			}
			useful = false
			for s, a := range served {
				useful = n.packFor(s, a) || useful
			}
			if awake {
				time.Sleep(engineTick)
			} else {
				n.bell.Sleep(mark, engineTick)
				n.bell.Ignore()
			}
		}
	}
}

// packFor packs on behalf of a computing program, and says whether it made progress.
func (n *Node) packFor(s *sendStream, a *served) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	useful, again := s.packAhead(a)
	if !again {
		n.mu.Lock()
		delete(n.served, s)
		n.mu.Unlock()
	}
	return useful
}

// relieve publishes the sends that wait for slots.
func (n *Node) relieve(s *sendStream) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.r != nil { // else it is closed
		s.flush()
	}
	if len(s.pending) == 0 || s.peer.state.Load() >= peerFailed {
		n.mu.Lock()
		n.starving = slices.DeleteFunc(n.starving, func(o *sendStream) bool { return o == s })
		n.mu.Unlock()
	}
}
