package boot

import (
	"bufio"
	"net"
	"time"
)

// backlog is the number of messages that may wait for a rank that does not
// read them: a welcome, two rounds, two failures and an abort. A rank that reads
// what it is sent before it gives to the next round never has more.
const backlog = 6

// session is the connection of an admitted rank.
type session struct {
	rank int
	conn net.Conn
	out  chan delivery // closed, under Server.mu, when the session ends
	gone bool          // under Server.mu: out is closed
}

// delivery is one thing to be written: a message, or a whole round.
type delivery struct {
	message []byte
	round   uint32
	parts   [][]byte
}

// send queues d for a rank. One whose queue is full does not read; its
// connection is closed, for its memory would grow without bound. s.mu is held.
func (s *Server) send(c *session, d delivery) {
	if c == nil || c.gone {
		return
	}
	select {
	case c.out <- d:
		s.unsent++
	default:
		s.log.Warn("rendezvous: rank does not read", "rank", c.rank)
		c.conn.Close()
	}
}

// deliver writes what is queued for a rank. Where it cannot, it closes the
// connection, and goes on until the queue is closed by the reader's side.
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

// notify has await ask anew. s.mu is held.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await returns when is, which is asked under s.mu, says so: true; or when the
// time is over or the server is closed: false.
func (s *Server) await(limit time.Duration, is func() bool) bool {
	over := time.NewTimer(limit)
	defer over.Stop()
	for {
		s.mu.Lock()
		now, changed := is(), s.changed
		s.mu.Unlock()
		if now {
			return true
		}
		select {
		case <-changed:
		case <-over.C:
			return false
		case <-s.quit:
			return false
		}
	}
}

// flush returns when all that is queued has been written, or time is over.
func (s *Server) flush(limit time.Duration) {
	s.await(limit, func() bool { return s.unsent == 0 })
}

// retire closes the server of rank 0 after it has told the ranks that are
// still there that rank 0 has left.
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
