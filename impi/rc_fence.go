package impi

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/verbs"
)

// A lost peer may be in the middle of accessing our memory, and a device in the middle of an
// operation for it. Requests with such memory complete, with an error, only when neither can access
// the memory any more, so that memory is not returned too early. The wait holds no lock, so other
// links continue: a peer that has been stopped takes as long as [verbs.Config].PeerTimeout.

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

// run waits until neither the peer nor the device can access our memory, and then completes the
// requests.
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
		e.log.Warn("impi: cannot close a queue pair", "peer", f.c.l.host, "error", err)
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
			err = fmt.Errorf("%w; %w: the peer may still access the memory, which must never be used again: %w", err, ErrBusy, inside[i])
		}
		x.r.fencing = false
		e.finish(x.r, err)
	}
	e.fences--
	e.ring()
}

// spoil makes sure that the Alloc memory of a request is never used again.
func (e *engine) spoil(r *request) {
	for m := range e.memories.All() {
		of := span.Set{span.Of(m.buf)}
		if slices.ContainsFunc(r.vec, func(b []byte) bool { return of.Meets(span.Of(b)) }) {
			e.memories.Spoil(m.buf)
		}
	}
}
