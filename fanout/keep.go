package fanout

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/impi"
)

// sendKept queues a chunk, of which the supplier keeps the parts, and waits until it has
// been handed out, or with a queue only until there is room.
func (s *Supplier) sendKept(ctx context.Context, n int, parts [][]byte, release func(), copies bool) error {
	if s.stop == nil {
		if err := s.turn.take(ctx); err != nil {
			return err
		}
		defer s.turn.leave()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err := s.takeFault(); err != nil {
			return err
		}
		if s.room() {
			break
		}
		if s.nobody() {
			return s.noWorkers()
		}
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	if s.stop != nil && s.nobody() {
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
		case s.nobody():
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

// takeFault returns why no chunk can be taken, and takes away what the goroutine has met.
func (s *Supplier) takeFault() error {
	if err := s.fault; err != nil {
		s.fault = nil
		return err
	}
	return s.open()
}

// room says whether another chunk can be taken.
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
			err = nil // also where ctx has lapsed since: that the next wait says
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

// keepMost is the most memory that a chunk which is not in use keeps.
const keepMost = 1 << 20

// recycle puts back a chunk that nobody reads or waits for any more.
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

// dispatch hands out what it can: to each request, in turn, the chunk that comes first.
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

// following takes the chunk that comes first, if its message is not longer than so many
// bytes.
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
		// Until a worker has gone with it, it costs no message: see Attempts.
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

// asksAhead says whether a worker that asks for one chunk at a time has asked for the next
// one before it is given this one; then the supplier has ended.
func (s *Supplier) asksAhead(rank int) bool {
	there, st, err := s.comm.Iprobe(rank, TagRequest)
	if err != nil || !there {
		return false // that it is gone, a receive says
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

// follow takes note of a message on its way, if it has not gone already.
func (s *Supplier) follow(m *message) {
	if done, _, err := m.req.Test(); done {
		s.settle(m, err)
		return
	}
	s.moving = append(s.moving, m)
}

// reap puts back what has moved.
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
		s.settle(m, err) // which may reap, too
	}
}

// settle puts back a message that has gone, or failed.
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

// moved puts back a message that is no longer on its way. Without redelivery its chunks
// are done with, unless the worker died before it had them.
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

// acknowledgeNumber takes note that the chunk of that number is done with. Nothing is
// wrong with one that has been acknowledged before.
func (s *Supplier) acknowledgeNumber(seq uint64) error {
	if seq >= s.next {
		return fmt.Errorf("acknowledges chunk %d of %d", seq, s.next)
	}
	c := s.kept[seq%uint64(len(s.kept))]
	if c == nil || c.seq != seq {
		return nil
	}
	if !c.given {
		return fmt.Errorf("acknowledges chunk %d, which nobody has", seq)
	}
	s.acknowledge(c)
	return nil
}

// acknowledge takes note that a chunk is done with.
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

// unkeep lets go of a chunk that no worker is to have again.
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

// handBack has what a worker has and has not acknowledged go to others. A chunk that the
// worker had begun with is blamed for its going, and so is each that may have been; but one
// is given up only after a death that is known to be during its work.
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

// takeHopeless returns which chunks have been given up since it was called last.
func (s *Supplier) takeHopeless() error {
	err := errors.Join(s.hopeless...)
	s.hopeless = nil
	return err
}

// noWorkers is [ErrNoWorkers], and names the chunk that most of them had when they went, or
// those that have been given up.
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
	return fmt.Errorf("%w; chunk %d was with %d of them when they went", ErrNoWorkers, most.seq, most.deaths)
}

// begun: a worker has begun with a chunk, or has done with it. It may have died since, and
// another have it.
func (s *Supplier) begun(rank int, seq uint64, begun bool) error {
	if seq >= s.next || s.kept == nil {
		return fmt.Errorf("works on chunk %d of %d", seq, s.next)
	}
	if c := s.kept[seq%uint64(len(s.kept))]; c != nil && c.seq == seq && c.worker == rank {
		c.begun = begun
	}
	return nil
}

// collected does what a collector says.
func (s *Supplier) collected(st impi.Status, bad func(string, ...any) error) error {
	switch {
	case !slices.Contains(s.o.by, st.Source):
		return bad("it is no collector of this supplier")
	case st.Len%8 != 0:
		return bad("numbers have 8 bytes each")
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

// Acknowledge says that the result of a chunk has been taken: for a collector in the same
// process, see [Collector]. Nothing is wrong with a chunk that has been acknowledged
// before.
//
// Errors: [ErrInvalid] for a supplier without [Collected], and for a number that no worker
// has been given.
func (s *Supplier) Acknowledge(seq uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.o.keep != untilCollected {
		return opError("acknowledge", fmt.Errorf("%w: the supplier does not wait for a collector", ErrInvalid))
	}
	if err := s.acknowledgeNumber(seq); err != nil {
		return opError("acknowledge", fmt.Errorf("%w: %w", ErrInvalid, err))
	}
	return nil
}
