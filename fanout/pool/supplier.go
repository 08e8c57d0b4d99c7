package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/internal/lobby"
	"github.com/sluice-hpc/sluice/internal/reach"
)

// Supplier listens for workers and gives them chunks. Several goroutines may call its
// methods; chunks are numbered in the order in which Send takes them.
type Supplier struct {
	c  Config
	ln net.Listener
	wg sync.WaitGroup

	mu      sync.Mutex
	places  []place // by number, modulo
	next    uint64  // number of the next chunk
	result  uint64  // number of the next result
	low     uint64  // the first chunk whose place is not free
	fresh   uint64  // the first chunk that no worker has been given
	again   []uint64
	asking  []*member // once for each chunk that a member has asked for
	members map[*member]struct{}
	gone    []WorkerStats
	ended   bool
	closed  bool
	done    bool // End has done everything
	proving lobby.Lobby
	bell    chan struct{} // closed when something has changed that a caller waits for
	waiters int
}

// place is the place of a chunk until its result has been released. While a member has the
// chunk, only that member writes the result.
type place struct {
	chunk    []byte
	result   []byte
	holder   *member
	attempts int
	watched  bool // the holder reports when it begins
	begun    bool // it has reported it
	state    state
	gen      uint64 // number of the present chunk
}

type state uint8

const (
	free state = iota
	waiting
	held
	answered
	hopeless
	lent
)

// keptMost is the most memory that a free place keeps for its chunk, and for its result.
const keptMost = 1 << 20

// Result is what a worker has made of a chunk. It is a value type; the zero Result is none.
type Result struct {
	s   *Supplier
	seq uint64
}

// HopelessError says that a chunk has been given up: as many workers as [Config.Attempts]
// admits were lost while they worked on it.
type HopelessError struct {
	Seq      uint64 // number of the chunk
	Attempts int
}

// Error returns the number of the chunk and of the workers.
func (e *HopelessError) Error() string {
	return fmt.Sprintf("pool: chunk %d is given up: the connections of %d workers ended while they had it", e.Seq, e.Attempts)
}

// Stats is what a supplier has done.
type Stats struct {
	Chunks  uint64 // chunks that were sent
	Results uint64 // results that were received
	Waiting int    // chunks that no worker has
	Held    int    // chunks that workers have
	Workers []WorkerStats
}

// WorkerStats is what a supplier knows of a worker. [Stats] includes the last 256 workers that
// are gone.
type WorkerStats struct {
	Addr        string // the address that it connects from
	Present     bool   // whether it is connected
	Waiting     int    // chunks that it has asked for and not been given
	Held        int    // chunks that it has
	Chunks      uint64 // chunks that it has answered
	Bytes       uint64 // bytes of these
	Redelivered uint64 // its chunks that went to others
}

const keptStats = 256

// Listen makes a supplier that listens on a TCP address ("host:port"). ctx bounds only this
// call. End or Close ends the supplier.
//
// Errors: [ErrInvalid]; those of net.ListenConfig.
func Listen(ctx context.Context, addr string, c Config) (*Supplier, error) {
	c, err := c.check()
	if err != nil {
		return nil, fmt.Errorf("pool: listen: %w", err)
	}
	ln, err := reach.Listen(ctx, net.ListenConfig{}, addr)
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	s := &Supplier{c: c, ln: ln, places: make([]place, c.Chunks), members: map[*member]struct{}{}, proving: lobby.Lobby{Max: strangers}, bell: make(chan struct{})}
	s.wg.Go(s.accept)
	return s, nil
}

// Addr returns the address that the supplier listens on.
func (s *Supplier) Addr() net.Addr { return s.ln.Addr() }

func (s *Supplier) place(seq uint64) *place { return &s.places[seq%uint64(len(s.places))] }

// ring wakes all waiters. The caller holds mu.
func (s *Supplier) ring() {
	if s.waiters > 0 {
		close(s.bell)
		s.bell = make(chan struct{})
		s.waiters = 0
	}
}

// await waits until something has changed. The caller holds mu, and does so again when it
// returns.
func (s *Supplier) await(ctx context.Context) error {
	bell := s.bell
	s.waiters++
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-bell:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Send gives a chunk to the pool, which copies it. It waits while [Config.Chunks] are in
// flight; it does not wait for workers.
//
// Errors: [ErrInvalid] for a chunk without bytes; [ErrClosed] after End or Close; that of ctx.
// After an error the chunk has not been taken.
func (s *Supplier) Send(ctx context.Context, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n == 0 {
		return fmt.Errorf("pool: send: %w: the chunk is empty: it must have at least one byte", ErrInvalid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.closed || s.ended {
			return fmt.Errorf("pool: send: %w", ErrClosed)
		}
		if s.next-s.low < uint64(len(s.places)) {
			break
		}
		if err := s.await(ctx); err != nil {
			return fmt.Errorf("pool: send: %w", err)
		}
	}
	p := s.place(s.next)
	if cap(p.chunk) < n {
		p.chunk = make([]byte, n)
	}
	p.chunk = p.chunk[:0]
	for _, b := range parts {
		p.chunk = append(p.chunk, b...)
	}
	p.state, p.gen, p.attempts = waiting, s.next, 0
	s.next++
	s.match()
	return nil
}

// match gives chunks to the workers that have asked for them, in turn.
func (s *Supplier) match() {
	for len(s.asking) > 0 && (len(s.again) > 0 || s.fresh < s.next) {
		m := s.asking[0]
		s.asking = slices.Delete(s.asking, 0, 1)
		var seq uint64
		if len(s.again) > 0 {
			seq = s.again[0]
			s.again = slices.Delete(s.again, 0, 1)
		} else {
			seq = s.fresh
			s.fresh++
		}
		p := s.place(seq)
		p.state, p.holder = held, m
		p.watched, p.begun = p.attempts > 0 || s.c.Attempts == 1, false
		m.give(seq)
	}
}

// Receive returns the next result, in the order of the chunks. The result is lent until it is
// released.
//
// Errors: [io.EOF] after the last result, when [Supplier.End] has been called; a
// [*HopelessError] in the place of a result; [ErrClosed]; that of ctx.
func (s *Supplier) Receive(ctx context.Context) (Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.closed {
			return Result{}, fmt.Errorf("pool: receive: %w", ErrClosed)
		}
		if s.result < s.next {
			seq, p := s.result, s.place(s.result)
			switch p.state {
			case answered:
				p.state = lent
				s.result++
				s.ring()
				return Result{s, seq}, nil
			case hopeless:
				err := &HopelessError{seq, p.attempts}
				s.result++
				s.vacate(seq)
				return Result{}, err
			}
		} else if s.ended {
			return Result{}, io.EOF
		}
		if err := s.await(ctx); err != nil {
			return Result{}, fmt.Errorf("pool: receive: %w", err)
		}
	}
}

// vacate frees a place.
func (s *Supplier) vacate(seq uint64) {
	p := s.place(seq)
	p.state, p.holder = free, nil
	if cap(p.chunk) > keptMost {
		p.chunk = nil
	}
	if cap(p.result) > keptMost {
		p.result = nil
	}
	for s.low < s.next && s.place(s.low).state == free {
		s.low++
	}
	s.ring()
}

// Seq returns the number of the chunk, from 0.
func (r Result) Seq() uint64 { return r.seq }

// Bytes returns the bytes of the result, possibly none. They are the caller's until Release.
func (r Result) Bytes() []byte {
	if r.s == nil {
		return nil
	}
	return r.s.place(r.seq).result
}

// Release gives back the bytes and the place of the chunk. Calling it again does nothing. Any
// goroutine may call it.
func (r Result) Release() {
	if r.s == nil {
		return
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if p := r.s.place(r.seq); p.state == lent && p.gen == r.seq {
		r.s.vacate(r.seq)
	}
}

// End says that there are no more chunks, and waits until all results have been received by
// [Supplier.Receive], which another goroutine has to call. It then sends all workers their
// end and stops listening. Results that are lent stay valid. Calling it again does nothing.
//
// Errors: [ErrClosed] if the supplier was closed before; that of ctx, after which End may be
// called again.
func (s *Supplier) End(ctx context.Context) error {
	s.mu.Lock()
	s.ended = true
	s.ring()
	for s.result < s.next && !s.closed {
		if err := s.await(ctx); err != nil {
			s.mu.Unlock()
			return fmt.Errorf("pool: end: %w", err)
		}
	}
	if s.result < s.next {
		s.mu.Unlock()
		return fmt.Errorf("pool: end: %w", ErrClosed)
	}
	s.done = true
	errs := []error{s.ln.Close()}
	for m := range s.members {
		m.end()
		errs = append(errs, m.conn.SetReadDeadline(time.Now().Add(s.c.Timeout))) // for it to hang up
	}
	s.proving.Close()
	s.mu.Unlock()
	s.wg.Wait()
	return closing(errs...)
}

// Close ends the connections, and drops the results that have not been received. After End
// has succeeded it does nothing.
func (s *Supplier) Close() error {
	s.mu.Lock()
	if s.done {
		s.mu.Unlock()
		s.wg.Wait()
		return nil
	}
	s.closed = true
	s.ring()
	var errs []error
	for m := range s.members {
		errs = append(errs, m.conn.Close())
	}
	s.proving.Close()
	errs = append(errs, s.ln.Close())
	s.mu.Unlock()
	s.wg.Wait()
	return closing(errs...)
}

// closing joins errors, except those of connections that have been closed before.
func closing(errs ...error) error {
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, net.ErrClosed) })...)
}

// Stats returns what the supplier has done. Any goroutine may call it at any time.
func (s *Supplier) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Chunks: s.next, Results: s.result, Waiting: int(s.next-s.fresh) + len(s.again), Workers: slices.Clone(s.gone)}
	for m := range s.members {
		w := m.counts
		w.Present, w.Held = true, len(m.has)
		for _, a := range s.asking {
			if a == m {
				w.Waiting++
			}
		}
		st.Held += w.Held
		st.Workers = append(st.Workers, w)
	}
	return st
}
