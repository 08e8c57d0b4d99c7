package fanout

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Drain waits until all chunks have been handed out and, with [Redeliver] or [Collected],
// acknowledged or given up after too many [Attempts].
//
// Errors: those of Send and of ctx; after all other chunks have been acknowledged, a
// [*HopelessError] for each chunk that was given up, once.
func (s *Supplier) Drain(ctx context.Context) error {
	ctx, err := s.exclusive(ctx)
	if err != nil {
		return opError("drain", err)
	}
	defer s.shared()
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.drain(ctx)
	if err == nil {
		err = s.takeHopeless()
	}
	if err != nil {
		return opError("drain", err)
	}
	return nil
}

// exclusive takes the turn, unless the supplier's goroutine has it, and returns a context for waits with
// the turn. It ends with ctx, or when the supplier is closed.
func (s *Supplier) exclusive(ctx context.Context) (context.Context, error) {
	if s.stop != nil {
		return ctx, nil
	}
	if err := s.turn.take(ctx); err != nil {
		return nil, err
	}
	if s.waits == nil || s.waitsWith != ctx.Done() || s.waits.Err() != nil { // else it is that of the call before
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endWaits()
		s.waitsWith = ctx.Done()
		if s.waits, s.endWaits = context.WithCancel(ctx); s.broken != nil {
			s.endWaits()
		}
	}
	return s.waits, nil
}

func (s *Supplier) shared() {
	if s.stop == nil {
		s.turn.leave()
	}
}

// left returns how many chunks are not finished.
func (s *Supplier) left() int {
	if s.kept != nil {
		return s.keeps
	}
	return s.queue.len() + s.again.len() + len(s.moving)
}

func (s *Supplier) drain(ctx context.Context) error {
	for {
		s.dispatch()
		if err := s.fault; err != nil {
			s.fault = nil
			return err
		}
		if s.broken != nil {
			return s.broken
		}
		if s.left() == 0 {
			return nil
		}
		if s.queue.len()+s.again.len() > 0 && s.noneLeft() {
			return s.noWorkers()
		}
		if err := s.awaitMoving(ctx); err != nil {
			return err
		}
	}
}

// lookEvery is how often Drain and End check messages in flight: no message announces that
// one has been sent.
const lookEvery = time.Millisecond

// awaitMoving is await, but returns soon if a message is in flight.
func (s *Supplier) awaitMoving(ctx context.Context) error {
	if len(s.moving) == 0 {
		return s.await(ctx)
	}
	soon, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	err := s.await(soon)
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	s.dispatch()
	s.reap()
	return err
}

// End first does what Drain does. It then sends each worker one end, as the answer to a
// request, so it waits until every worker that has not died or left has asked. Last, it closes
// the supplier. Workers that ask for the first time during End are served like any other.
//
// Errors: an [*EndError] when ctx ends first, which names the workers that have had no end;
// End may then be called again. Those of Drain; after a [*HopelessError] all other chunks are
// finished, and all workers have had their end. Calling it again afterwards does nothing.
func (s *Supplier) End(ctx context.Context) error {
	ctx, err := s.exclusive(ctx)
	if err != nil {
		return opError("end", err)
	}
	if !s.isClosed() {
		err = s.end(ctx)
	}
	s.shared()
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.takeHopeless(); err != nil {
		return opError("end", err)
	}
	return nil
}

func (s *Supplier) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken == ErrClosed
}

func (s *Supplier) end(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	s.ring()
	err := s.drain(ctx)
	for err == nil {
		s.endWaiting()
		never, late := s.unended()
		if len(never)+len(late) == 0 && len(s.moving) == 0 {
			return nil
		}
		if err = s.broken; err == nil {
			err = s.awaitMoving(ctx)
		}
		if err == nil && s.fault != nil {
			err, s.fault = s.fault, nil
		}
		if s.left() > 0 && err == nil {
			err = s.drain(ctx)
		}
	}
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) && !errors.Is(err, context.DeadlineExceeded) {
		return opError("end", err)
	}
	never, late := s.unended()
	e := &EndError{Never: never, Late: late, Err: err}
	if e.Kept = s.left(); len(never)+len(late)+e.Kept == 0 {
		return nil
	}
	return e
}

// endWaiting answers all requests with ends. A worker that closed its client without one gets
// it, too, or a client that it makes later would wait forever.
func (s *Supplier) endWaiting() {
	for _, r := range s.o.workers {
		if w := &s.workers[r]; w.state == Left && w.owed {
			w.state, w.owed = Ended, false
			s.sendEmpty(r)
		}
	}
	for {
		r, ok := s.ready.take(maxWindow)
		if !ok {
			return
		}
		s.answering(r)
		if w := &s.workers[r.rank]; w.state == Active {
			w.state = Ended
			s.sendEmpty(r.rank)
		}
	}
}

// sendEmpty sends an end.
func (s *Supplier) sendEmpty(rank int) {
	req, err := s.comm.Isend(nil, rank, TagEnd)
	if err != nil {
		s.broken = err
		return
	}
	m := s.envelope
	if m == nil {
		m = &message{}
	} else {
		s.envelope, m.free = m.free, nil
	}
	m.to, m.req = rank, req
	s.follow(m)
}

// unended returns the workers that still need an end.
func (s *Supplier) unended() (never, late []int) {
	for _, r := range s.o.workers {
		switch s.workers[r].state {
		case Unknown:
			never = append(never, r)
		case Active:
			late = append(late, r)
		}
	}
	slices.Sort(never)
	slices.Sort(late)
	return never, late
}

// Close closes the supplier without sending ends: workers that ask later wait. Calls that wait
// return [ErrClosed]. Chunks that are queued or not acknowledged are dropped. After
// [Supplier.End] has succeeded it does nothing. The memory of chunks that are still in flight
// to a worker must not be changed until the job is closed.
func (s *Supplier) Close() error {
	s.mu.Lock()
	if s.broken == nil {
		s.broken = ErrClosed
	}
	s.ending = true
	s.ring()
	s.endWaits()
	s.mu.Unlock()
	if s.stop != nil {
		s.stop()
		<-s.done
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.moving {
		m.req.Free()
	}
	s.moving = nil
	for _, q := range []*chunks{&s.again, &s.queue} {
		for q.len() > 0 {
			if c := q.pop(); s.kept == nil && c.release != nil && c.sends == 0 {
				c.release()
			}
		}
	}
	for i, c := range s.kept {
		if c != nil && c.release != nil && c.sends == 0 {
			c.release()
		}
		s.kept[i] = nil
	}
	s.low, s.keeps = s.next, 0
	return nil
}
