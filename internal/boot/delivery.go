package boot

import (
	"bufio"
	"context"
	"net"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// backlog is the most messages that may wait for a rank that does not read: a welcome, two rounds,
// two failures, an abort, and reports, for which there is no more room than for one above that. A rank that
// reads its messages before it contributes to the next round never has more.
const (
	unreported = 6
	backlog    = unreported + 2
)

// session is the connection of an admitted rank.
type session struct {
	rank  int
	conn  net.Conn
	minor uint16        // protocol version of the rank
	out   chan delivery // closed, under Server.mu, when the session ends
	gone  bool          // under Server.mu: out is closed
}

// delivery is one item to be written: a message or a whole round.
type delivery struct {
	message []byte
	round   uint32
	parts   [][]byte
}

// send queues d for a rank. If the queue is full, the rank does not read; its connection is closed,
// because its memory would grow without bound. s.mu is held.
func (s *Server) send(c *session, d delivery) {
	if c == nil || c.gone {
		return
	}
	select {
	case c.out <- d:
		s.unsent++
	default:
		s.log.Warn("rendezvous: rank does not read, closing its connection", "rank", c.rank)
		c.conn.Close()
	}
}

// deliver writes what is queued for a rank. If that fails, it closes the connection and drains the
// queue until the reader's side closes it.
func (s *Server) deliver(c *session) {
	w := bufio.NewWriterSize(c.conn, 32<<10)
	for d := range c.out {
		w.Write(d.message)
		for rank, data := range d.parts {
			w.Write(part{round: d.round, rank: uint32(rank), data: data}.header().Append(nil))
			w.Write(data)
		}
		// The first error of a bufio.Writer stays.
		if err := w.Flush(); err != nil {
			c.conn.Close()
		}
		s.delivered()
	}
}

func (s *Server) delivered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unsent--; s.unsent == 0 {
		s.notify()
	}
}

// notify makes await check its condition again. s.mu is held.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await returns true when the condition is, evaluated under s.mu, holds; false when the time is
// over, of which only that counts in which this process runs, or the server is closed.
func (s *Server) await(limit time.Duration, is func() bool) bool {
	over, cancel := wait.Patience(context.Background(), limit)
	defer cancel()
	for {
		s.mu.Lock()
		now, changed := is(), s.changed
		s.mu.Unlock()
		if now {
			return true
		}
		select {
		case <-changed:
		case <-over.Done():
			return false
		case <-s.quit:
			return false
		}
	}
}

// flush returns when everything queued has been written, or the time is over.
func (s *Server) flush(limit time.Duration) {
	s.await(limit, func() bool { return s.unsent == 0 })
}

// retire closes the server of rank 0 after telling the ranks that are still there that rank 0 has
// left.
func (s *Server) retire() {
	goodbye := delivery{message: leave{reason: reasonLeft, text: "it ran the rendezvous"}.Append(nil)}
	s.mu.Lock()
	for i := range s.members {
		s.send(s.members[i].session, goodbye)
	}
	s.mu.Unlock()
	s.flush(time.Second)
	s.Close()
}
