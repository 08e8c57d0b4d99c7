package impi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/memory"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Close ends the job at this host. Messages that its processes have sent are delivered. Active
// sends, freed ones included, are carried out: Close waits until they are received, for as long as
// ctx lasts or, if it has no deadline, for at most [Config.PeerTimeout], but not for a peer that is
// gone or itself closes its job. Its error names the first send that was not received; sends that
// failed after Free count, too. Other active requests, probes and collectives in progress fail with
// [ErrClosed] here; messages for which there is no receive fail with [ErrPeerLeft] at their senders.
// Close then waits for the other hosts to acknowledge, for at most PeerTimeout, or 2 s if it has waited
// in vain.
//
// Foreign processes end together: with them Close begins with a barrier and waits for all of them as
// long as ctx lasts, or, if the barrier has failed, for at most PeerTimeout. A second call only waits
// for the first.
func (j *Job) Close(ctx context.Context) error {
	e := j.e
	e.lock.Lock()
	if j.ending {
		e.lock.Unlock()
		select {
		case <-j.closed:
			return nil
		case <-ctx.Done():
			return jobError("close", lapsed(ctx.Err()))
		}
	}
	j.ending = true
	defer close(j.closed)
	var errs []error
	together := true
	if j.protocol {
		e.lock.Unlock()
		err := j.lastBarrier(ctx)
		e.lock.Lock()
		together = err == nil
		errs = append(errs, err)
	}
	e.closing = true
	e.turnAway()
	e.ring() // probes
	within, cancel := ctx, context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok {
		within, cancel = wait.Patience(ctx, j.config.PeerTimeout)
	}
	lapse := await(within, e, &carried{e: e})
	cancel()
	e.endReceives()
	limit := j.config.PeerTimeout
	if lapse != nil { // the hosts are still there, and know why
		ctx, limit = context.WithoutCancel(ctx), min(limit, goodbyeTime)
	}
	patience, cancel := wait.Patience(ctx, limit)
	defer cancel()
	await(patience, e, said{e: e}) // in vain: senders that were not told take the end of the link for ErrPeerLeft
	for _, l := range e.links {
		if l != nil {
			l.bye()
		}
	}
	ours, theirs := &departure{e: e}, &departure{e: e, foreign: true}
	if err := await(patience, e, ours); err != nil {
		errs = append(errs, jobError("close", fmt.Errorf("IMPI host %d has not acknowledged the end of the job: %w", ours.missing(), err)))
	}
	if together {
		patience = ctx
	}
	// Without the barrier a process may be lost, and the others would wait for it.
	if err := await(patience, e, theirs); err != nil {
		errs = append(errs, jobError("close", fmt.Errorf("foreign IMPI host %d has not ended its part of the job: %w", theirs.missing(), err)))
	}
	await(context.WithoutCancel(ctx), e, unpackedAll{e: e})
	e.broken = ErrClosed
	for _, l := range e.links {
		if l != nil {
			l.lost(ErrClosed)
		}
	}
	for _, r := range e.table {
		if (r.state == queued || r.state == moving) && !r.fencing {
			if r.list != nil {
				r.list.remove(r)
			}
			e.finish(r, ErrClosed)
		}
	}
	errs = append(errs, e.lost.err(lapse))
	e.ring()
	e.lock.Unlock()
	e.stop()
	j.controls.end()
	e.wg.Wait()
	stuck := e.partAll()
	if stuck != nil {
		errs = append(errs, jobError("close", stuck))
	}
	used := map[*Memory]bool{} // by others, that the caller should have closed
	for m := range e.memories.All() {
		if m.others {
			continue
		}
		m.closed.Store(true)
		if err := m.shared.End(); err != nil {
			used[m] = true
			errs = append(errs, jobError("close", fmt.Errorf("%w: memory of %d bytes is not freed: %w", ErrBusy, len(m.buf), err)))
		}
	}
	open := j.closeDevices()
	if open != nil {
		errs = append(errs, jobError("close", open))
	}
	if stuck == nil {
		memory.Leave(user{e})
	}
	for m := range e.memories.All() {
		if m.free == nil || used[m] || open != nil { // a device may access it
			continue
		}
		if err := m.free(); err != nil {
			errs = append(errs, jobError("close", err))
		}
	}
	if err := j.roster.finished(); err != nil {
		errs = append(errs, jobError("close", err))
	}
	return errors.Join(errs...)
}

// goodbyeTime is how long the other hosts have to acknowledge when Close is late already.
const goodbyeTime = 2 * time.Second

// turnAway drops the messages that no receive can match any more, and tells their senders.
func (e *engine) turnAway() {
	for _, p := range e.processes {
		for _, m := range p.matchers {
			m.dropMessages()
		}
	}
	e.pushAll()
}

// endReceives ends the receives that no message has matched, before the other hosts are waited for.
func (e *engine) endReceives() {
	for _, r := range e.table {
		if r.state == queued && r.kind == receiving {
			r.list.remove(r)
			e.finish(r, ErrClosed)
		}
	}
}

// carried is over when no request of the user may be carried out any more: all sends have been
// received, or cannot be, and all messages that receives have matched are here. No request is started
// meanwhile, but a receive may match.
type carried struct {
	others
	e  *engine
	at int // in the table, of the one that was due when it was asked last
}

func (c *carried) over() bool {
	table := c.e.table
	if c.at < len(table) && table[c.at].due() {
		return false
	}
	c.at = slices.IndexFunc(table, (*request).due)
	if c.at >= 0 {
		return false
	}
	c.at = 0
	return true
}

// due: another host may still receive this send, or send the rest of what this receive has matched.
func (r *request) due() bool {
	if r.state != queued && r.state != moving || r.pair == nil || !r.ofUser() {
		return false
	}
	l := r.pair.link
	if l.err != nil || l.left {
		return false
	}
	if l.foreign || r.kind == receiving { // a foreign host has called MPI_Finalize
		return r.state == moving && (r.acked || r.kind == receiving)
	}
	return r.kind == sending
}

// ofUser: the request was started by the user, not by a collective or the engine.
func (r *request) ofUser() bool { return r.comm != nil && r.match == r.comm.match }

// losses are the failed sends that Close reports.
type losses struct {
	n     int
	first error
}

// note counts a send that has failed if nothing else reports it, or if Close itself ends it.
func (l *losses) note(r *request, err error) {
	if r.kind != sending || !r.ofUser() || !r.freed && (r.detached || err != ErrClosed || !r.e.closing) {
		return
	}
	if l.n++; l.n == 1 {
		l.first = fmt.Errorf("%w (a message of %d bytes)", r.fault(err), r.length)
	}
}

// err returns the error of Close, which waited until lapse.
func (l *losses) err(lapse error) error {
	switch {
	case l.n == 0:
		return nil
	case lapse != nil:
		return jobError("close", fmt.Errorf("%w: %d sends have not been received; the first: %w", lapse, l.n, l.first))
	}
	return jobError("close", fmt.Errorf("%d sends have not been received; the first: %w", l.n, l.first))
}

// lastBarrier waits until all processes of the job have reached its end; each process of this host
// takes part. Earlier failures are not errors of it.
func (j *Job) lastBarrier(ctx context.Context) error {
	errs := make([]error, len(j.worlds))
	var wg sync.WaitGroup
	for i, w := range j.worlds {
		w.e.lock.Lock()
		failed := w.calls.fault != nil
		w.e.lock.Unlock()
		if !failed {
			wg.Go(func() { errs[i] = w.Run(ctx, channel.Barrier()) })
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return jobError("close", err)
	}
	return nil
}

// said is over when the peers have been notified of everything that was received, and the current
// write is complete.
type said struct {
	others
	e *engine
}

func (s said) over() bool {
	for _, l := range s.e.links {
		if l == nil || l.err != nil || l.left {
			continue
		}
		if c, ok := l.carrier.(*rcCarrier); ok && c.write != nil {
			return false
		}
		for _, p := range l.pairs {
			if p.at < len(p.answers) {
				return false
			}
		}
	}
	return true
}

// departure is over when all hosts have announced that they leave and everything on its way to them
// has been sent, or when they are lost.
type departure struct {
	others
	e       *engine
	foreign bool
}

func (d *departure) over() bool { return d.missing() < 0 }

// missing returns a host for which departure is not over; -1 if there is none.
func (d *departure) missing() int {
	for i, l := range d.e.links {
		if l != nil && l.foreign == d.foreign && l.err == nil && (!l.left || l.unsent()) {
			return i
		}
	}
	return -1
}
