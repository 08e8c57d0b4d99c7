package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/sluice-hpc/sluice/channel"
)

const longOverlap = `Both ranks start, compute, and wait: for a message from rank 0 to rank 1 (send), or for a
declared allreduce. Of both, the later counts.

  alone  the transfer, both in Wait
  cpu    CPU time that the transfer uses, of both ranks together and without spinning: the
         least of twice alone, of what one uses where both ranks always have something to
         move (messages both ways), and where both sleep until it is over; what their naps
         cost where nothing is under way is taken off
  wait   the wait after a computation as long as alone, as a share of alone
  total  all of that, as a share of the computation alone and 1.15 cpu: copies, and TCP
         over loopback, are work of the same cores, which no overlap makes vanish
  osu    overlap as the OSU benchmarks define it: 100 (1 - (all - computation) / alone)`

const (
	patternOverlap = "overlap"
	kindSend       = "send"
	kindAllreduce  = "allreduce"
)

// overlapTimes are of one transfer, in ns.
type overlapTimes struct {
	alone, compute, all, wait float64
	cpu                       float64 // of both ranks
}

// cpuMargin is what a transfer may use of the CPU beyond what it uses alone: caches are
// shared with the computation.
const cpuMargin = 1.15

func (o *overlapTimes) waited() float64 { return 100 * o.wait / o.alone }
func (o *overlapTimes) total() float64  { return 100 * o.all / (o.compute + cpuMargin*o.cpu) }
func (o *overlapTimes) osu() float64    { return max(0, 100*(1-(o.all-o.compute)/o.alone)) }

// transfer is started by each of two ranks.
type transfer struct {
	start func() error
	test  func() (bool, error)
	wait  func() error
	close func() error
}

func (t *transfer) startAndWait() error {
	if err := t.start(); err != nil {
		return err
	}
	return t.wait()
}

// declareMeeting declares a note to and fro, after which two ranks are at the same place.
func declareMeeting(b *bed) (*token, error) {
	t := &token{messages: messages{declarations: declarations{node: b.Node, stream: streamNotes}}}
	note, other := channel.Contiguous(make([]byte, 1)), 1-b.Rank()
	t.out = t.declarations.send(note, other)
	t.in = t.declarations.receive(channel.Contiguous(make([]byte, 1)), other)
	return t, t.err
}

// overlap measures one.
type overlap struct {
	b *bed
	m *measurement
	transfer
	both transfer // two messages, one each way; of an allreduce it itself
	sync *token
}

func measureOverlap(ctx context.Context, b *bed, m *measurement) error {
	o := &overlap{b: b, m: m}
	check, err := o.declare(ctx)
	if err != nil {
		return err
	}
	if err := o.both.startAndWait(); err != nil {
		return err
	}
	if err := barrier(ctx, b, check()); err != nil {
		return err
	}
	rough, err := o.repeat(ctx, 5, 0)
	if err != nil {
		return err
	}
	n := int(min(max(float64(m.o.time)/rough.all, 10), 500))
	alone, err := o.repeat(ctx, n, 0)
	if err != nil {
		return err
	}
	r := overlapTimes{alone: alone.all}
	steps, err := agree(ctx, b, stepsFor(r.alone))
	if err != nil {
		return err
	}
	if r.compute, err = o.computeAlone(ctx, steps, n); err != nil {
		return err
	}
	if r.cpu, err = o.work(ctx, min(n, 100), r.alone); err != nil {
		return err
	}
	both, err := o.repeat(ctx, n, steps)
	if err != nil {
		return err
	}
	r.all, r.wait = both.all, both.wait
	m.figure("alone", r.alone)
	m.figure("cpu", r.cpu)
	m.figure("wait", r.waited())
	m.figure("total", r.total())
	m.figure("osu", r.osu())
	if err := barrier(ctx, b, check()); err != nil {
		return err
	}
	return errors.Join(o.close(), o.sync.close())
}

// declare declares the transfer, and says what checks its bytes.
func (o *overlap) declare(ctx context.Context) (check func() error, err error) {
	if o.sync, err = declareMeeting(o.b); err != nil {
		return nil, err
	}
	if o.m.kind == kindAllreduce {
		return o.declareAllreduce(ctx)
	}
	return o.declareMessages()
}

// declareMessages declares one each way; that from rank 0 to rank 1 is the transfer.
func (o *overlap) declareMessages() (check func() error, err error) {
	own, other := o.b.Rank(), 1-o.b.Rank()
	out, in, err := o.b.memory(&o.m.spec, o.m.bytes, o.m.bytes+guard)
	if err != nil {
		return nil, err
	}
	fillPattern(out, seedFor(own, o.m.bytes, o.m.op))
	fillGuard(in)
	d := declarations{node: o.b.Node}
	d.send(channel.Contiguous(out), other)
	d.receive(channel.Contiguous(in[:o.m.bytes]), other)
	if d.err != nil {
		return nil, d.err
	}
	all, err := o.b.Multiple(d.handles...)
	if err != nil {
		return nil, err
	}
	one := d.handles[own]
	o.transfer = transfer{one.Start, one.Test, one.Wait, func() error { return errors.Join(all.Close(), d.close()) }}
	o.both = transfer{start: all.Start, wait: all.Wait}
	return func() error {
		defer fillGuard(in) // until the next time
		return checkPattern(o.m.op, in, o.m.bytes, seedFor(other, o.m.bytes, o.m.op))
	}, nil
}

// declareAllreduce declares a sum.
func (o *overlap) declareAllreduce(ctx context.Context) (check func() error, err error) {
	in, out, err := o.b.memory(&o.m.spec, o.m.bytes, o.m.bytes)
	if err != nil {
		return nil, err
	}
	dst, src := doubles(out), doubles(in)
	for i := range src {
		src[i] = float64((o.b.Rank() + 1) * (i%1000 + 1))
	}
	world, err := o.b.World(ctx)
	if err != nil {
		return nil, err
	}
	c, err := world.Declare(channel.Allreduce(channel.Sum, dst, src))
	if err != nil {
		return nil, err
	}
	o.transfer = transfer{c.Start, c.Test, func() error { return c.Wait(context.Background()) }, c.Close}
	o.both = o.transfer
	return func() error {
		defer clear(dst) // until the next time
		return checkSum(out)
	}, nil
}

func checkSum(memory []byte) error {
	for i, got := range doubles(memory) {
		if want := float64(3 * (i%1000 + 1)); got != want {
			return &CorruptError{Op: kindAllreduce, Bytes: len(memory), Offset: i * doubleBytes, Got: memory[i*doubleBytes], Want: byte(math.Float64bits(want))}
		}
	}
	return nil
}

// transferOnce is one transfer with so many steps of computing, from when both ranks have met:
// how long all of it took here, and the wait at its end.
func (o *overlap) transferOnce(steps int) (all, wait int64, err error) {
	if err := o.sync.run(1, nil); err != nil {
		return 0, 0, err
	}
	began := nanos()
	if err := o.start(); err != nil {
		return 0, 0, err
	}
	compute(steps)
	computed := nanos()
	err = o.wait()
	ended := nanos()
	return ended - began, ended - computed, err
}

// repeat has n transfers, and returns the medians of the later rank's times.
func (o *overlap) repeat(ctx context.Context, n, steps int) (r overlapTimes, err error) {
	type times struct{ All, Wait []int64 }
	var own times
	for range n {
		all, wait, err := o.transferOnce(steps)
		if err != nil {
			return r, err
		}
		own.All, own.Wait = append(own.All, all), append(own.Wait, wait)
	}
	both, err := share(ctx, o.b, own, nil)
	if err != nil {
		return r, err
	}
	r.all = medianOfLater(both[0].All, both[1].All)
	r.wait = medianOfLater(both[0].Wait, both[1].Wait)
	return r, nil
}

// medianOfLater is the median of the greater of both at a time.
func medianOfLater(a, b []int64) float64 {
	var later []float64
	for i := range min(len(a), len(b)) {
		later = append(later, float64(max(a[i], b[i])))
	}
	return median(later)
}

// stepsFor is how many steps of computing take so many ns.
func stepsFor(ns float64) int {
	const steps = 100_000
	least := math.Inf(1)
	for range 20 {
		t := nanos()
		compute(steps)
		least = min(least, float64(nanos()-t))
	}
	return int(ns/least*steps) + 1
}

// computeAlone is the median time of so many steps, of the later rank.
func (o *overlap) computeAlone(ctx context.Context, steps, n int) (float64, error) {
	var own []int64
	for range n {
		t := nanos()
		compute(steps)
		own = append(own, nanos()-t)
	}
	both, err := share(ctx, o.b, own, nil)
	if err != nil {
		return 0, err
	}
	return medianOfLater(both[0], both[1]), nil
}

// work is the CPU time that a transfer of the two ranks uses, in ns: the least of what it
// takes, on two CPUs, and of two means of n, each of which is of work and some waiting.
func (o *overlap) work(ctx context.Context, n int, alone float64) (float64, error) {
	moving, err := o.whileMoving(ctx, n)
	if err != nil {
		return 0, err
	}
	asleep, err := o.whileAsleep(ctx, n, time.Duration(alone))
	return min(2*alone, moving, asleep), err
}

// whileMoving is of ranks that have something to move both ways, one after the other.
func (o *overlap) whileMoving(ctx context.Context, n int) (float64, error) {
	began := ownCPU()
	for range n {
		if err := o.both.startAndWait(); err != nil {
			return 0, err
		}
	}
	used, err := share(ctx, o.b, ownCPU()-began, nil)
	if err != nil {
		return 0, err
	}
	if o.m.kind == kindSend {
		n *= 2
	}
	return float64(used[0]+used[1]) / float64(n), nil
}

// whileAsleep is of ranks that sleep, and look once in a while: what moves the bytes, in Test,
// in the engine, in the kernel, or in an adapter, which uses nothing; and naps, whose cost as
// many where nothing is under way tell.
func (o *overlap) whileAsleep(ctx context.Context, n int, alone time.Duration) (float64, error) {
	nap := max(alone, 100*time.Microsecond)
	naps, began := 0, ownCPU()
	for range n {
		if err := o.start(); err != nil {
			return 0, err
		}
		for done := false; !done; naps++ {
			time.Sleep(nap)
			var err error
			if done, err = o.test(); err != nil {
				return 0, err
			}
		}
	}
	used := ownCPU() - began
	if err := barrier(ctx, o.b, nil); err != nil {
		return 0, err
	}
	began = ownCPU()
	for range naps {
		time.Sleep(nap)
		if _, err := o.test(); err != nil {
			return 0, err
		}
	}
	both, err := share(ctx, o.b, max(used-(ownCPU()-began), 0), nil)
	if err != nil {
		return 0, err
	}
	return float64(both[0]+both[1]) / float64(n), nil
}
