package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// queue is the sorter's state of a source: the results of a window, each in the slot of its
// sequence number, and the one whose items are being written.
type queue struct {
	slots []*job
	next  uint64 // sequence number of the next head
	head  *job
	at    int // offset of the next item in head.result
	ended bool
	end   uint64 // if ended: how many chunks there were
}

// entry returns the timestamp of the next item, and the size of both. The result has been
// checked.
func (q *queue) entry() (timestamp uint64, n int) {
	b := q.head.result[q.at:]
	le := binary.LittleEndian
	return le.Uint64(b), ring.StampLen + int(le.Uint32(b[ring.StampLen:]))
}

// sort takes results until all sources have ended and all results are written.
func (p *Pipeline) sort(ctx context.Context, gone <-chan struct{}) error {
	for {
		waiting, err := p.emit(ctx)
		switch {
		case err != nil:
			return err
		case !waiting && ctx.Err() != nil: // which ends the sources, too
			return context.Cause(ctx)
		case !waiting:
			return nil
		}
		select {
		case j := <-p.results:
			p.put(j)
			continue
		default:
		}
		select {
		case j := <-p.results:
			p.put(j)
		case e := <-p.ends:
			s := p.sources[e.source]
			s.err, s.queue.ended, s.queue.end = e.err, true, e.chunks
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-gone:
			// Everything that the workers have done is in results, and is handled first.
			select {
			case j := <-p.results:
				p.put(j)
			default:
				return p.allGone(ctx)
			}
		}
	}
}

func (p *Pipeline) put(j *job) {
	q := &p.sources[j.Source].queue
	q.slots[j.Seq%uint64(len(q.slots))] = j
}

// allGone returns the error when no worker is left.
func (p *Pipeline) allGone(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var errs []error
	for _, w := range p.workers {
		errs = append(errs, w.startErr)
	}
	return &Error{Op: "worker", Err: fmt.Errorf("no worker is left: %w", errors.Join(errs...))}
}

// emit hands to the sink the items whose turn it is, and reports whether it has to wait for
// more results.
func (p *Pipeline) emit(ctx context.Context) (waiting bool, err error) {
	for {
		first, second := Head{Source: -1}, Head{Source: -1}
		for _, s := range p.sources {
			if err := p.advance(s); err != nil {
				return false, err
			}
			q := &s.queue
			if q.head == nil {
				if !q.ended || q.next < q.end {
					return true, nil // its next item may be first
				}
				continue
			}
			t, _ := q.entry()
			h := Head{s.index, q.head.Seq, t}
			switch {
			case p.before(h, first):
				first, second = h, first
			case p.before(h, second):
				second = h
			}
		}
		if first.Source < 0 {
			return false, nil
		}
		if err := p.write(ctx, first, second); err != nil {
			return false, err
		}
	}
}

// before reports whether a comes before b. If b has no source, a comes first.
func (p *Pipeline) before(a, b Head) bool {
	if b.Source < 0 {
		return true
	}
	c := p.Order(a, b)
	return c < 0 || c == 0 && a.Source < b.Source
}

// advance makes the next result of a source its head, if there is one, and passes over
// those that are empty.
func (p *Pipeline) advance(s *source) error {
	q := &s.queue
	for q.head == nil {
		slot := &q.slots[q.next%uint64(len(q.slots))]
		j := *slot
		if j == nil {
			return nil
		}
		if j.err != nil {
			return &Error{Op: "work", Source: s.index, Seq: j.Seq, Attempts: j.attempts, Err: j.err}
		}
		*slot, q.head, q.at = nil, j, 0
		q.next++
		p.retire(s)
	}
	return nil
}

// retire gives the head back to its source when all of it has been written.
func (p *Pipeline) retire(s *source) {
	q := &s.queue
	if q.at < len(q.head.result) {
		return
	}
	p.totals.written(q.head)
	s.free <- q.head
	q.head = nil
}

// write hands to the sink the items of the first source that come before those of the second,
// from the result that is being written.
func (p *Pipeline) write(ctx context.Context, first, second Head) error {
	s := p.sources[first.Source]
	q := &s.queue
	from := q.at
	if second.Source < 0 {
		q.at = len(q.head.result)
	}
	for q.at < len(q.head.result) {
		var n int
		first.Timestamp, n = q.entry()
		if q.at > from && !p.before(first, second) {
			break
		}
		q.at += n
	}
	if err := p.Sink(ctx, q.head.result[from:q.at]); err != nil {
		return &Error{Op: "sink", Err: err}
	}
	p.retire(s)
	return nil
}
