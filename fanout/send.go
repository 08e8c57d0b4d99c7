package fanout

import (
	"context"
	"errors"

	"github.com/sluice-hpc/sluice/impi"
)

// draft is the message that a supplier without a queue sends. The turn guards it.
type draft struct {
	vec   [][]byte
	heads []byte // of the chunks in it
	short []byte // a short message, which is sent in one piece
}

// shortMost is the length in bytes up to which copying a message together costs less than
// sending it in pieces.
const shortMost = 4 << 10

// SendEach sends several chunks, each of one part, as calls of Send would, and returns how
// many have been sent. A [Numbered] worker that has asked for several, as one with a [Window]
// does, gets several chunks in one message of at most [Batch] bytes; without Batch each chunk
// is a message.
//
// Errors: those of Send. The chunks after the first n have not been sent and stay the
// caller's.
func (s *Supplier) SendEach(ctx context.Context, chunks ...[]byte) (n int, err error) {
	for _, c := range chunks {
		if len(c) == 0 {
			return 0, opError("send", ErrEmptyChunk)
		}
	}
	if s.stop == nil && s.o.keep == keepNothing {
		n, err = s.sendEach(ctx, chunks)
	} else {
		for n < len(chunks) && err == nil {
			if err = s.sendKept(ctx, len(chunks[n]), chunks[n:n+1], nil, true); err == nil {
				n++
			}
		}
	}
	if err != nil {
		err = opError("send", err)
	}
	return n, err
}

// sendEach sends chunks that are not kept.
func (s *Supplier) sendEach(ctx context.Context, chunks [][]byte) (n int, err error) {
	ctx, err = s.exclusive(ctx)
	if err != nil {
		return 0, err
	}
	defer s.turn.leave()
	for n < len(chunks) && err == nil {
		var k int
		k, err = s.answerNext(ctx, chunks[n:n+s.fitting(chunks[n:])], true)
		n += k
	}
	return n, err
}

// fitting returns how many chunks a message may have.
func (s *Supplier) fitting(chunks [][]byte) int {
	k, left := 1, s.o.batch-recordHeader-len(chunks[0])
	for ; k < len(chunks) && left >= recordHeader+len(chunks[k]); k++ {
		left -= recordHeader + len(chunks[k])
	}
	return k
}

// sendNow sends a chunk that is not kept.
func (s *Supplier) sendNow(ctx context.Context, parts [][]byte) error {
	ctx, err := s.exclusive(ctx)
	if err != nil {
		return err
	}
	defer s.turn.leave()
	_, err = s.answerNext(ctx, parts, false)
	return err
}

// answerNext answers the first request: with one chunk that consists of parts or, with each,
// with as many of the one-part chunks as it asks for. It returns how many chunks have gone.
func (s *Supplier) answerNext(ctx context.Context, parts [][]byte, each bool) (int, error) {
	most := 1
	if each {
		most = len(parts)
	}
	for {
		s.mu.Lock()
		if err := s.open(); err != nil {
			s.mu.Unlock()
			return 0, err
		}
		if len(s.moving)+s.again.len() > 0 {
			s.dispatch()
		}
		r, ok := s.ready.take(most)
		none := !ok && s.noneLeft()
		if ok {
			s.answering(r)
		}
		s.mu.Unlock()
		switch {
		case none:
			return 0, ErrNoWorkers
		case !ok:
			if err := s.hear(ctx, ctx); err != nil {
				return 0, err
			}
			continue
		}
		these := parts
		if each {
			these = parts[:r.chunks]
		}
		n := 0
		for _, p := range these {
			n += len(p)
		}
		err := s.give(ctx, r, these, n)
		s.mu.Lock()
		if err == nil {
			s.next += uint64(r.chunks)
			s.gave(&s.workers[r.rank], r.chunks, n)
			s.mu.Unlock()
			return r.chunks, nil
		}
		rank, gone := lost(err)
		switch {
		case gone:
			s.lose(rank, err)
		case s.broken != nil:
			err = s.broken // it was closed meanwhile
		}
		s.mu.Unlock()
		if !gone {
			return 0, err
		}
	}
}

// give sends parts, of n bytes, to a worker, and waits until the send is complete.
func (s *Supplier) give(ctx context.Context, r request, parts [][]byte, n int) error {
	heads, tag := 0, TagData
	if r.numbered {
		heads, tag = r.chunks, TagNumbered
	}
	if heads == 0 && len(parts) == 1 {
		return s.comm.Send(ctx, parts[0], r.rank, tag)
	}
	length := func(i int) int {
		if heads > 1 {
			return len(parts[i])
		}
		return n
	}
	d := &s.draft
	var err error
	if n <= shortMost {
		b := d.short[:0]
		for i, p := range parts {
			if i < heads {
				b = appendRecord(b, s.next+uint64(i), length(i), s.flags())
			}
			b = append(b, p...)
		}
		d.short = b
		err = s.comm.Send(ctx, b, r.rank, tag)
	} else {
		d.heads, d.vec = d.heads[:0], d.vec[:0]
		for i := range heads {
			d.heads = appendRecord(d.heads, s.next+uint64(i), length(i), s.flags())
		}
		for i, p := range parts {
			if i < heads {
				d.vec = append(d.vec, d.heads[i*recordHeader:(i+1)*recordHeader])
			}
			d.vec = append(d.vec, p)
		}
		var req impi.Request
		if req, err = s.comm.IsendVec(d.vec, r.rank, tag); err == nil {
			_, err = req.Wait(ctx)
		}
		if err != nil && ctx.Err() != nil {
			err = errors.Join(err, req.Cancel())
			req.Free()
		}
	}
	if err != nil && ctx.Err() != nil {
		*d = draft{} // it may still be read
	}
	clear(d.vec)
	return err
}

// flags returns the flags of a chunk that answers a request.
func (s *Supplier) flags() flags {
	if s.o.keep == untilAcknowledged || s.o.timed {
		return wantsAck
	}
	return 0
}
