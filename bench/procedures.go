package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/qmp"
)

// Units of the further figures of procedures.
var (
	overlapFigures = map[string]string{"alone": unitLatency, "cpu": unitLatency, "wait": unitShare, "total": unitShare, "osu": unitShare}
	handleFigures  = map[string]string{"declare": unitLatency, "first": unitLatency, "close": unitLatency}
	cqFigures      = map[string]string{"poll": unitLatency, "growth": unitCount, "poll-growth": unitCount}
	startFigures   = map[string]string{"descriptors": unitCount, "threads": unitCount, "mappings": unitCount, "private": unitKiB}
)

// procedures are the patterns of situations other than ping-pong and streams: most are not a loop
// of equal iterations.
func procedures() []*pattern {
	alone := ranks{least: 2, most: 2, unbound: true}
	return []*pattern{
		{name: patternOverlap, layer: layerChannel, top: true, unit: unitShare, figures: overlapFigures, ranks: twoRanks, measure: measureOverlap, check: someBytes,
			vary: []dimension{byKind, byMemoryToo, bySize}, options: "provider kinds=send,allreduce memory=alloc,heap sizes=256k,1M,4M time=200ms",
			short: "Measure how much of a transfer goes on while both sides compute", long: longOverlap},
		{name: "handles", layer: layerChannel, top: true, unit: unitLatency, figures: handleFigures, ranks: twoRanks, measure: measureHandles, messages: pingPong,
			vary: []dimension{byMemory, byCount, bySize}, options: "provider memory=alloc sizes=8 count=1,100,10000 batch=0",
			short: "Measure ping-pong on one handle while many are declared, and the cost of declaring", long: longHandles},
		{name: "waiters", layer: layerChannel, top: true, unit: unitShare, figures: map[string]string{"threads": unitCount}, ranks: alone, measure: measureWaiters,
			vary: []dimension{byMemory, byCount, noBytes}, options: "provider memory=alloc count=1000 time=5s",
			short: "Measure the cost of waiting goroutines", long: longWaiters},
		{name: "idle", layer: layerChannel, top: true, unit: unitShare, ranks: twoRanks, measure: measureIdle, vary: []dimension{noBytes}, options: "provider time=3s",
			what: "of the rank that uses more", short: "Measure the CPU time of a connected, idle rank, as a share of one CPU"},
		{name: "pages", layer: layerChannel, top: true, unit: unitShare, ranks: twoRanks, measure: measurePages, check: someBytes, vary: []dimension{byKind, bySize},
			options: "provider kinds=" + pagesStream + "," + pagesStrided + " sizes=64M time=1s", what: "of that over memory of the heap",
			short: "Measure the time of a computation over memory of Alloc, as a share of that over memory of the heap", long: longPages},
		{name: "cq", layer: layerVerbs, top: true, unit: unitLatency, figures: cqFigures, ranks: ranks{least: 1, most: 1, unbound: true}, open: openCQ, measure: measureCQ,
			check: someBytes, vary: []dimension{byCount, bySize}, options: "provider sizes=8 count=1,100,1000",
			short: "Measure a completion queue of many queue pairs, within one process", long: longCQ},
		{name: "oneshot", layer: layerChannel, top: true, unit: unitLatency, ranks: twoRanks, open: openQMP, declare: declareOneshot, messages: pingPong,
			vary: []dimension{byKind, byMemoryToo, bySize}, options: "provider kinds=" + oneshotKinds + " memory=alloc,heap sizes=8,4k,256k batch=-1",
			what: "half a round trip", short: "Measure messages that are declared for one use, or get other memory each time", long: longOneshot},
		{name: "ahead", layer: layerChannel, top: true, unit: unitLatency, figures: map[string]string{"start": unitLatency, "handles": unitCount}, ranks: twoRanks, measure: measureAhead,
			alone: time.Minute, check: someBytes, vary: []dimension{byMemory, byCount, bySize}, options: "provider memory=alloc sizes=8,16k count=100000",
			short: "Start many sends before the first receive", long: longAhead},
		{name: "start", layer: layerChannel, top: true, unit: unitLatency, figures: startFigures, ranks: ranks{least: 1, unbound: true}, early: meetAll, measure: measureStart,
			alone: time.Minute, vary: []dimension{noBytes}, options: "provider ranks=8",
			short: "Measure how long a job takes to start, and the resources of each rank then", long: longStart},
		{name: "loss", layer: layerChannel, top: true, unit: unitLatency, figures: map[string]string{"rate": unitBandwidth}, ranks: alone, measure: measureLoss,
			alone: time.Minute, hosts: true, check: someBytes, vary: []dimension{byMemory, byLoss, bySize}, options: "provider=roce memory=alloc loss=0,0.1,1 sizes=64k window=8 time=3s",
			short: "Measure messages over a network that loses packets", long: longLoss},
		{name: "incast", layer: layerChannel, top: true, unit: unitBandwidth, figures: map[string]string{"sender": unitBandwidth, "fairness": unitCount}, ranks: ranks{least: 2, unbound: true},
			measure: measureIncast, alone: time.Minute, hosts: true, check: someBytes, vary: []dimension{byMemory, bySize}, options: "provider=roce ranks=9 memory=alloc sizes=64k window=8 time=3s",
			short: "Measure the rate of each of many senders to one receiver", long: longIncast},
	}
}

// maxCount bounds the counts.
const maxCount = 1 << 20

// someBytes checks that messages are not empty.
func someBytes(o *options) {
	if slices.Contains(o.bytes, 0) {
		must(usagef("--sizes 0: want messages of at least 1 byte"))
	}
}

// byKind varies the kind of operation.
func byKind(o *options, list []spec) []spec {
	return vary(list, o.ops, func(s *spec, kind string) { s.kind, s.op = kind, kind })
}

// byMemoryToo is byMemory after byKind.
func byMemoryToo(o *options, list []spec) []spec {
	return vary(list, o.memories, func(s *spec, m string) { s.memory, s.op = m, s.op+" "+m })
}

func byCount(o *options, list []spec) []spec {
	return vary(list, o.counts, func(s *spec, n int) { s.many = n })
}

func byLoss(o *options, list []spec) []spec {
	return vary(list, o.losses, func(s *spec, percent string) { s.loss, _ = strconv.ParseFloat(percent, 64) }) // it is one of lossWords
}

// noBytes is for patterns without messages whose size counts.
func noBytes(_ *options, list []spec) []spec { return list }

const longStart = `The main figure is the time from the start of the first process until the last rank has
completed a barrier of all ranks. The others are for each rank: descriptors, threads,
mappings, and private memory.`

// When this process was started, as precisely as is known, and when the ranks had met.
var (
	first  = monotonic() - int64(ownCPU())
	usable int64
)

func meetAll(ctx context.Context, s *session) {
	must(must1(s.World(ctx)).Run(ctx, channel.Barrier()))
	usable = monotonic()
}

func measureStart(ctx context.Context, b *bed, m *measurement) {
	type record struct {
		First, Usable int64
		Has           map[string]float64
	}
	has, err := processFigures()
	all := share(ctx, b, record{first, usable, has}, err)
	begin, end := all[0].First, all[0].Usable
	for _, r := range all {
		begin, end = min(begin, r.First), max(end, r.Usable)
	}
	m.addAll(float64(end - begin))
	for _, name := range []string{"descriptors", "threads", "mappings", "private"} {
		var of []float64
		for _, r := range all {
			of = append(of, r.Has[name])
		}
		m.figure(name, of...)
	}
}

const longAhead = `Rank 0 starts the sends, each on an idle handle; if there is none, it declares another. Only
then does rank 1 receive, with one handle. start is the time of a start, handles the number of
handles; the main figure is the time of receiving a message.`

func measureAhead(ctx context.Context, b *bed, m *measurement) {
	out, in := b.memory(&m.spec, m.bytes, m.bytes+guard)
	d := declarations{node: b.Node}
	seed := seedFor(0, m.bytes, m.op)
	fillPattern(out, seed)
	fillGuard(in)
	began := nanos()
	barrier(ctx, b, try(func() {
		if b.Rank() == 0 {
			d.startMany(m.many, out)
			m.figure("start", float64(nanos()-began)/float64(m.many))
		}
	}))
	began = nanos()
	err := try(func() {
		if b.Rank() == 0 { // it ends with the first error: there may be as many others as sends
			for _, h := range d.handles {
				must(h.WaitContext(ctx))
			}
			return
		}
		h := d.receive(channel.Contiguous(in[:m.bytes]), 0)
		each("receive", m.many, func() {
			must(h.Start())
			must(h.WaitContext(ctx))
		})
		must(checkPattern(m.op, in, m.bytes, seed))
	})
	all := share(ctx, b, nanos()-began, err)
	m.addAll(float64(all[1]) / float64(m.many))
	m.figure("handles", float64(len(d.handles)))
	d.close()
}

// startMany starts so many sends of a message, some of which are complete at once.
func (d *declarations) startMany(count int, message []byte) {
	var idle []*channel.Handle
	each("send", count, func() {
		if len(idle) == 0 {
			idle = append(idle, d.send(channel.Contiguous(message), 1))
		}
		h := idle[len(idle)-1]
		must(h.Start())
		if !must1(h.Test()) {
			idle = idle[:len(idle)-1]
		}
	})
}

// each calls do so many times; an error says which call it was.
func each(what string, count int, do func()) {
	i := 0
	defer during(func() string { return fmt.Sprintf("%s %d of %d", what, i+1, count) })
	for ; i < count; i++ {
		do()
	}
}

const longHandles = `declare is the time of declaring a handle; first is half a round trip of its first use, in
which the peer learns of it, or both connect; close is the time of closing it. Each is the
mean over all handles. The main figure is half a round trip on one of them, repeated.`

func measureHandles(ctx context.Context, b *bed, m *measurement) {
	tokens := make([]*token, m.many)
	timed := func(name string, do func(i int)) {
		began := nanos()
		for i := range tokens {
			do(i)
		}
		m.figure(name, float64(nanos()-began)/float64(2*m.many)) // there and back
	}
	timed("declare", func(i int) { tokens[i] = declareToken(b, m) })
	barrier(ctx, b, nil)
	timed("first", func(i int) { tokens[i].run(1, nil) })
	m.takeChecked(ctx, b, tokens[m.many/2])
	timed("close", func(i int) { tokens[i].close() })
}

const longWaiters = `Each goroutine waits for a message of its own, which does not come. threads is the number of
threads that the process has in addition to those without waiters. The main figure is its CPU
time, as a share of one CPU.`

func measureWaiters(ctx context.Context, b *bed, m *measurement) {
	meet(ctx, b)
	out, in := b.memory(&m.spec, m.many*lineBytes, m.many*lineBytes)
	d := declarations{node: b.Node}
	for i := range m.many {
		if b.Rank() == 0 {
			d.receive(channel.Contiguous(in[i*lineBytes:][:doubleBytes]), 1)
		} else {
			d.send(channel.Contiguous(out[i*lineBytes:][:doubleBytes]), 0)
		}
	}
	before := must1(processFigures())
	errs := make([]error, m.many)
	move := func(i int) { errs[i] = errors.Join(d.handles[i].Start(), d.handles[i].Wait()) }
	var waiting sync.WaitGroup
	for i := range d.handles {
		if b.Rank() == 0 {
			waiting.Go(func() { move(i) })
		}
	}
	time.Sleep(m.o.time / 4) // until all wait
	cpu := idleShare(m.o.time)
	after, err := processFigures()
	barrier(ctx, b, err)
	for i := range d.handles {
		if b.Rank() == 1 {
			move(i)
		}
	}
	waiting.Wait()
	m.addAll(cpu)
	m.figure("threads", max(after["threads"]-before["threads"], 0))
	must(errors.Join(errs...))
	d.close()
}

// meet connects two ranks, and does everything that happens only at the first messages.
func meet(ctx context.Context, b *bed) {
	t := declareMeeting(b)
	t.run(100, nil)
	runtime.GC() // so that none is due during the measurement
	barrier(ctx, b, try(t.close))
}

// idleShare sleeps, and returns the CPU time that the process has used meanwhile, as a share
// of one CPU, in percent.
func idleShare(d time.Duration) float64 {
	used, began := ownCPU(), time.Now()
	time.Sleep(d)
	return 100 * (ownCPU() - used).Seconds() / time.Since(began).Seconds()
}

func measureIdle(ctx context.Context, b *bed, m *measurement) {
	meet(ctx, b)
	m.addAll(slices.Max(share(ctx, b, idleShare(m.o.time), nil)))
}

const longPages = `Both ranks add up the doubles of their memory at once: one after the other (stream), or one of each
page, then the next of each (strided). The least of several passes over memory of Alloc counts, as a share
of that over memory of the heap, in the rank where it is larger.`

const (
	pagesStream  = "stream"
	pagesStrided = "strided"
)

func measurePages(ctx context.Context, b *bed, m *measurement) {
	meet(ctx, b)
	alloc := must1(b.Node.Alloc(m.bytes))
	memory := [2][]float64{channel.View[float64](alloc), make([]float64, m.bytes/doubleBytes)}
	for _, x := range memory {
		for i := range x {
			x[i] = 1 // an addition of a subnormal number takes longer
		}
	}
	least := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	sum := 0.0
	for end := time.Now().Add(m.o.time); time.Now().Before(end) || least[1] == math.MaxInt64; {
		for i, x := range memory {
			began := time.Now()
			sum += pass(x, m.kind)
			least[i] = min(least[i], time.Since(began))
		}
	}
	runtime.KeepAlive(sum)
	m.addAll(slices.Max(share(ctx, b, 100*least[0].Seconds()/least[1].Seconds(), alloc.Close())))
}

// pass adds up x.
func pass(x []float64, kind string) (sum float64) {
	stride := 1
	if kind == pagesStrided {
		stride = os.Getpagesize()/doubleBytes + lineBytes/doubleBytes // so that the pages do not share cache sets
	}
	for first := range stride {
		for i := first; i < len(x); i += stride {
			sum += x[i]
		}
	}
	return sum
}

const longOneshot = `Measures half a round trip. Each message is one call of Node.Send or Recv (send), or of Node.SendLayout
or RecvLayout, in blocks of 64 bytes with gaps of the same length (layout); or it is declared, started, waited for and closed
(declare); or it is declared once and gets other memory before each start, with Handle.Rebase (rebase) or through package qmp
(address). Two buffers alternate.`

const (
	oneshotSend    = "send"
	oneshotLayout  = "layout"
	oneshotDeclare = "declare"
	oneshotRebase  = "rebase"
	oneshotAddress = "address"

	oneshotKinds = oneshotSend + "," + oneshotLayout + "," + oneshotDeclare + "," + oneshotRebase + "," + oneshotAddress
)

// oneshot is the series: a ping-pong, each message in the next of two buffers.
type oneshot struct {
	messages
	out, in func(memory []byte) // moves one message
	lasting []closer            // handles that are closed at the end
	turn    int                 // of the buffers
	since   int                 // turns since prepare
}

type closer interface{ Close() error }

func declareOneshot(ctx context.Context, b *bed, m *measurement) series {
	other := 1 - b.Rank()
	s := &oneshot{messages: newMessages(b, m, other, 2, 2)}
	firstOut, firstIn := s.outs[0][:s.bytes], s.ins[0][:s.bytes]
	switch m.kind {
	case oneshotSend:
		s.out = func(x []byte) { must(s.node.Send(ctx, x, other)) }
		s.in = func(x []byte) { must(s.node.Recv(ctx, x, other)) }
	case oneshotLayout:
		s.out = func(x []byte) { must(s.node.SendLayout(ctx, s.layout(x), other)) }
		s.in = func(x []byte) { must(s.node.RecvLayout(ctx, s.layout(x), other)) }
	case oneshotDeclare:
		by := func(declare func(channel.Layout, int, ...channel.DeclareOption) (*channel.Handle, error)) func([]byte) {
			return func(x []byte) {
				h := must1(declare(channel.Contiguous(x), other))
				move(h)
				must(h.Close())
			}
		}
		s.out, s.in = by(s.node.DeclareSend), by(s.node.DeclareReceive)
	case oneshotRebase:
		by := func(h *channel.Handle) func([]byte) {
			return func(x []byte) {
				must(h.Rebase(x))
				move(h)
			}
		}
		s.out = by(s.declarations.send(channel.Contiguous(firstOut), other))
		s.in = by(s.declarations.receive(channel.Contiguous(firstIn), other))
	case oneshotAddress:
		by := func(declare func(*qmp.MsgMem, int, int) (*qmp.Handle, error), memory []byte) func([]byte) {
			h := must1(declare(must1(qmp.DeclareMsgMem(memory)), other, qmp.DefaultPriority))
			s.lasting = append(s.lasting, h)
			return func(x []byte) {
				must(h.ChangeAddress(x))
				move(h)
			}
		}
		s.out = by(b.qmp.DefaultComm().DeclareSendTo, firstOut)
		s.in = by(b.qmp.DefaultComm().DeclareReceiveFrom, firstIn)
	}
	return s
}

func (s *oneshot) run(n int, samples []int64) { pingpong(s, s.node.Rank() == 0, n, samples) }

func (s *oneshot) send() {
	s.out(s.outs[s.turn%2][:s.span()])
	s.over(s.node.Rank() != 0)
}

func (s *oneshot) receive() {
	s.in(s.ins[s.turn%2][:s.span()])
	s.over(s.node.Rank() == 0)
}

// over counts a message; last marks the last one of an iteration.
func (s *oneshot) over(last bool) {
	if last {
		s.turn, s.since = s.turn+1, s.since+1
	}
}

func (s *oneshot) close() {
	s.messages.close()
	for _, h := range s.lasting {
		must(h.Close())
	}
}

// turns: there are two buffers.
func (s *oneshot) turns() int { return 2 }

func (s *oneshot) prepare() {
	s.since = 0
	s.messages.prepare()
}

// check checks the buffers that have been used since prepare.
func (s *oneshot) check() {
	for k := range min(s.since, 2) {
		s.checkOne((s.turn - 1 - k) % 2)
	}
}

const longOverlap = `Both ranks start, compute, and wait: for a message from rank 0 to rank 1 (send), or for a
declared allreduce. The later of the two ranks counts.

  alone  the transfer, with both ranks in Wait
  cpu    CPU time of the transfer, of both ranks together and without spinning: the least of
         twice alone, of a transfer while both ranks always have something to move (messages
         in both directions), and of one while both sleep until it is complete, less the cost
         of the sleeping itself
  wait   the wait after a computation as long as alone, as a share of alone
  total  start, computation and wait, as a share of the computation plus 1.15 cpu: copies, and
         TCP over loopback, are work of the same cores, which no overlap can hide
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

// cpuMargin is how much more CPU a transfer may use than alone: it shares caches with the
// computation.
const cpuMargin = 1.15

func (o *overlapTimes) waited() float64 { return 100 * o.wait / o.alone }
func (o *overlapTimes) total() float64  { return 100 * o.all / (o.compute + cpuMargin*o.cpu) }
func (o *overlapTimes) osu() float64    { return max(0, 100*(1-(o.all-o.compute)/o.alone)) }

// transfer is started by each of two ranks.
type transfer interface {
	startable
	Test() (bool, error)
}

// declareMeeting declares a note in both directions, which synchronises two ranks.
func declareMeeting(b *bed) *token {
	t := &token{messages: messages{rank: b.Rank(), declarations: declarations{node: b.Node, stream: streamNotes}}}
	t.out = t.declarations.send(channel.Contiguous(make([]byte, 1)), 1-b.Rank())
	t.in = t.declarations.receive(channel.Contiguous(make([]byte, 1)), 1-b.Rank())
	return t
}

// overlap measures one.
type overlap struct {
	b *bed
	m *measurement
	transfer
	both  transfer     // two messages, one in each direction; for an allreduce, itself
	own   declarations // of both
	sync  *token
	check func() // of the bytes
}

func measureOverlap(ctx context.Context, b *bed, m *measurement) {
	o := &overlap{b: b, m: m, sync: declareMeeting(b)}
	if m.kind == kindAllreduce {
		o.declareAllreduce(ctx)
	} else {
		o.declareMessages()
	}
	move(o.both)
	barrier(ctx, b, try(o.check))
	rough := o.repeat(ctx, 5, 0)
	n := int(min(max(float64(m.o.time)/rough.all, 10), 500))
	r := overlapTimes{alone: o.repeat(ctx, n, 0).all}
	steps := agree(ctx, b, stepsFor(r.alone))
	r.compute = o.computeAlone(ctx, steps, n)
	r.cpu = min(2*r.alone, o.whileMoving(ctx, min(n, 100)), o.whileAsleep(ctx, min(n, 100), time.Duration(r.alone)))
	both := o.repeat(ctx, n, steps)
	r.all, r.wait = both.all, both.wait
	m.figure("alone", r.alone)
	m.figure("cpu", r.cpu)
	m.figure("wait", r.waited())
	m.figure("total", r.total())
	m.figure("osu", r.osu())
	barrier(ctx, b, try(o.check))
	must(o.both.Close())
	o.own.close()
	o.sync.close()
}

// declareMessages declares one message in each direction; that from rank 0 to rank 1 is the
// transfer.
func (o *overlap) declareMessages() {
	own, other := o.b.Rank(), 1-o.b.Rank()
	out, in := o.b.memory(&o.m.spec, o.m.bytes, o.m.bytes+guard)
	fillPattern(out, seedFor(own, o.m.bytes, o.m.op))
	fillGuard(in)
	o.own.node = o.b.Node
	o.own.send(channel.Contiguous(out), other)
	o.own.receive(channel.Contiguous(in[:o.m.bytes]), other)
	o.transfer, o.both = o.own.handles[own], must1(o.b.Multiple(o.own.handles...))
	o.check = func() {
		defer fillGuard(in) // until the next time
		must(checkPattern(o.m.op, in, o.m.bytes, seedFor(other, o.m.bytes, o.m.op)))
	}
}

func (o *overlap) declareAllreduce(ctx context.Context) {
	in, out := o.b.memory(&o.m.spec, o.m.bytes, o.m.bytes)
	dst, src := doubles(out), doubles(in)
	for i := range src {
		src[i] = float64((o.b.Rank() + 1) * (i%1000 + 1))
	}
	c := must1(must1(o.b.World(ctx)).Declare(channel.Allreduce(channel.Sum, dst, src)))
	o.transfer, o.both = c, c
	o.check = func() {
		defer clear(dst) // until the next time
		for i, got := range dst {
			if want := float64(3 * (i%1000 + 1)); got != want {
				must(&CorruptError{Op: kindAllreduce, Bytes: len(out), Offset: i * doubleBytes, Got: out[i*doubleBytes], Want: byte(math.Float64bits(want))})
			}
		}
	}
}

// transferOnce synchronises both ranks, and runs one transfer with so many steps of computation.
// It returns how long that took on this rank, and how long the wait at its end.
func (o *overlap) transferOnce(steps int) (all, wait int64) {
	o.sync.run(1, nil)
	began := nanos()
	must(o.Start())
	compute(steps)
	computed := nanos()
	must(o.Wait())
	ended := nanos()
	return ended - began, ended - computed
}

// repeat runs n transfers, and returns the medians of the later rank's times.
func (o *overlap) repeat(ctx context.Context, n, steps int) (r overlapTimes) {
	type times struct{ All, Wait []int64 }
	var own times
	for range n {
		all, wait := o.transferOnce(steps)
		own.All, own.Wait = append(own.All, all), append(own.Wait, wait)
	}
	both := share(ctx, o.b, own, nil)
	r.all = medianOfLater(both[0].All, both[1].All)
	r.wait = medianOfLater(both[0].Wait, both[1].Wait)
	return r
}

// medianOfLater returns the median of the larger values of two ranks.
func medianOfLater(a, b []int64) float64 {
	var later []float64
	for i := range min(len(a), len(b)) {
		later = append(later, float64(max(a[i], b[i])))
	}
	return median(later)
}

// stepsFor returns how many steps of computation take so many ns.
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

// computeAlone returns the median time of so many steps, on the later rank.
func (o *overlap) computeAlone(ctx context.Context, steps, n int) float64 {
	own := make([]int64, n)
	repeat(n, own, func() { compute(steps) })
	both := share(ctx, o.b, own, nil)
	return medianOfLater(both[0], both[1])
}

// whileMoving returns the CPU time of a transfer, in ns, of two ranks that always have messages in
// both directions.
func (o *overlap) whileMoving(ctx context.Context, n int) float64 {
	began := ownCPU()
	for range n {
		move(o.both)
	}
	used := share(ctx, o.b, ownCPU()-began, nil)
	if o.m.kind == kindSend {
		n *= 2
	}
	return float64(used[0]+used[1]) / float64(n)
}

// whileAsleep returns the CPU time of ranks that sleep and test now and then. Test, the engine,
// the kernel or an adapter (which uses no CPU) moves the bytes; the cost of the sleeping is
// measured without messages, and subtracted.
func (o *overlap) whileAsleep(ctx context.Context, n int, alone time.Duration) float64 {
	nap := max(alone, 100*time.Microsecond)
	naps, began := 0, ownCPU()
	for range n {
		must(o.Start())
		for done := false; !done; naps++ {
			time.Sleep(nap)
			done = must1(o.Test())
		}
	}
	used := ownCPU() - began
	barrier(ctx, o.b, nil)
	began = ownCPU()
	for range naps {
		time.Sleep(nap)
		must1(o.Test())
	}
	both := share(ctx, o.b, max(used-(ownCPU()-began), 0), nil)
	return float64(both[0]+both[1]) / float64(n)
}

// envRouter tells ranks the location of their star's router.
const envRouter = "SLUICE_BENCH_ROUTER"

const longLoss = `The ranks are in two network namespaces; a third one connects them, and drops packets at random
in both directions. Rank 1 sends, with so many messages outstanding. The main figure is the
time of a message, from the start of its receive; rate is the rate at which all arrive. The
connections are made before, without loss. It needs root and nft.`

// lossWords are the shares of packets, in percent, that can be lost.
var lossWords = []string{"0", "0.1", "0.2", "0.5", "1", "2", "5", "10"}

func measureLoss(ctx context.Context, b *bed, m *measurement) {
	s := newFlows(b, m)[0]
	set := func(percent float64) {
		if b.Rank() == 0 {
			lose(percent)
		}
	}
	s.move(10 * time.Millisecond) // that connects
	barrier(ctx, b, try(func() { set(m.loss) }))
	s.move(m.o.time)
	barrier(ctx, b, try(func() { set(0); s.check() }))
	m.addAll(s.samples...)
	m.figure("rate", s.rate())
	s.close()
}

const longIncast = `Rank 0 receives from all other ranks. Each rank is in a network namespace of its own; a router
connects them. The main figure is the rate of all senders together, sender that of each, and
fairness Jain's index of these: 1 if all get the same, 1/n if one of n gets everything
(RFC 5166). It needs root and nft.`

func measureIncast(ctx context.Context, b *bed, m *measurement) {
	flows := newFlows(b, m)
	moveAll := func(d time.Duration) { // all are done when it returns
		errs := make([]error, len(flows))
		var moving sync.WaitGroup
		for i, s := range flows {
			moving.Go(func() { errs[i] = try(func() { s.move(d) }) })
		}
		moving.Wait()
		barrier(ctx, b, errors.Join(errs...))
	}
	moveAll(10 * time.Millisecond) // that connects
	began := nanos()
	moveAll(m.o.time)
	took := nanos() - began
	var rates []float64
	bytes := 0
	for _, s := range flows {
		s.check()
		rates = append(rates, s.rate())
		bytes += len(s.samples) * s.bytes
		s.close()
	}
	m.addAll(float64(bytes) * 1e3 / float64(took))
	m.figure("sender", rates...)
	m.figure("fairness", jain(rates))
}

// jain is the index of fairness of Jain, Chiu and Hawe (DEC-TR-301, 1984).
func jain(rates []float64) float64 {
	var sum, squares float64
	for _, x := range rates {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(rates)) * squares)
}

// flow is a stream of messages from one rank to another, with a window outstanding. The last byte
// of each says whether more follow.
type flow struct {
	declarations
	memory  [][]byte
	peer    int
	bytes   int
	samples []float64 // ns from the start to the end of each message
	took    int64
}

const (
	flowGoesOn byte = iota
	flowEnds
)

// newFlows declares messages to rank 0 from all others.
func newFlows(b *bed, m *measurement) (list []*flow) {
	if os.Getenv(envRouter) == "" {
		must(usagef("%s makes a network of its own: run it without a launcher", m.name))
	}
	first, last := 0, 0
	if b.Rank() == 0 {
		first, last = 1, b.Size()-1
	}
	room := roundUp(m.bytes, lineBytes)
	memory, _ := b.memory(&m.spec, (last-first+1)*m.windowed*room, 0)
	for peer := first; peer <= last; peer++ {
		s := &flow{declarations: declarations{node: b.Node}, peer: peer, bytes: m.bytes}
		for i := range m.windowed {
			part := memory[:m.bytes]
			memory = memory[room:]
			s.memory = append(s.memory, part)
			if b.Rank() == 0 {
				s.receive(channel.Contiguous(part), peer)
			} else {
				fillPattern(part, s.seed(b.Rank(), i))
				s.send(channel.Contiguous(part), peer)
			}
		}
		list = append(list, s)
	}
	return list
}

func (s *flow) seed(from, slot int) uint64 { return seedFor(from, s.bytes, "flow") + uint64(slot) }

// check checks the last message of each slot.
func (s *flow) check() {
	for i, b := range s.memory[:min(len(s.memory), len(s.samples))] {
		if s.node.Rank() == 0 {
			must(checkPattern("flow", b[:s.bytes-1], s.bytes-1, s.seed(s.peer, i)))
		}
	}
}

// move moves messages for so long, by the sender's clock.
func (s *flow) move(d time.Duration) {
	s.samples = s.samples[:0]
	began, window := nanos(), len(s.handles)
	defer func() { s.took = nanos() - began }()
	started := make([]int64, window)
	start := func(slot int) {
		started[slot] = nanos()
		must(s.handles[slot].Start())
	}
	wait := func(slot int) {
		must(s.handles[slot].Wait())
		s.samples = append(s.samples, float64(nanos()-started[slot]))
	}
	if s.node.Rank() == 0 { // receives
		for slot := range window {
			start(slot)
		}
		for i, ending := 0, 0; ending < window; i++ {
			slot := i % window
			wait(slot)
			if s.memory[slot][s.bytes-1] == flowEnds {
				ending++
			} else {
				start(slot)
			}
		}
		return
	}
	// When the time is over, all messages of a window say so: so many receives have been started.
	for i, last := 0, -1; last < 0 || i <= last; i++ {
		slot, says := i%window, flowGoesOn
		if i >= window {
			wait(slot)
		}
		if last < 0 && nanos() > began+int64(d) {
			last = i + window - 1
		}
		if last >= 0 {
			says = flowEnds
		}
		s.memory[slot][s.bytes-1] = says
		start(slot)
	}
	for slot := range window { // of the last window each slot has one outstanding
		wait(slot)
	}
}

// rate is in MB/s.
func (s *flow) rate() float64 {
	return float64(len(s.samples)) * float64(s.bytes) * 1e3 / float64(s.took)
}
