package impi

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/verbs"
)

// A peer that is lost may be in the middle of our memory, and a device in the middle of
// what it carries out for it. Requests with such memory are complete, with an error,
// only when nobody can get at it any more: memory is not given back before. That is
// waited for without the lock, so that other links go on: a peer that has been stopped
// takes as long as [verbs.Config].PeerTimeout.

// fence is the end of a queue pair.
type fence struct {
	c    *rcCarrier
	qp   *verbs.QP
	list []fenced
}

// fenced is a request with memory that the peer knows of.
type fenced struct {
	r *request
	t *rcTransfer
}

// close ends the carrier. The requests that wait for the fence are marked.
func (c *rcCarrier) close() {
	if c.qp == nil {
		return
	}
	e := c.l.e
	f := &fence{c: c, qp: c.qp}
	for _, r := range e.table {
		if r.transfer == nil || r.fencing || r.pair == nil || r.pair.link != c.l {
			continue
		}
		if t := r.transfer; t != throughStage && (r.state == queued || r.state == moving) {
			if r.list != nil {
				r.list.remove(r)
			}
			r.fencing = true
			f.list = append(f.list, fenced{r, t})
		}
		r.transfer = nil
	}
	delete(c.d.links, c.num)
	if c.d.last == c {
		c.d.last = nil
	}
	c.closeLane()
	if c.stage.own != nil {
		c.d.kept = append(c.d.kept, c.stage.own)
	}
	c.qp, c.write, c.stage = nil, nil, stage{}
	c.tcp.close()
	e.fences++
	e.wg.Go(f.run)
}

// run waits until neither peer nor device can get at memory of ours, and then completes
// the requests.
func (f *fence) run() {
	e := f.c.l.e
	left := f.qp.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState)
	inside := make([]error, len(f.list))
	for i, x := range f.list {
		for _, mr := range x.t.mrs {
			inside[i] = errors.Join(inside[i], mr.Close())
		}
	}
	if err := errors.Join(left, f.qp.Close(), f.c.sends.Close()); err != nil {
		e.log.Warn("impi: queue pair", "peer", f.c.l.host, "error", err)
	}
	e.lock.Lock()
	defer e.lock.Unlock()
	for i, x := range f.list {
		err := f.c.l.err
		if len(x.t.mrs) < len(x.t.local) && left != nil { // regions that stay
			inside[i] = errors.Join(inside[i], left)
			e.spoil(x.r)
		}
		if inside[i] != nil {
			err = fmt.Errorf("%w; %w: the peer may yet use the memory, which must be left alone for ever: %w", err, ErrBusy, inside[i])
		}
		x.r.fencing = false
		e.finish(x.r, err)
	}
	e.fences--
	e.ring()
}

// spoil has the memory of Alloc that a request lies in never be used again.
func (e *engine) spoil(r *request) {
	for _, m := range slices.Clone(e.memories) {
		of := span.Set{span.Of(m.buf)}
		if slices.ContainsFunc(r.vec, func(b []byte) bool { return of.Meets(span.Of(b)) }) {
			e.stale.Add(m.span())
		}
	}
}
