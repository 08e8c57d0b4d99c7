package fanout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/impi"
)

// Supplier gives chunks to the workers of a communicator, each to the one that asked
// first. Its methods may be called from several goroutines; chunks of several goroutines
// are in no order.
//
// All messages to its rank in the communicator are the supplier's: use one that is for
// nothing else (impi.Comm.Dup). A later supplier of the rank needs another one if a client
// has a [Window] of more than 1: what that asked for and did not get is still on its way
// when it has had its end. The communicator stays the caller's.
//
// Without [Queue] the supplier hears of its workers in Send, Drain and End only.
type Supplier struct {
	comm *impi.Comm
	o    supplierOptions
	born time.Time

	// turn is held by whoever receives, and without a queue by whoever sends.
	turn turn
	ask  []byte // what is received into; under turn

	draft draft

	mu       sync.Mutex
	workers  []worker // by rank
	ready    requests
	queue    chunks // not handed out yet
	again    chunks // of workers that died; go first
	kept     []*chunk
	low      uint64 // the chunk that has not been acknowledged and comes first
	keeps    int    // chunks that have not been acknowledged
	next     uint64 // sequence number of the next chunk
	moving   []*message
	freed    *chunk
	envelope *message
	bell     chan struct{} // closed when something has changed that somebody waits for
	waiters  int
	wake     context.CancelFunc // of a wait for a message, and for acknowledgements by a call
	fault    error              // of the goroutine, for the next call
	broken   error              // nothing goes any more
	hopeless []error            // of chunks that were given up: for Drain or End
	givenUp  int                // how many
	ending   bool               // End has been called: no more chunks

	stop context.CancelFunc // nil without a queue
	done chan struct{}
}

// NewSupplier makes a supplier of a communicator. With [Queue] it has to be ended by
// [Supplier.End] or [Supplier.Close].
//
// Errors: [ErrInvalid] for an option.
func NewSupplier(comm *impi.Comm, opts ...Option) (*Supplier, error) {
	o, err := newSupplierOptions(comm, opts)
	if err != nil {
		return nil, opError("supplier", err)
	}
	comm.NotifyLeft()
	s := &Supplier{
		comm: comm, o: o, born: time.Now(), ask: make([]byte, askHeader+8*askMost),
		workers: make([]worker, comm.Size()), bell: make(chan struct{}),
	}
	if o.keep != keepNothing {
		s.kept = make([]*chunk, o.unacked)
	}
	ranks := comm.Ranks()
	for _, r := range o.workers {
		w := &s.workers[r]
		w.is, w.foreign, w.counts.Rank = true, comm.Job().Foreign(ranks[r]), r
		if o.timed {
			w.service = newTimes()
		}
	}
	if o.queue > 0 {
		var ctx context.Context
		ctx, s.stop = context.WithCancel(context.Background())
		s.done = make(chan struct{})
		go s.listen(ctx)
	}
	return s, nil
}

// Receive is an error: chunks go from supplier to client. It returns [ErrDirection].
func (s *Supplier) Receive(context.Context) (Chunk, error) {
	return Chunk{}, opError("receive", ErrDirection)
}

// Send gives a chunk to the worker that asked first, or waits until one asks. The parts
// are gathered into one message; they are not copied together, and may be changed when
// Send has returned. With [Queue] it returns when the chunk is in the queue, which it
// waits for while that is full; with [Redeliver] and [Collected] it waits while too many
// are [Unacknowledged]. Of these chunks it keeps a copy.
//
// A worker that dies while it is being given the chunk is passed over. Without a queue,
// when ctx ends while a long chunk is on its way, the parts must be left alone until the
// job is closed, and it is not known whether the worker has got it.
//
// Errors: [ErrEmptyChunk]; [ErrNoWorkers]; a [*MessageError] for a message of a worker
// that is against the protocol, after which Send may be called again with the same chunk;
// [ErrClosed]; that of ctx.
func (s *Supplier) Send(ctx context.Context, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n == 0 {
		return opError("send", ErrEmptyChunk)
	}
	var err error
	if s.stop == nil && s.o.keep == keepNothing {
		err = s.sendNow(ctx, parts)
	} else {
		err = s.sendKept(ctx, n, parts, nil, true)
	}
	if err != nil {
		return opError("send", err)
	}
	return nil
}

// SendOwned is Send of parts that the supplier does not copy. They are its own from now
// on, until it calls release, which it does when they are no longer read: when the chunk
// has moved or, with [Redeliver] and [Collected], has been acknowledged, or when the
// supplier is closed.
//
// Without [Queue] it returns when a worker has asked for the chunk, not when that has
// moved, so that long chunks move to several workers at once; one of a worker that dies
// meanwhile goes to another.
//
// Release is called once, and not if SendOwned returns an error. It is called on any
// goroutine, or without a queue by a later Send, SendOwned, SendEach, Drain or End: who
// waits for the memory calls Drain. It must not call the supplier.
func (s *Supplier) SendOwned(ctx context.Context, release func(), parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n == 0 {
		return opError("send", ErrEmptyChunk)
	}
	if s.stop == nil && s.o.keep == keepNothing && n <= shortMost {
		if err := s.sendNow(ctx, parts); err != nil {
			return opError("send", err)
		}
		if release != nil {
			release()
		}
		return nil
	}
	if err := s.sendKept(ctx, n, parts, release, false); err != nil {
		return opError("send", err)
	}
	return nil
}

// open says why no chunk can be taken any more. The caller holds mu.
func (s *Supplier) open() error {
	switch {
	case s.broken != nil:
		return s.broken
	case s.ending:
		return ErrClosed
	}
	return nil
}

// hear receives a message of a worker, and does what it says. It waits for one until that
// context ends, or ctx. The caller has the turn, and not mu.
func (s *Supplier) hear(ctx, until context.Context) error {
	st, err := s.receive(ctx, until)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		return s.heard(st)
	}
	if errors.As(err, new(*MessageError)) {
		return err
	}
	if rank, ok := lost(err); ok {
		s.lose(rank, err)
		return nil
	}
	if until.Err() != nil {
		return err
	}
	s.broken = err
	s.ring()
	return err
}

// receive receives a message of a worker into ask. One that is announced as longer is not
// waited for.
func (s *Supplier) receive(ctx, until context.Context) (impi.Status, error) {
	if st, ok := s.comm.RecvNow(s.ask, impi.AnySource, impi.AnyTag); ok {
		return st, nil
	}
	st, err := s.comm.Probe(until, impi.AnySource, impi.AnyTag)
	switch {
	case err != nil:
		return st, err
	case st.Len < 0 || st.Len > len(s.ask):
		return st, discard(s.comm, st, fmt.Sprintf("what a worker says has at most %d bytes", len(s.ask)))
	}
	st, err = s.comm.Recv(ctx, s.ask, st.Source, st.Tag)
	if err != nil && ctx.Err() != nil {
		s.ask = make([]byte, len(s.ask)) // the message may still come into the old one
	}
	return st, err
}

// heard does what a message says.
func (s *Supplier) heard(st impi.Status) error {
	w := &s.workers[st.Source]
	bad := func(format string, a ...any) error {
		return &MessageError{st.Source, st.Tag, st.Len, fmt.Sprintf(format, a...)}
	}
	if st.Tag == TagCollect {
		return s.collected(st, bad)
	}
	if !w.is {
		return bad("it is no worker")
	}
	switch st.Tag {
	case TagRequest:
		if st.Len > 0 {
			return bad("a request is empty")
		}
		if err := s.plain(st.Source, bad); err != nil {
			return err
		}
		s.asked(st.Source, 1, false)
	case TagAsk:
		n, acks, err := parseAsk(s.ask[:st.Len])
		if err != nil {
			return bad("%v", err)
		}
		s.workerDone(w, len(acks)/8)
		for len(acks) > 0 {
			var seq uint64
			seq, acks = nextNumber(acks)
			err := error(nil)
			switch s.o.keep {
			case untilAcknowledged:
				err = s.acknowledgeNumber(seq)
			case untilCollected:
				err = s.begun(st.Source, seq, false)
			}
			if err != nil {
				return bad("%v", err)
			}
		}
		s.asked(st.Source, n, true)
	case TagLeave:
		if st.Len > 0 {
			return bad("what says that a worker leaves is empty")
		}
		if w.state == Ended {
			break
		}
		s.ready.drop(st.Source)
		w.waiting, w.state = 0, Left
		s.sendEmpty(st.Source)
	case TagClosed:
		if st.Len > 0 {
			return bad("what says that a worker has closed its client is empty")
		}
		if w.state >= Ended {
			break
		}
		w.owed = w.owed || w.state != Left
		s.ready.drop(st.Source)
		w.waiting, w.state = 0, Left
		s.recall(st.Source)
		s.handBack(w)
	case TagBegun:
		if st.Len != 8 {
			return bad("a number has 8 bytes")
		}
		seq, _ := nextNumber(s.ask[:8])
		if err := s.begun(st.Source, seq, true); err != nil {
			return bad("%v", err)
		}
		return nil
	default:
		return bad("a worker sends requests, with tag %d", TagRequest)
	}
	s.ring()
	return nil
}

// plain does what a request in the plain dialect says of chunks that the worker has been
// given. Of a client of this package that is nothing: where chunks are kept it is given
// them with their numbers, and acknowledges these, so that neither its window nor several
// goroutines matter. A foreign worker has nothing but requests, and those that it sends
// ahead cannot be told from those that follow a chunk: see [OneAtATime].
func (s *Supplier) plain(rank int, bad func(string, ...any) error) error {
	w := &s.workers[rank]
	switch {
	case s.kept == nil:
		s.workerDone(w, 1)
	case !w.foreign || w.state == Ended:
	case s.o.keep == untilCollected:
		return s.refuse(rank, bad("it asks in the plain dialect, in which results have no numbers for a collector"))
	case !s.o.oneAtATime:
		return s.refuse(rank, bad("it asks in the plain dialect, whose requests acknowledge nothing without OneAtATime"))
	case w.waiting > 0:
		return s.ahead(bad)
	case len(w.has) > 0:
		s.workerDone(w, 1)
		s.acknowledge(w.has[0])
	}
	return nil
}

// refuse gives a worker its end before it has had a chunk, for that reason.
func (s *Supplier) refuse(rank int, why error) error {
	s.workers[rank].state = Ended
	s.sendEmpty(rank)
	return why
}

// ahead ends the supplier: a worker has asked again before it was answered, so that what
// its requests have acknowledged may not have been done.
func (s *Supplier) ahead(bad func(string, ...any) error) error {
	if s.broken == nil {
		s.broken = bad("it asks again before it is answered: with OneAtATime that would lose chunks")
	}
	s.ring()
	return s.broken
}

// asked takes note of n requests. Who has been given its end gets no other: what it asks
// for had been under way, or is in vain.
func (s *Supplier) asked(rank, n int, numbered bool) {
	w := &s.workers[rank]
	if w.state == Ended || n == 0 {
		return
	}
	w.state, w.owed = Active, false
	w.waiting += n
	w.counts.Requests += uint64(n)
	var at time.Duration
	if s.o.timed {
		at = time.Since(s.born)
	}
	s.ready.push(request{rank, n, numbered, at})
}

// answering takes note that a request is being answered.
func (s *Supplier) answering(r request) {
	w := &s.workers[r.rank]
	w.waiting -= r.chunks
	if s.o.timed {
		w.counts.Idle += time.Duration(r.chunks) * (time.Since(s.born) - r.at)
	}
}

// gave counts what a worker has been given.
func (s *Supplier) gave(w *worker, chunks, bytes int) {
	w.counts.Chunks += uint64(chunks)
	w.counts.Bytes += uint64(bytes)
	w.counts.Messages++
	if s.o.timed {
		now := time.Since(s.born)
		for range chunks {
			w.service.begin(now)
		}
	}
}

// workerDone: a worker has done with so many chunks.
func (s *Supplier) workerDone(w *worker, chunks int) {
	if s.o.timed {
		now := time.Since(s.born)
		for range chunks {
			w.service.end(now)
		}
	}
}

// lose: a process is gone. What a worker has that is not acknowledged goes to others.
func (s *Supplier) lose(rank int, err error) {
	w := &s.workers[rank]
	if w.state == Dead {
		return
	}
	if slices.Contains(s.o.by, rank) {
		s.broken = err
	}
	w.state, w.waiting = Dead, 0
	w.counts.Err = err
	s.ready.drop(rank)
	s.reap()
	s.handBack(w)
}

// recall takes back the messages on their way to a worker that will not receive them. Those
// that have arrived are its later client's.
func (s *Supplier) recall(rank int) {
	for _, m := range s.moving {
		if m.to == rank && len(m.chunks) > 0 { // an end that is on its way is awaited
			if err := m.req.Cancel(); err != nil {
				s.fault = errors.Join(s.fault, err)
			}
		}
	}
	s.reap()
}

// anybody says whether there is a worker who may ask.
func (s *Supplier) anybody() bool {
	for _, r := range s.o.workers {
		if st := s.workers[r].state; st == Active || st == Unknown {
			return true
		}
	}
	return false
}

// nobody says whether all workers have died or left, and none has come back.
func (s *Supplier) nobody() bool {
	if s.anybody() {
		return false
	}
	if s.stop != nil {
		return true // what comes back, the goroutine hears
	}
	there, _, err := s.comm.Iprobe(impi.AnySource, impi.AnyTag)
	return !there && err == nil
}

// ring wakes who waits. The caller holds mu.
func (s *Supplier) ring() {
	if s.waiters > 0 {
		close(s.bell)
		s.bell = make(chan struct{})
		s.waiters = 0
	}
	if s.wake != nil {
		s.wake()
	}
}
