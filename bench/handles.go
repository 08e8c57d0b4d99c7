package main

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/channel"
)

const longHandles = `declare is the time of declaring a handle, first half a round trip of its first use, in
which it is told to the peer, or both connect, and close that of closing it: each the mean
of all. The figure itself is half a round trip of one of them, again and again.`

func measureHandles(ctx context.Context, b *bed, m *measurement) error {
	tokens := make([]token, m.many)
	began := nanos()
	for i := range tokens {
		var err error
		if tokens[i], err = declareToken(b, m); err != nil {
			return err
		}
	}
	each := func(since int64) float64 { return float64(nanos()-since) / float64(2*m.many) } // there and back
	m.figure("declare", each(began))
	if err := barrier(ctx, b, nil); err != nil {
		return err
	}
	began = nanos()
	for i := range tokens {
		if err := tokens[i].run(1, nil); err != nil {
			return err
		}
	}
	m.figure("first", each(began))
	if err := m.takeChecked(ctx, b, &tokens[m.many/2]); err != nil {
		return err
	}
	began = nanos()
	for i := range tokens {
		if err := tokens[i].close(); err != nil {
			return err
		}
	}
	m.figure("close", each(began))
	return nil
}

const longWaiters = `Each goroutine waits for a message of its own, which does not come. threads are those of
the process beyond those that it has when none waits; the figure itself is its CPU time, as a
share of one CPU.`

func measureWaiters(ctx context.Context, b *bed, m *measurement) error {
	if err := meet(ctx, b); err != nil {
		return err
	}
	out, in, err := b.memory(&m.spec, m.many*lineBytes, m.many*lineBytes)
	if err != nil {
		return err
	}
	d := declarations{node: b.Node}
	for i := range m.many {
		if b.Rank() == 0 {
			d.receive(channel.Contiguous(in[i*lineBytes:][:doubleBytes]), 1)
		} else {
			d.send(channel.Contiguous(out[i*lineBytes:][:doubleBytes]), 0)
		}
	}
	before, err := processFigures()
	if err := errors.Join(d.err, err); err != nil {
		return err
	}
	errs := make([]error, m.many)
	var waiting sync.WaitGroup
	if b.Rank() == 0 {
		for i, h := range d.handles {
			waiting.Go(func() { errs[i] = errors.Join(h.Start(), h.Wait()) })
		}
	}
	time.Sleep(m.o.time / 4) // they get there
	cpu := idleShare(m.o.time)
	after, err := processFigures()
	if err := barrier(ctx, b, err); err != nil {
		return err
	}
	if b.Rank() == 1 {
		for i, h := range d.handles {
			errs[i] = errors.Join(h.Start(), h.Wait())
		}
	}
	waiting.Wait()
	m.add(cpu)
	m.figure("threads", max(after.threads-before.threads, 0))
	return errors.Join(errors.Join(errs...), d.close())
}

// meet has two ranks connected, and everything done that the first messages make them do.
func meet(ctx context.Context, b *bed) error {
	t, err := declareMeeting(b)
	if err != nil {
		return err
	}
	if err := t.run(100, nil); err != nil {
		return err
	}
	runtime.GC() // none is due when it counts
	return barrier(ctx, b, t.close())
}

// idleShare sleeps, and returns the CPU time that the process has used meanwhile, as a share
// of one CPU, in percent.
func idleShare(d time.Duration) float64 {
	used, began := ownCPU(), time.Now()
	time.Sleep(d)
	return 100 * (ownCPU() - used).Seconds() / time.Since(began).Seconds()
}

func measureIdle(ctx context.Context, b *bed, m *measurement) error {
	if err := meet(ctx, b); err != nil {
		return err
	}
	all, err := share(ctx, b, idleShare(m.o.time), nil)
	if err != nil {
		return err
	}
	m.add(max(all[0], all[1]))
	return nil
}
