package channel

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"
)

// silence watches peers that are being connected, for as long as they do not answer.
type silence struct {
	mu   sync.Mutex
	list map[*silentPeer]struct{}
}

type silentPeer struct {
	peer  *peer
	since time.Time
	end   func(error)
}

// watch begins to watch a peer, until stop is called. It calls end if the rendezvous knows that the peer
// is gone, and why.
func (s *silence) watch(p *peer, end func(error)) (stop func()) {
	w := &silentPeer{p, time.Now(), end}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = map[*silentPeer]struct{}{}
		p.node.wg.Go(p.node.breakSilence)
	}
	s.list[w] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.list, w)
	}
}

// late returns the peers that have been silent for a time.
func (s *silence) late(d time.Duration) (late []*silentPeer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.list {
		if time.Since(w.since) >= d {
			late = append(late, w)
		}
	}
	return late
}

// end ends a wait, unless it has been stopped.
func (s *silence) end(w *silentPeer, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.list[w]; ok {
		w.end(why)
	}
}

// breakSilence asks each connect timeout after peers that have not answered for as long, and warns of
// them, at doubling pauses: all ranks of a large job may wait.
func (n *Node) breakSilence() {
	bound := cmp.Or(n.opt.warnAfter, n.opt.connectTimeout)
	tick := time.NewTicker(bound)
	defer tick.Stop()
	for rounds := 0; ; {
		select {
		case <-n.life.Done():
			return
		case <-tick.C:
		}
		late := n.silent.late(bound)
		asking, cancel := context.WithTimeout(n.life, bound)
		longest, running := (*silentPeer)(nil), 0
		for _, w := range late {
			switch gone := n.gone(asking, w.peer.rank); {
			case gone != nil && !errors.Is(gone, ErrUnreachable):
				n.silent.end(w, gone)
			default:
				running++
				if longest == nil || w.since.Before(longest.since) {
					longest = w
				}
			}
		}
		cancel()
		if rounds++; running == 0 {
			rounds = 0
		}
		if running > 0 && rounds&(rounds-1) == 0 && n.life.Err() == nil {
			n.log.Warn("channel: ranks do not answer while this one connects to them; still waiting: none is known to have ended",
				"ranks", running, "longest", longest.peer.rank, "time", time.Since(longest.since).Round(time.Second))
		}
	}
}
