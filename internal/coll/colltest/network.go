// Package colltest carries messages of collectives between the members of a group in one process,
// and counts them. It is for tests and models, and runs the real algorithms.
package colltest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// Mode says when a send completes.
type Mode uint8

const (
	// Eager: at once. Messages without a receive are kept.
	Eager Mode = iota
	// Rendezvous: when the receive has been started and has the message.
	Rendezvous
)

// String returns "eager" or "rendezvous".
func (m Mode) String() string { return [...]string{"eager", "rendezvous"}[m] }

// ErrLength means that a message and its receive differ in length.
var ErrLength = errors.New("colltest: length mismatch")

// ErrClosed means that a message was used after Close, ErrActive that the message to be started is
// in progress.
var (
	ErrClosed = errors.New("colltest: message is closed")
	ErrActive = errors.New("colltest: message is in progress")
)

// Network connects the members of a group, which may run in different goroutines.
type Network struct {
	mode    Mode
	members []member
	events  atomic.Int64

	mu      sync.Mutex
	streams map[[2]int]*stream
}

// member holds the counters and the logical clock of a member.
type member struct {
	sent, received, bytes atomic.Int64
	clock                 atomic.Int64
}

// stream is all messages from one member to another.
type stream struct {
	mu       sync.Mutex
	from, to *member
	cut      error
	sends    []*Message // rendezvous: started, not matched
	receives []*Message // started, not matched
	kept     []packet   // eager: sent, not matched
	free     [][]byte   // memory of earlier packets
}

// packet is an eager message in flight.
type packet struct {
	data  []byte
	depth int64
}

// NewNetwork connects size members.
func NewNetwork(size int, mode Mode) *Network {
	return &Network{mode: mode, members: make([]member, size), streams: make(map[[2]int]*stream)}
}

// Carrier is the network as the member sees it.
func (n *Network) Carrier(rank int) coll.Carrier { return carrier{n, rank} }

// Cut makes every later start of a message from one member to another fail with err.
func (n *Network) Cut(from, to int, err error) {
	s := n.stream(from, to)
	s.mu.Lock()
	s.cut = err
	s.mu.Unlock()
}

func (n *Network) stream(from, to int) *stream {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.streams[[2]int{from, to}]
	if s == nil {
		s = &stream{from: &n.members[from], to: &n.members[to]}
		n.streams[[2]int{from, to}] = s
	}
	return s
}

type carrier struct {
	network *Network
	rank    int
}

func (c carrier) DeclareSend(to int, parts ...[]byte) (coll.Message, error) {
	return c.network.declare(c.rank, to, false, parts)
}

func (c carrier) DeclareReceive(from int, parts ...[]byte) (coll.Message, error) {
	return c.network.declare(from, c.rank, true, parts)
}

func (n *Network) declare(from, to int, receive bool, parts [][]byte) (coll.Message, error) {
	if min(from, to) < 0 || max(from, to) >= len(n.members) || len(parts) > 2 {
		return nil, fmt.Errorf("colltest: message of %d parts from member %d to member %d of %d", len(parts), from, to, len(n.members))
	}
	m := &Message{network: n, stream: n.stream(from, to), receive: receive}
	copy(m.parts[:], parts)
	return m, nil
}

// Message is a declared message.
type Message struct {
	network *Network
	stream  *stream
	parts   [2][]byte
	depth   int64 // of what was sent or received
	err     error
	receive bool
	active  bool
	over    bool
	closed  bool
}

func (m *Message) length() int { return len(m.parts[0]) + len(m.parts[1]) }

// Start implements [coll.Message].
func (m *Message) Start() error {
	s := m.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.closed:
		return ErrClosed
	case m.active:
		return ErrActive
	case s.cut != nil:
		return s.cut
	}
	m.network.events.Add(1)
	m.active, m.over, m.err = true, false, nil
	if m.receive {
		m.startReceive()
		return nil
	}
	m.depth = s.from.clock.Load() + 1
	s.from.sent.Add(1)
	s.from.bytes.Add(int64(m.length()))
	switch {
	case len(s.receives) > 0:
		r := s.receives[0]
		s.receives = slices.Delete(s.receives, 0, 1)
		r.take(m.parts, m.depth)
		m.over = true
	case m.network.mode == Rendezvous:
		s.sends = append(s.sends, m)
	default:
		var data []byte
		if n := len(s.free); n > 0 {
			data, s.free = s.free[n-1], s.free[:n-1]
		}
		data = append(append(data[:0], m.parts[0]...), m.parts[1]...)
		s.kept = append(s.kept, packet{data, m.depth})
		m.over = true
	}
	return nil
}

func (m *Message) startReceive() {
	s := m.stream
	switch {
	case len(s.kept) > 0:
		p := s.kept[0]
		s.kept = slices.Delete(s.kept, 0, 1)
		m.take([2][]byte{p.data}, p.depth)
		s.free = append(s.free, p.data)
	case len(s.sends) > 0:
		w := s.sends[0]
		s.sends = slices.Delete(s.sends, 0, 1)
		m.take(w.parts, w.depth)
		w.over = true
	default:
		s.receives = append(s.receives, m)
	}
}

// take moves a message in.
func (m *Message) take(from [2][]byte, depth int64) {
	m.over, m.depth = true, depth
	if n := len(from[0]) + len(from[1]); n != m.length() {
		m.err = fmt.Errorf("%w: %d bytes, want %d", ErrLength, n, m.length())
		return
	}
	// Both are cut behind the header, or not at all: a kept packet is one part.
	n := copy(m.parts[0], from[0])
	copy(m.parts[1], from[0][n:])
	copy(m.parts[1][len(from[0])-n:], from[1])
}

// Test implements [coll.Message].
func (m *Message) Test() (bool, error) {
	s := m.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	if !m.active {
		return true, nil
	}
	if !m.over {
		return false, nil
	}
	m.active = false
	m.network.events.Add(1)
	if m.receive {
		s.to.received.Add(1)
		// The clock belongs to one member, which is one goroutine.
		s.to.clock.Store(max(s.to.clock.Load(), m.depth))
	}
	return true, m.err
}

// Close implements [coll.Message].
func (m *Message) Close() error {
	s := m.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.closed = true
	s.sends = slices.DeleteFunc(s.sends, func(other *Message) bool { return other == m })
	s.receives = slices.DeleteFunc(s.receives, func(other *Message) bool { return other == m })
	return nil
}
