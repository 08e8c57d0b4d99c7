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

// Supplier gives chunks to the workers of a communicator, each to the worker that asked first.
// Several goroutines may call its methods; chunks of different goroutines are in no order.
//
// The supplier receives all messages to its rank in the communicator: use a communicator that
// is for nothing else ([impi.Comm.Dup]). If a client has a [Window] of more than 1, a later
// supplier of this rank needs another communicator: requests that were not answered may
// still arrive after that client's end. The caller keeps the communicator.
//
// Without [Queue] the supplier receives messages only during Drain, End and the Send methods.
type Supplier struct {
	comm *impi.Comm
	o    supplierOptions
	born time.Time

	// turn is held to receive, and without a queue to send.
	turn turn
	ask  []byte // the receive buffer; under turn

	// The context of waits with the turn, see exclusive: under turn.
	waits     context.Context
	waitsWith <-chan struct{}    // the Done of the caller's
	endWaits  context.CancelFunc // ends it; under mu

	draft draft

	mu       sync.Mutex
	workers  []worker // by rank
	ready    requests
	queue    chunks // not handed out yet
	again    chunks // of workers that died; go first
	kept     []*chunk
	low      uint64 // sequence number of the first chunk that has not been acknowledged
	keeps    int    // chunks that have not been acknowledged
	next     uint64 // sequence number of the next chunk
	moving   []*message
	freed    *chunk
	envelope *message
	bell     chan struct{} // closed when something has changed that a caller waits for
	waiters  int
	wake     context.CancelFunc // ends a wait for a message, after an acknowledgement by a call
	fault    error              // of the goroutine, for the next call
	broken   error              // why every call fails from now on
	hopeless []error            // chunks that were given up, for Drain or End
	givenUp  int                // how many so far
	ending   bool               // End has been called: no more chunks

	stop context.CancelFunc // nil without a queue
	done chan struct{}
}

// NewSupplier makes a supplier on a communicator. With [Queue] it runs a goroutine, which
// [Supplier.End] or [Supplier.Close] stops.
//
// Errors: [ErrInvalid] for an invalid option.
func NewSupplier(comm *impi.Comm, opts ...Option) (*Supplier, error) {
	o, err := newSupplierOptions(comm, opts)
	if err != nil {
		return nil, opError("supplier", err)
	}
	comm.NotifyLeft()
	s := &Supplier{
		comm: comm, o: o, born: time.Now(), ask: make([]byte, askHeader+8*askMost),
		workers: make([]worker, comm.Size()), bell: make(chan struct{}), endWaits: func() {},
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

// Receive always returns [ErrDirection]: chunks go from supplier to client.
func (s *Supplier) Receive(context.Context) (Chunk, error) {
	return Chunk{}, opError("receive", ErrDirection)
}

// Send gives a chunk to the worker that asked first, or waits until one asks. It gathers the
// parts into one message. The parts may be changed when Send has returned. With [Queue] it
// returns when the chunk is in the queue, and waits while the queue is full; with [Redeliver]
// and [Collected] it waits while too many chunks are [Unacknowledged]. With any of the three
// it keeps a copy of the chunk.
//
// If a worker dies while it is being given the chunk, the next worker gets it. Without these
// options, if ctx ends while a long chunk is in flight, the parts must not be changed until
// the job is closed, and the worker may or may not have received the chunk.
//
// Errors: [ErrEmptyChunk]; [ErrNoWorkers]; a [*MessageError] if a worker sent a message that
// violates the protocol, after which Send may be called again with the same chunk;
// [ErrClosed]; a [*HopelessError] with [Collected]; that of ctx.
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

// SendOwned is Send without a copy. The supplier owns the parts until it calls release, which
// it does when it no longer reads them: when the chunk has been sent or, with [Redeliver] and
// [Collected], acknowledged, or when the supplier is closed.
//
// Without [Queue] it returns when a worker has asked for the chunk, before the chunk has been
// sent, so that long chunks go to several workers at once. The chunk of a worker that dies
// meanwhile goes to another.
//
// The supplier calls release once, and never if SendOwned returns an error. The call may come
// from any goroutine; without a queue it comes from this or a later call of a method of the
// supplier. To wait for the memory, call Drain. Release must not call the supplier.
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

// open returns why no more chunks can be taken, or nil. The caller holds mu.
func (s *Supplier) open() error {
	switch {
	case s.broken != nil:
		return s.broken
	case s.ending:
		return ErrClosed
	}
	return nil
}

// hear receives and handles one message of a worker. The context until bounds the wait for the
// message, ctx that for the rest of it. The caller has the turn, and not mu.
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
	switch {
	case s.broken != nil: // it was closed meanwhile
		return s.broken
	case until.Err() != nil:
		return err
	}
	s.broken = err
	s.ring()
	return err
}

// receive receives a message of a worker into ask. It discards a message that is announced as
// longer.
func (s *Supplier) receive(ctx, until context.Context) (impi.Status, error) {
	if st, ok := s.comm.RecvNow(s.ask, impi.AnySource, impi.AnyTag); ok {
		return st, nil
	}
	st, err := s.comm.Probe(until, impi.AnySource, impi.AnyTag)
	switch {
	case err != nil:
		return st, err
	case st.Len < 0 || st.Len > len(s.ask):
		return st, discard(s.comm, st, fmt.Sprintf("a message to a supplier has at most %d bytes", len(s.ask)))
	}
	st, err = s.comm.Recv(ctx, s.ask, st.Source, st.Tag)
	if err != nil && ctx.Err() != nil {
		s.ask = make([]byte, len(s.ask)) // the message may still come into the old one
	}
	return st, err
}

// heard handles a message.
func (s *Supplier) heard(st impi.Status) error {
	w := &s.workers[st.Source]
	bad := func(format string, a ...any) error {
		return &MessageError{st.Source, st.Tag, st.Len, fmt.Sprintf(format, a...)}
	}
	if st.Tag == TagCollect {
		return s.collected(st, bad)
	}
	if !w.is {
		return bad("the sender is not one of the supplier's workers")
	}
	switch st.Tag {
	case TagRequest:
		if st.Len > 0 {
			return bad("a request must be empty")
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
			return bad("a leave message must be empty")
		}
		if w.state == Ended {
			break
		}
		s.ready.drop(st.Source)
		w.waiting, w.state = 0, Left
		s.sendEmpty(st.Source)
	case TagClosed:
		if st.Len > 0 {
			return bad("a closed message must be empty")
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
			return bad("a begun message must have 8 bytes")
		}
		seq, _ := nextNumber(s.ask[:8])
		if err := s.begun(st.Source, seq, true); err != nil {
			return bad("%v", err)
		}
		return nil
	default:
		return bad("the tag is unknown: a worker sends requests with tag %d", TagRequest)
	}
	s.ring()
	return nil
}

// plain handles what a request in the plain dialect implies for the chunks that the worker
// has been given. From a client of this package it implies nothing: a supplier that keeps
// chunks sends it their numbers, and it acknowledges these, whatever its window and however
// many goroutines. A foreign worker sends nothing but requests, and a request sent ahead looks
// the same as one that follows a chunk: see [OneAtATime].
func (s *Supplier) plain(rank int, bad func(string, ...any) error) error {
	w := &s.workers[rank]
	switch {
	case s.kept == nil:
		s.workerDone(w, 1)
	case !w.foreign || w.state == Ended:
	case s.o.keep == untilCollected:
		return s.refuse(rank, bad("the worker asks in the plain dialect, which has no sequence numbers for a collector"))
	case !s.o.oneAtATime:
		return s.refuse(rank, bad("the worker asks in the plain dialect, whose requests acknowledge nothing without OneAtATime"))
	case w.waiting > 0:
		return s.ahead(bad)
	case len(w.has) > 0:
		s.workerDone(w, 1)
		s.acknowledge(w.has[0])
	}
	return nil
}

// refuse sends a worker its end before it has had a chunk, and returns why.
func (s *Supplier) refuse(rank int, why error) error {
	s.workers[rank].state = Ended
	s.sendEmpty(rank)
	return why
}

// ahead ends the supplier: a worker has asked again before it was answered, so chunks that its
// requests have acknowledged may not have been processed.
func (s *Supplier) ahead(bad func(string, ...any) error) error {
	if s.broken == nil {
		s.broken = bad("the worker asked again before it was answered: with OneAtATime that would lose chunks")
	}
	s.ring()
	return s.broken
}

// asked records n requests. A worker that has had its end gets no other: its requests were in
// flight before the end, or are ignored.
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

// answering records that a request is being answered.
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

// workerDone records that a worker has finished so many chunks.
func (s *Supplier) workerDone(w *worker, chunks int) {
	if s.o.timed {
		now := time.Since(s.born)
		for range chunks {
			w.service.end(now)
		}
	}
}

// lose handles the loss of a process. Chunks that a worker has not acknowledged go to others.
func (s *Supplier) lose(rank int, err error) {
	w := &s.workers[rank]
	if w.state == Lost {
		return
	}
	if slices.Contains(s.o.by, rank) {
		s.broken = err
	}
	w.state, w.waiting = Lost, 0
	w.counts.Err = err
	s.ready.drop(rank)
	s.reap()
	s.handBack(w)
}

// recall cancels the messages in flight to a worker that will not receive them. Those that
// have arrived go to its later client.
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

// anyLeft reports whether there is a worker that may ask.
func (s *Supplier) anyLeft() bool {
	for _, r := range s.o.workers {
		if st := s.workers[r].state; st == Active || st == Unknown {
			return true
		}
	}
	return false
}

// noneLeft reports whether all workers have died or left, and none has come back.
func (s *Supplier) noneLeft() bool {
	if s.anyLeft() {
		return false
	}
	if s.stop != nil {
		return true // the goroutine receives the requests of a worker that comes back
	}
	there, _, err := s.comm.Iprobe(impi.AnySource, impi.AnyTag)
	return !there && err == nil
}

// ring wakes all waiters. The caller holds mu.
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
