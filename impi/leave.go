package impi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/channel"
)

// Close ends the job at this host. What its processes have sent is delivered; what is
// still active fails with [ErrClosed], here, and [ErrPeerLeft] at the others. It waits
// until the others have taken note, at most for [Config.PeerTimeout]. Foreign
// processes end together: with them Close begins with a barrier, and waits for all of
// them as long as ctx lasts, or, if the barrier has failed, as for others. Another call
// only waits for the first.
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
	await(patience, e, said{e}) // if not, what is lost is known to its sender
	for _, l := range e.links {
		if l != nil {
			l.bye()
		}
	}
	ours, theirs := &departure{e: e}, &departure{e: e, foreign: true}
	if err := await(patience, e, ours); err != nil {
		errs = append(errs, jobError("close", fmt.Errorf("host %d has not answered: %w", ours.missing(), err)))
	}
	if together {
		patience = ctx
	}
	// Without the barrier somebody may be lost, and the others wait for him.
	if err := await(patience, e, theirs); err != nil {
		errs = append(errs, jobError("close", fmt.Errorf("host %d has not finished: %w", theirs.missing(), err)))
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

// lastBarrier waits until all processes of the job have come to its end, each of ours
// taking part. What has failed before is no error of it.
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

// said is over when the peers have been told of all that has been received, and what
// is being written has been.
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

// departure is over when all hosts have said that they leave, and have been sent what
// was on its way to them, or are lost.
type departure struct {
	e       *engine
	foreign bool
}

func (d *departure) over() bool { return d.missing() < 0 }

// missing is a host that has not.
func (d *departure) missing() int {
	for i, l := range d.e.links {
		if l != nil && l.foreign == d.foreign && l.err == nil && (!l.left || l.unsent()) {
			return i
		}
	}
	return -1
}
