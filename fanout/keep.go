package fanout

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/impi"
)

// sendKept queues a chunk whose parts the supplier keeps, and waits until it has been handed
// out, or with a queue only until there is room.
func (s *Supplier) sendKept(ctx context.Context, n int, parts [][]byte, release func(), copies bool) error {
	ctx, err := s.exclusive(ctx)
	if err != nil {
		return err
	}
	defer s.shared()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err := s.takeFault(); err != nil {
			return err
		}
		if s.room() {
			break
		}
		if s.noneLeft() {
			return s.noWorkers()
		}
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	if s.stop != nil && s.noneLeft() {
		return s.noWorkers()
	}
	c := s.newChunk(n, parts, release, copies)
	s.queue.push(c)
	s.dispatch()
	if s.stop != nil {
		return nil
	}
	for !c.given {
		err := s.broken
		switch {
		case err != nil:
		case s.noneLeft():
			err = s.noWorkers()
		default:
			err = s.await(ctx)
		}
		if err != nil && !c.given {
			s.queue.remove(c)
			s.forget(c)
			c.release = nil
			s.recycle(c)
			return err
		}
		s.fault = errors.Join(s.fault, err) // the chunk has gone: the next call says it
		s.dispatch()
	}
	return nil
}

// takeFault returns why no chunk can be taken, and clears the goroutine's fault.
func (s *Supplier) takeFault() error {
	if err := s.fault; err != nil {
		s.fault = nil
		return err
	}
	return s.open()
}

// room reports whether another chunk can be taken.
func (s *Supplier) room() bool {
	if s.kept != nil && s.next-s.low >= uint64(len(s.kept)) {
		return false
	}
	return s.stop == nil || s.queue.len() < s.o.queue
}

// await returns when something may have changed. The caller holds mu, and does so again
// when it returns; without a queue it has the turn.
func (s *Supplier) await(ctx context.Context) error {
	if s.stop == nil {
		return s.awaitMessage(ctx)
	}
	s.waiters++
	bell := s.bell
	s.mu.Unlock()
	var err error
	select {
	case <-bell:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	return err
}

// awaitMessage is await of a supplier without a queue. Acknowledge wakes it.
func (s *Supplier) awaitMessage(ctx context.Context) error {
	until := ctx
	if s.o.keep == untilCollected {
		until, s.wake = context.WithCancel(ctx)
	}
	s.mu.Unlock()
	err := s.hear(ctx, until)
	s.mu.Lock()
	if s.wake != nil {
		if errors.Is(err, context.Canceled) && !errors.Is(ctx.Err(), context.Canceled) {
			err = nil // even if ctx has ended since: the next wait reports that
		}
		s.wake()
		s.wake = nil
	}
	s.dispatch()
	return err
}

// listen is the goroutine of a supplier with a queue.
func (s *Supplier) listen(ctx context.Context) {
	defer close(s.done)
	if s.turn.take(ctx) != nil {
		return
	}
	defer s.turn.leave()
	for ctx.Err() == nil {
		err := s.hear(ctx, ctx)
		s.mu.Lock()
		if err != nil && ctx.Err() == nil {
			s.fault = errors.Join(s.fault, err)
			s.ring()
		}
		over := s.broken != nil
		s.dispatch()
		s.mu.Unlock()
		if over {
			return
		}
	}
}

// newChunk makes a chunk, the next in sequence.
func (s *Supplier) newChunk(n int, parts [][]byte, release func(), copies bool) *chunk {
	c := s.freed
	if c == nil {
		c = &chunk{}
	} else {
		s.freed, c.free = c.free, nil
	}
	c.seq, c.bytes, c.release, c.worker, c.given, c.acked, c.deaths = s.next, n, release, -1, false, false, 0
	s.next++
	if s.kept != nil {
		s.kept[c.seq%uint64(len(s.kept))] = c
		s.keeps++
	}
	if !copies {
		c.parts = append(c.parts[:0], parts...)
		return c
	}
	if cap(c.memory) < n {
		c.memory = make([]byte, n)
	}
	at := c.memory[:0]
	for _, p := range parts {
		at = append(at, p...)
	}
	c.parts = append(c.parts[:0], at)
	return c
}

// keepMost is the most memory that an unused chunk keeps.
const keepMost = 1 << 20

// recycle puts back a chunk that is no longer read or awaited.
func (s *Supplier) recycle(c *chunk) {
	if c.release != nil {
		c.release()
	}
	if cap(c.memory) > keepMost {
		c.memory = nil
	}
	clear(c.parts)
	c.parts, c.release = c.parts[:0], nil
	c.free, s.freed = s.freed, c
}

// forget takes back the number of the chunk that was queued last.
func (s *Supplier) forget(c *chunk) {
	if s.kept != nil {
		s.kept[c.seq%uint64(len(s.kept))] = nil
		s.keeps--
	}
	s.next--
}

// dispatch hands out what it can: the first chunk to each request, in turn.
func (s *Supplier) dispatch() {
	s.reap()
	for s.broken == nil && s.again.len()+s.queue.len() > 0 {
		r, ok := s.ready.take(1)
		if !ok {
			return
		}
		s.answering(r)
		s.hand(r)
	}
}

// following takes the first chunk if its message has at most so many bytes.
func (s *Supplier) following(most int) *chunk {
	q := &s.again
	if q.len() == 0 {
		q = &s.queue
	}
	if c := q.first(); c != nil && recordHeader+c.bytes <= most {
		return q.pop()
	}
	return nil
}

// hand answers a request.
func (s *Supplier) hand(r request) {
	w := &s.workers[r.rank]
	if s.kept != nil && w.foreign && !r.numbered && s.asksAhead(r.rank) {
		return
	}
	numbered := r.numbered || s.kept != nil && !w.foreign
	m := s.envelope
	if m == nil {
		m = &message{}
	} else {
		s.envelope, m.free = m.free, nil
	}
	m.to = r.rank
	left := s.o.batch
	bytes := 0
	for c := s.following(1 << 62); c != nil; c = s.following(left) {
		c.given = true
		c.worker = r.rank
		c.sends++
		// Until a worker has died with the chunk, watching costs no message: see Attempts.
		c.watched, c.begun = s.kept != nil && (c.deaths > 0 || s.o.attempts == 1), w.foreign
		if numbered {
			f := s.flags()
			if len(m.chunks) > 0 {
				f |= unasked
			}
			if c.watched { // also of a chunk that a collector acknowledges: a worker may have done its part
				f |= watched | wantsAck
			}
			at := len(m.heads)
			m.heads = appendRecord(m.heads, c.seq, c.bytes, f)
			m.vec = append(m.vec, m.heads[at:])
		}
		m.vec = append(m.vec, c.parts...)
		m.chunks = append(m.chunks, c)
		bytes += c.bytes
		if left -= recordHeader + c.bytes; left <= 0 || !r.numbered {
			break
		}
	}
	s.gave(w, len(m.chunks), bytes)
	if s.kept != nil {
		w.has = append(w.has, m.chunks...)
	}
	tag := TagData
	if numbered {
		tag = TagNumbered
	}
	if err := s.start(m, tag); err != nil {
		s.broken = err
	}
	s.follow(m)
	s.ring()
}

// asksAhead reports whether a worker that promised OneAtATime has asked for the next chunk
// before it is given this one; if so, it ends the supplier.
func (s *Supplier) asksAhead(rank int) bool {
	there, st, err := s.comm.Iprobe(rank, TagRequest)
	if err != nil || !there {
		return false // a receive reports a worker that is gone
	}
	s.ahead(func(format string, a ...any) error {
		return &MessageError{rank, st.Tag, st.Len, fmt.Sprintf(format, a...)}
	})
	return true
}

// start starts the sending of a message.
func (s *Supplier) start(m *message, tag int) (err error) {
	n := 0
	for _, p := range m.vec {
		n += len(p)
	}
	if n > shortMost {
		m.req, err = s.comm.IsendVec(m.vec, m.to, tag)
		return err
	}
	m.short = m.short[:0]
	for _, p := range m.vec {
		m.short = append(m.short, p...)
	}
	m.req, err = s.comm.Isend(m.short, m.to, tag)
	return err
}

// follow records a message in flight, unless it is complete already.
func (s *Supplier) follow(m *message) {
	if done, _, err := m.req.Test(); done {
		s.settle(m, err)
		return
	}
	s.moving = append(s.moving, m)
}

// reap puts back the messages that are complete.
func (s *Supplier) reap() {
	for i := 0; i < len(s.moving); {
		done, st, err := s.moving[i].req.Test()
		if !done {
			i++
			continue
		}
		m := s.moving[i]
		s.moving = slices.Delete(s.moving, i, i+1)
		if st.Cancelled {
			s.moved(m, true)
			continue
		}
		s.settle(m, err) // this may call reap
	}
}

// settle puts back a message that has been sent or has failed.
func (s *Supplier) settle(m *message, err error) {
	rank, gone := lost(err)
	s.moved(m, gone)
	switch {
	case err == nil:
	case !gone:
		s.broken = err
		s.ring()
	default:
		s.lose(rank, err)
	}
}

// moved puts back a message that is no longer in flight. Without redelivery its chunks are
// finished, unless the worker died before it had them.
func (s *Supplier) moved(m *message, gone bool) {
	for _, c := range m.chunks {
		c.sends--
		switch {
		case s.kept != nil:
			if c.acked && c.sends == 0 {
				s.recycle(c)
			}
		case gone:
			c.worker = -1
			s.again.insert(c)
			s.workers[m.to].counts.Redelivered++
		default:
			s.recycle(c)
		}
	}
	clear(m.chunks)
	clear(m.vec)
	m.chunks, m.vec, m.heads, m.req = m.chunks[:0], m.vec[:0], m.heads[:0], impi.Request{}
	m.free, s.envelope = s.envelope, m
}

// acknowledgeNumber records that the chunk with that number has been processed. A number
// that has been acknowledged before is no error.
func (s *Supplier) acknowledgeNumber(seq uint64) error {
	if seq >= s.next {
		return fmt.Errorf("it acknowledges chunk %d, but only %d chunks exist", seq, s.next)
	}
	c := s.kept[seq%uint64(len(s.kept))]
	if c == nil || c.seq != seq {
		return nil
	}
	if !c.given {
		return fmt.Errorf("it acknowledges chunk %d, which no worker has been given", seq)
	}
	s.acknowledge(c)
	return nil
}

// acknowledge records that a chunk has been processed.
func (s *Supplier) acknowledge(c *chunk) {
	if c.worker < 0 {
		s.again.remove(c) // it had been done before its worker died
	} else {
		w := &s.workers[c.worker]
		for i, h := range w.has {
			if h == c {
				w.has = append(w.has[:i], w.has[i+1:]...)
				break
			}
		}
	}
	s.unkeep(c)
}

// unkeep drops a chunk that goes to no worker again.
func (s *Supplier) unkeep(c *chunk) {
	c.acked = true
	n := uint64(len(s.kept))
	s.kept[c.seq%n] = nil
	s.keeps--
	for s.low < s.next && s.kept[s.low%n] == nil {
		s.low++
	}
	if c.sends == 0 {
		s.recycle(c)
	}
	s.ring()
}

// handBack gives the chunks that a worker has not acknowledged to others. The loss of the
// worker counts against each chunk that it had begun, or may have begun; but a chunk is given
// up only after a loss that is known to have happened during work on it.
func (s *Supplier) handBack(w *worker) {
	for _, c := range w.has {
		c.worker = -1
		if !c.watched || c.begun {
			c.deaths++
		}
		if c.deaths == s.o.attempts && s.o.keep == untilAcknowledged {
			s.hopeless = append(s.hopeless, &HopelessError{c.seq, c.deaths})
			s.givenUp++
			s.unkeep(c)
			continue
		}
		if c.deaths == s.o.attempts && s.broken == nil { // a collector waits for its result
			s.broken = &HopelessError{c.seq, c.deaths}
		}
		s.again.insert(c)
		w.counts.Redelivered++
	}
	clear(w.has)
	w.has = w.has[:0]
	s.ring()
}

// takeHopeless returns the chunks that have been given up since the last call.
func (s *Supplier) takeHopeless() error {
	err := errors.Join(s.hopeless...)
	s.hopeless = nil
	return err
}

// noWorkers returns [ErrNoWorkers], with the chunks that have been given up, or else the chunk
// that most workers had when they were lost.
func (s *Supplier) noWorkers() error {
	if len(s.hopeless) > 0 {
		return fmt.Errorf("%w: %w", ErrNoWorkers, s.takeHopeless())
	}
	var most *chunk
	for _, c := range s.again.list[s.again.head:] {
		if c.deaths > 0 && (most == nil || c.deaths > most.deaths) {
			most = c
		}
	}
	if most == nil {
		return ErrNoWorkers
	}
	return fmt.Errorf("%w; %d of them had chunk %d when they did", ErrNoWorkers, most.deaths, most.seq)
}

// begun records that a worker has begun with a chunk, or has finished it. The worker may have
// died since, and another may have the chunk.
func (s *Supplier) begun(rank int, seq uint64, begun bool) error {
	if seq >= s.next || s.kept == nil {
		return fmt.Errorf("it reports work on chunk %d, which this supplier does not keep (next: %d)", seq, s.next)
	}
	if c := s.kept[seq%uint64(len(s.kept))]; c != nil && c.seq == seq && c.worker == rank {
		c.begun = begun
	}
	return nil
}

// collected handles a message from a collector.
func (s *Supplier) collected(st impi.Status, bad func(string, ...any) error) error {
	switch {
	case !slices.Contains(s.o.by, st.Source):
		return bad("the sender is not one of the supplier's collectors")
	case st.Len%8 != 0:
		return bad("its length must be a multiple of 8: each sequence number has 8 bytes")
	}
	for b := s.ask[:st.Len]; len(b) > 0; {
		var seq uint64
		seq, b = nextNumber(b)
		if err := s.acknowledgeNumber(seq); err != nil {
			return bad("%v", err)
		}
	}
	return nil
}

// Acknowledge tells the supplier that the result of a chunk has been taken. It is for a
// [Collector] in the same process: see [AcknowledgeBy]. Acknowledging a chunk again does
// nothing. Any goroutine may call it.
//
// Errors: [ErrInvalid] for a supplier without [Collected], and for the number of a chunk that
// no worker has been given.
func (s *Supplier) Acknowledge(seq uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.o.keep != untilCollected {
		return opError("acknowledge", fmt.Errorf("%w: the supplier was made without Collected", ErrInvalid))
	}
	if err := s.acknowledgeNumber(seq); err != nil {
		return opError("acknowledge", fmt.Errorf("%w: %w", ErrInvalid, err))
	}
	return nil
}
