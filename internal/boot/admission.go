package boot

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/proof"
)

// expect makes ranks count as dead that have not come when limit is over.
func (s *Server) expect(limit time.Duration) {
	s.wg.Go(func() {
		if s.await(limit, s.allCame) {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for rank := range s.members {
			if s.members[rank].state == absent && !s.closed {
				s.depart(rank, dead, &RankError{Rank: rank, Err: ErrDied, Text: fmt.Sprintf("it had started, and did not come to the rendezvous within %v", limit)})
			}
		}
	})
}

// allCame says that no rank is yet to come. s.mu is held.
func (s *Server) allCame() bool {
	return !slices.ContainsFunc(s.members, func(m member) bool { return m.state == absent })
}

func (s *Server) acceptAll() {
	var pause time.Duration
	for {
		conn, err := s.ln.Accept()
		if err == nil {
			pause = 0
			conn = keepalive.Keep(conn, hostSilence)
			if s.meet(conn) {
				s.wg.Go(func() { s.handle(conn) })
			}
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Out of descriptors, or a connection that was gone before it was accepted. Ranks that are
		// already here continue meanwhile.
		err = limits.Files(err)
		lacking := errors.Is(err, limits.ErrFiles)
		s.mu.Lock()
		s.log.Log(context.Background(), s.once(&s.warned.accepts, err.Error()), "rendezvous: cannot accept a connection", "error", err)
		if lacking {
			s.evict()
		}
		s.mu.Unlock()
		if lacking && s.options.lacks != nil {
			s.options.lacks(err)
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		retry := time.NewTimer(pause)
		select {
		case <-retry.C:
		case <-s.quit:
			retry.Stop()
			return
		}
	}
}

// meet adds a stranger, in place of the oldest one if there are too many.
func (s *Server) meet(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return false
	}
	if len(s.strangers) >= len(s.members)+s.most {
		level := s.once(&s.warned.strangers, "too many")
		s.log.Log(context.Background(), level, "rendezvous: too many strangers, dropping the oldest", "peer", s.strangers[0].RemoteAddr(), "limit", len(s.strangers))
		s.evict()
	}
	s.strangers = append(s.strangers, conn)
	return true
}

// evict drops the oldest stranger, if there is one. s.mu is held.
func (s *Server) evict() {
	if len(s.strangers) > 0 {
		s.strangers[0].Close()
		s.strangers = slices.Delete(s.strangers, 0, 1)
	}
}

// forget takes conn off the lists of strangers and guests and reports whether it was on one. s.mu is held.
func (s *Server) forget(conn net.Conn) bool {
	for _, list := range []*[]net.Conn{&s.strangers, &s.guests} {
		if i := slices.Index(*list, conn); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
			return true
		}
	}
	return false
}

// trust notes that a stranger has proved to be of this job, so that no others displace it.
func (s *Server) trust(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.options.Insecure || s.closed || !s.forget(conn) { // without a secret, anything has
		return
	}
	s.guests = append(s.guests, conn)
}

// handle serves one connection to its end.
func (s *Server) handle(conn net.Conn) {
	defer conn.Close()
	c, err := s.admit(conn)
	if err != nil {
		s.mu.Lock()
		s.forget(conn)
		s.suspect(err)
		level := slog.LevelDebug
		if !s.closed && worthWarning(err) {
			kind := &s.warned.strangers
			if errors.As(err, new(*RefusedError)) {
				kind = &s.warned.ranks
			}
			level = s.once(kind, err.Error())
		}
		s.mu.Unlock()
		s.log.Log(context.Background(), level, "rendezvous: not admitted", "peer", conn.RemoteAddr(), "error", err)
		return
	}
	r := bufio.NewReader(conn)
	for err == nil {
		err = s.receive(c, r)
	}
	s.dismiss(c, err)
}

// worthWarning distinguishes a peer that meant this job from a passer-by.
func worthWarning(err error) bool {
	for _, e := range []error{proof.ErrSecret, proof.ErrVersion, proof.ErrEndianness, proof.ErrProtocol, proof.ErrJob, proof.ErrInsecure} {
		if errors.Is(err, e) {
			return true
		}
	}
	var refused *RefusedError
	return errors.As(err, &refused) && refused.Why != ending
}

// warned are the refusals that have been logged as warnings: of ranks that had proved
// themselves, of others, and of connections that could not be accepted.
type warned struct{ ranks, strangers, accepts map[string]bool }

// maxWarnings bounds the warnings of each kind.
const maxWarnings = 64

// once is the level at which a refusal is logged: a warning the first time, while there are not
// too many. s.mu is held.
func (s *Server) once(kind *map[string]bool, refusal string) slog.Level {
	if (*kind)[refusal] || len(*kind) > maxWarnings {
		return slog.LevelDebug
	}
	if *kind == nil {
		*kind = make(map[string]bool)
	}
	(*kind)[refusal] = true
	if len(*kind) > maxWarnings {
		s.log.Warn("rendezvous: more processes are not admitted; the log has them at level DEBUG", "warnings", maxWarnings)
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// admit makes a stranger a rank of the job, or returns why it cannot.
func (s *Server) admit(conn net.Conn) (*session, error) {
	// One that is held up, stopped or without a CPU, has time: strangers are bounded by their number.
	peer, err := proof.Accept(conn, proof.Params{
		Secret:   s.options.Secret,
		Insecure: s.options.Insecure,
		Protocol: protocolName,
		Major:    protocolMajor,
		Minor:    protocolMinor,
		Job:      s.options.Job,
		Self:     []byte(serverName),
	}, func(id []byte) bool {
		if len(id) != len(rankID(0)) {
			return false
		}
		s.trust(conn)
		return true
	})
	if err != nil {
		return nil, err
	}
	// Unbuffered: the session reads what follows.
	m, err := readMessage(conn, setOf(kindJoin, kindLeave))
	if err != nil {
		return nil, err
	}
	proven := binary.BigEndian.Uint32(peer.ID)
	if why, cannot := m.(leave); cannot {
		return nil, s.excuse(proven, why)
	}
	request := m.(join)
	if proven != request.rank {
		return nil, fmt.Errorf("%w: rank %d asks to be rank %d, which it has not proved to be", errProtocol, proven, request.rank)
	}
	c := &session{rank: int(request.rank), conn: conn, minor: peer.Minor, out: make(chan delivery, backlog)}
	switch why := s.enrol(c, request); why {
	case "":
	case ending:
		conn.Write(leave{reason: reasonLeft}.Append(nil))
		return nil, &RefusedError{Rank: c.rank, Why: why}
	default:
		conn.Write(refuse{rank: request.rank, text: shorten(why, maxText)}.Append(nil))
		return nil, &RefusedError{Rank: c.rank, Why: why}
	}
	return c, nil
}

// excuse takes note of a process of this job that cannot join it, and returns that as an error.
func (s *Server) excuse(proven uint32, m leave) error {
	if proven != m.rank || m.reason != reasonGaveUp {
		return fmt.Errorf("%w: %v before %v", errProtocol, kindLeave, kindJoin)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rank := int(int32(m.rank))
	s.mistake(rank, ErrGaveUp, m.text)
	return &RefusedError{Rank: rank, Why: m.text}
}

// ending is the refusal of a rank that belongs to the next program.
const ending = "the rank has left, and rank 0 is about to"

// enrol enters a rank into the job, or returns why it cannot.
func (s *Server) enrol(c *session, request join) (why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := len(s.members)
	mistake := func(why string) string {
		s.mistake(c.rank, ErrRefused, why)
		return why
	}
	switch {
	case s.closed || !s.forget(c.conn):
		return "the rendezvous has closed the connection"
	case int(request.size) != size:
		return mistake(fmt.Sprintf("it believes that the job has %d ranks, but the job has %d", request.size, size))
	case c.rank >= size:
		return mistake(fmt.Sprintf("there is no rank %d in a job of %d", c.rank, size))
	case s.abortion != nil:
		return s.abortion.Error()
	}
	m := &s.members[c.rank]
	if m.state == departed && s.options.hosted {
		return ending
	}
	if m.state == joined && s.round == 0 {
		return mistake(fmt.Sprintf("two processes have this number: %s and %s", plain(m.name), plain(request.name)))
	}
	if m.state != absent {
		why := fmt.Sprintf("rank %d %v", c.rank, m.state)
		if m.name != "" {
			why += fmt.Sprintf(" (%q)", m.name)
		}
		return why
	}
	if why := s.fit(c.rank, &request.program); why != "" {
		return mistake(why)
	}
	*m = member{state: joined, name: request.name, session: c}
	if request.program.name != "" && s.unlike(&request.program) != "" {
		m.other = &request.program
	}
	delete(s.suspects, c.rank)
	if !s.reporting && s.round == 0 {
		s.reporting = true
		s.wg.Go(s.reportWaits)
	}
	s.send(c, delivery{message: welcome{rank: request.rank}.Append(nil)})
	if s.failed != nil && s.round == 0 {
		s.send(c, s.failure(c))
	}
	if len(s.suspects) > 0 { // the others have been told
		if text := s.waiting(); text != "" {
			s.tell(c, text)
		}
	}
	s.wg.Go(func() { s.deliver(c) })
	s.log.Debug("rendezvous: joined", "rank", c.rank, "process", request.name, "peer", c.conn.RemoteAddr())
	return ""
}
