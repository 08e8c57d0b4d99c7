package impi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/channel"
)

// Close ends the job at this host. Messages that its processes have sent are delivered; requests
// that are still active fail with [ErrClosed] here and with [ErrPeerLeft] at their peers. Close
// waits for the other hosts to acknowledge, for at most [Config.PeerTimeout]. Foreign processes end
// together: with them Close begins with a barrier and waits for all of them as long as ctx lasts,
// or, if the barrier has failed, for at most PeerTimeout. A second call only waits for the first.
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
	deadline := time.Now().Add(j.config.PeerTimeout)
	patience, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	await(patience, e, said{e}) // if it times out, the senders of what is lost know
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
	e.ring()
	e.lock.Unlock()
	e.stop()
	j.controls.end()
	e.wg.Wait()
	for _, m := range e.memories {
		m.closed.Store(true)
	}
	if err := j.closeDevices(); err != nil {
		errs = append(errs, jobError("close", err))
	}
	if err := j.roster.finished(); err != nil {
		errs = append(errs, jobError("close", err))
	}
	return errors.Join(errs...)
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
type said struct{ e *engine }

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
