package boot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// ServerOptions describes the job that a rendezvous serves.
type ServerOptions struct {
	Size     int          // number of ranks, 1 to MaxSize
	Job      string       // id of the job, at most 64 bytes
	Secret   []byte       // secret of the job; empty only with Insecure
	Insecure bool         // admit ranks without a secret
	Logger   *slog.Logger // strangers, refusals, deaths; nil for none

	hosted  bool            // by the process of rank 0
	address string          // of the rendezvous, for people; "": that which each rank has used
	lacks   func(err error) // told that there is no descriptor for a connection; may be nil
	kill    func(code int)  // ends what is left of an aborted job that is hosted; may be nil
}

// maxStrangers is how many connections may be not yet admitted, beyond the size of the job.
const maxStrangers = 64

var fromRank = setOf(kindPart, kindLeave, kindAbort, kindWhere)

// Server is the rendezvous of a job. Each rank has one connection to it, two
// goroutines, and at most one part of MaxData bytes in memory, until every
// rank has been sent the round that the part belongs to.
type Server struct {
	options ServerOptions
	most    int // strangers, beyond the size of the job
	ln      net.Listener
	log     *slog.Logger
	wg      sync.WaitGroup
	stop    func() bool // releases the context

	mu        sync.Mutex
	members   []member       // by rank
	strangers []net.Conn     // not yet proved to be of this job, oldest first
	guests    []net.Conn     // proved, and not yet admitted
	warned    warned         // of those that were refused
	round     uint32         // in progress
	parts     [][]byte       // of the round, by rank; nil where not given yet
	given     int            // number of parts
	failed    *RankError     // why no further round can be completed
	died      *RankError     // the first that died
	abortion  *AbortError    // why the job is over
	gone      int            // ranks that have left or died
	unsent    int            // deliveries that wait, or are being written
	changed   chan struct{}  // closed and replaced when a rank goes or unsent becomes zero
	closed    bool           // no connection is accepted any more
	quit      chan struct{}  // closed with closed
	suspects  map[int]string // why a process that said it was an absent rank was refused
	doubts    int            // how often suspects have changed
	first     *runs          // what the first rank to come runs
	same      bool           // all ranks are to run the same
	news      chan struct{}  // capacity 1: there is a new suspect
	reporting bool           // since the first rank came
	settled   chan struct{}  // closed when the first round is complete, or cannot be
	over      chan struct{}  // closed when all ranks are gone, or the server is closed
	aborted   chan struct{}  // closed with abortion
}

// member is the rendezvous's view of one rank.
type member struct {
	state   state
	name    string   // of its process
	other   *program // that it runs, if the first rank to come runs another
	session *session
}

type state uint8

const (
	absent state = iota
	joined
	idle     // gave up: it gives to no further round, but is still here
	departed // said goodbye
	dead
)

func (s state) String() string {
	return [...]string{"is not here", "is here", "is here", "has left", "has died"}[s]
}

// Serve starts the rendezvous of one job on ln, which it owns from then on, even if it fails. It
// serves until Close, or until ctx ends.
//
// Errors: ErrOptions.
func Serve(ctx context.Context, ln net.Listener, o ServerOptions) (*Server, error) {
	return serve(ctx, ln, o, maxStrangers)
}

func serve(ctx context.Context, ln net.Listener, o ServerOptions, strangers int) (*Server, error) {
	if err := o.check(); err != nil {
		ln.Close()
		return nil, fmt.Errorf("boot: serve: %w", err)
	}
	s := &Server{
		options: o,
		most:    strangers,
		ln:      ln,
		log:     o.Logger,
		members: make([]member, o.Size),
		parts:   make([][]byte, o.Size),
		changed: make(chan struct{}),
		quit:    make(chan struct{}),
		over:    make(chan struct{}),
		news:    make(chan struct{}, 1),
		settled: make(chan struct{}),
		aborted: make(chan struct{}),
	}
	s.options.Secret = slices.Clone(o.Secret)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.stop = context.AfterFunc(ctx, s.shutdown)
	s.wg.Go(s.acceptAll)
	return s, nil
}

func (o *ServerOptions) check() error {
	switch {
	case o.Size < 1 || o.Size > MaxSize:
		return fmt.Errorf("%w: size %d, expected 1 to %d", ErrOptions, o.Size, MaxSize)
	case len(o.Job) > maxJobID:
		return fmt.Errorf("%w: job id of %d bytes, the most is %d", ErrOptions, len(o.Job), maxJobID)
	case len(o.Secret) == 0 && !o.Insecure:
		return fmt.Errorf("%w: no secret is given and Insecure is not set", ErrOptions)
	case len(o.Secret) != 0 && o.Insecure:
		return fmt.Errorf("%w: a secret is given but Insecure is set", ErrOptions)
	}
	return nil
}

// Addr returns the address at which the rendezvous listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Wait returns when every rank has left or died, when the server is closed, or when ctx ends. The
// error is that of ctx; otherwise an [*AbortError] if the job was aborted; otherwise the
// [*RankError] of the first rank that died; otherwise ErrClosed if some ranks have not left.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-s.over:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.abortion != nil:
		return s.abortion
	case s.died != nil:
		return s.died
	case s.gone < len(s.members):
		return ErrClosed
	}
	return nil
}

// Aborted returns a channel that is closed when a rank has aborted the job; Wait then returns the
// error.
func (s *Server) Aborted() <-chan struct{} { return s.aborted }

// Abort returns the [*AbortError] with which a rank has ended the job, or nil.
func (s *Server) Abort() *AbortError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.abortion
}

// Ended tells the server that the process of a rank has ended. If the rank never joined, it counts
// as dead from now on, so that the others do not wait for it; otherwise its connection reports the
// end by itself.
func (s *Server) Ended(rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rank < 0 || rank >= len(s.members) || s.members[rank].state != absent {
		return
	}
	text := "it ended before it joined the job"
	if why := s.suspects[rank]; why != "" {
		text += "; a process that said it was this rank was refused: " + why
	}
	s.depart(rank, dead, &RankError{Rank: rank, Err: ErrDied, Text: text})
}

// Lost tells the server that a rank is gone with its host, for a reason: its connection would report that
// only after a while.
func (s *Server) Lost(rank int, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rank < 0 || rank >= len(s.members) {
		return
	}
	s.depart(rank, dead, &RankError{Rank: rank, Err: ErrDied, Text: shorten(why.Error(), maxText)})
	if c := s.members[rank].session; c != nil {
		c.conn.Close()
	}
}

// Close ends the rendezvous: it closes the listener and all connections, and returns when all of
// its goroutines have ended. Ranks that are still there get ErrServerLost. Closing again does
// nothing.
func (s *Server) Close() error {
	s.stop()
	s.shutdown()
	s.wg.Wait()
	return nil
}

func (s *Server) shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	close(s.quit)
	s.settle()
	s.ln.Close()
	for _, conn := range slices.Concat(s.strangers, s.guests) {
		conn.Close()
	}
	for i := range s.members {
		if c := s.members[i].session; c != nil {
			c.conn.Close()
		}
	}
	s.finish()
}

// finish closes over. s.mu is held.
func (s *Server) finish() {
	select {
	case <-s.over:
	default:
		close(s.over)
	}
}

// receive handles one message from a rank. A rank may be silent for any time, in the middle of a
// message too: it may be stopped.
func (s *Server) receive(c *session, r *bufio.Reader) error {
	m, err := readMessage(r, fromRank)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m := m.(type) {
	case part:
		if int(m.rank) != c.rank {
			return fmt.Errorf("%w: it sent a part in the name of rank %d", errProtocol, m.rank)
		}
		return s.give(c, m)
	case leave:
		if m.reason != reasonGaveUp {
			s.depart(c.rank, departed, &RankError{Rank: c.rank, Err: m.reason.err(), Text: m.text})
			break
		}
		if late := s.late(); late != "" {
			m.text += ": " + late
		}
		s.depart(c.rank, idle, &RankError{Rank: c.rank, Err: m.reason.err(), Text: m.text})
		s.send(c, s.failure(c)) // it asks for the reason
	case abort:
		s.abortBy(c.rank, m)
	case where:
		return s.tellWhere(c, m.rank)
	}
	return nil
}

// tellWhere answers a rank's query about another. s.mu is held.
func (s *Server) tellWhere(c *session, rank uint32) error {
	if int(rank) >= len(s.members) {
		return fmt.Errorf("%w: %v rank %d of %d", errProtocol, kindWhere, rank, len(s.members))
	}
	m := where{rank: rank}
	switch s.members[rank].state {
	case departed:
		m.reason = reasonLeft
	case dead:
		m.reason = reasonDied
	}
	s.send(c, delivery{message: m.Append(nil)})
	return nil
}

// give adds a part to the round, and ends the round if it was the last. s.mu is held.
func (s *Server) give(c *session, m part) error {
	switch {
	case s.members[c.rank].state != joined:
		return fmt.Errorf("%w: part for round %d after a goodbye", errProtocol, m.round)
	case m.round != s.round:
		return fmt.Errorf("%w: part for round %d in round %d", errProtocol, m.round, s.round)
	case s.parts[c.rank] != nil:
		return fmt.Errorf("%w: second part for round %d", errProtocol, m.round)
	case s.failed != nil:
		s.send(c, s.failure(c))
		return nil
	}
	s.parts[c.rank] = m.data
	s.given++
	if s.given < len(s.members) {
		return nil
	}
	whole := delivery{round: s.round, parts: s.parts}
	s.round++
	s.settle()
	s.suspects = nil
	s.parts = make([][]byte, len(s.members))
	s.given = 0
	for i := range s.members {
		s.send(s.members[i].session, whole)
	}
	return nil
}

// late lists the ranks that have not contributed to the round in progress. s.mu is held.
func (s *Server) late() string {
	if s.failed != nil {
		return ""
	}
	missing, silent := s.missing()
	var list []string
	if len(missing) > 0 {
		list = append(list, some(missing, "has", "have")+" not joined")
	}
	if len(silent) > 0 {
		list = append(list, some(silent, "has", "have")+" joined and not given to the round")
	}
	late := strings.Join(list, ", ")
	return strings.Join(append([]string{late}, s.causes()...), "; ")
}

// maxRanges bounds how many ranges of ranks an explanation names.
const maxRanges = 20

// ranges formats ascending numbers like 1, 3-5.
func ranges(list []int) string {
	var b strings.Builder
	n := 0
	for i := 0; i < len(list); n++ {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		switch {
		case n == maxRanges:
			fmt.Fprintf(&b, " and %d others", len(list)-i)
			return b.String()
		case n > 0:
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(list[i]))
		if j > i {
			fmt.Fprintf(&b, "-%d", list[j])
		}
		i = j + 1
	}
	return b.String()
}

// failure is the message to a rank that ends the round in progress. s.mu is held.
func (s *Server) failure(c *session) delivery {
	m := fail{round: s.round, rank: uint32(int32(s.failed.Rank)), text: shorten(s.failed.Text, maxText)}
	switch s.failed.Err {
	case ErrLeft:
		m.reason = reasonLeft
	case ErrGaveUp:
		m.reason = reasonGaveUp
	case ErrRefused:
		m.reason = reasonRefused
	default:
		m.reason = reasonDied
	}
	if c != nil && c.minor < reportMinor {
		if m.reason == reasonRefused {
			m.reason = reasonDied
		}
		if m.rank == noRank {
			m.rank = uint32(c.rank)
		}
	}
	return delivery{message: m.Append(nil)}
}

// depart records that a rank contributes to no further round. The first one makes the round in
// progress fail for the ranks that have contributed to it. s.mu is held.
func (s *Server) depart(rank int, to state, why *RankError) {
	m := &s.members[rank]
	if m.state >= to || m.state >= departed {
		return
	}
	m.state = to
	s.notify()
	if to == dead {
		level := slog.LevelDebug
		if why.Err == ErrDied { // else it was not admitted, as the log says
			level = s.ownLevel(slog.LevelWarn)
		}
		s.log.Log(context.Background(), level, "rendezvous: rank died", "rank", rank, "process", m.name, "why", why.Text)
		if s.died == nil {
			s.died = why
		}
	} else {
		s.log.Debug("rendezvous: rank leaves", "rank", rank, "why", why)
	}
	s.fail(why)
	if to == idle {
		return
	}
	if s.gone++; s.gone == len(s.members) {
		s.finish()
	}
}

// fail makes the round in progress fail for the ranks that have contributed to it; others hear it when they
// do. The reason why the first cannot be completed is told to all at once: the rendezvous may end before
// they contribute. The rank itself knows, unless it is a process that was refused: the rank that is here is
// another one. s.mu is held.
func (s *Server) fail(why *RankError) {
	if s.failed != nil {
		return
	}
	s.failed = why
	s.settle()
	for i, data := range s.parts {
		if c := s.members[i].session; (data != nil || s.round == 0) && (i != why.Rank || why.Err == ErrRefused) {
			s.send(c, s.failure(c))
		}
	}
	clear(s.parts)
}

// ownLevel lowers the level of log records that ranks return as errors, because rank 0, which hosts
// the rendezvous, is one of the ranks.
func (s *Server) ownLevel(other slog.Level) slog.Level {
	if s.options.hosted {
		return slog.LevelDebug
	}
	return other
}

// abortBy ends the job on behalf of rank. s.mu is held.
func (s *Server) abortBy(rank int, m abort) {
	if s.abortion != nil {
		return
	}
	s.settle()
	s.abortion = &AbortError{Rank: rank, Code: int(m.code), Why: m.text}
	s.log.Log(context.Background(), s.ownLevel(slog.LevelError), "rendezvous: the job was aborted", "rank", rank, "code", m.code, "why", m.text)
	m.rank = uint32(rank)
	told := delivery{message: m.Append(nil)}
	for i := range s.members {
		if i != 0 || !s.options.hosted {
			s.send(s.members[i].session, told)
		}
	}
	if s.options.hosted && !s.closed {
		s.wg.Go(func() { s.tellHost(s.abortion.Code, told) })
	}
	close(s.aborted)
}

// tellHost tells rank 0 of an abort when the other ranks have gone or have used up their time: when
// its process ends, so does the rendezvous.
func (s *Server) tellHost(code int, told delivery) {
	never := func() bool { return false }
	kill := func() {
		select {
		case <-s.quit:
		default:
			if s.options.kill != nil {
				s.options.kill(code)
			}
		}
	}
	if !s.await(abortGrace, s.othersGone) {
		kill()
	}
	s.mu.Lock()
	s.send(s.members[0].session, told)
	s.mu.Unlock()
	s.await(abortGrace, never)
	kill()
}

// othersLeft says that rank 0 is the only one that has not left or died. s.mu
// is held.
func (s *Server) othersLeft() bool {
	return !slices.ContainsFunc(s.members[1:], func(m member) bool { return m.state < departed })
}

// othersGone says that rank 0 is the only one that is here; some ranks may not have come yet. s.mu
// is held.
func (s *Server) othersGone() bool {
	return !slices.ContainsFunc(s.members[1:], func(m member) bool { return m.state == joined || m.state == idle })
}

// dismiss ends the session of a rank after its connection has ended.
func (s *Server) dismiss(c *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.conn.Close()
	c.gone = true
	close(c.out)
	s.members[c.rank].session = nil
	if s.closed {
		return // its end is the cause
	}
	text := "its connection ended: look at its output"
	if !errors.Is(err, io.EOF) {
		text = "its connection: " + err.Error()
	}
	s.depart(c.rank, dead, &RankError{Rank: c.rank, Err: ErrDied, Text: text})
}
