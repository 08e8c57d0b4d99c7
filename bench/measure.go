package main

import (
	"context"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
)

// spec says what is measured, and how.
type spec struct {
	pattern   string
	op        operation
	bytes     int
	block     int  // of channels: that a message is made of; 0: one piece
	packed    bool // of channels: it is received into one piece
	late      bool // of lat of channels: receives are started when their message is there
	each      bool // time each iteration; else batches
	mean      bool // one batch
	time      time.Duration
	iters     int // instead of time; 0: by time
	batch     int // iterations of a batch; 0: derived
	warmup    time.Duration
	window    int
	list      int
	every     int // every so many sends one is signalled
	verify    bool
	histogram bool   // of all samples, in the result
	ranks     int    // that an iteration goes through, of ring, halo and collectives
	axis      string // of halo
	halo      string // how it receives

	declared bool   // of collectives: not called
	suite    string // of results
}

// extent is how its messages lie in memory, into that they are received in.
func (s *spec) extent() extent { return extent{s.bytes, s.block} }

func (s *spec) into() extent {
	if s.packed {
		return extent{bytes: s.bytes}
	}
	return s.extent()
}

// receiving says how they are received, if not as they are sent and in time.
func (s *spec) receiving() string {
	var how []string
	if s.packed {
		how = append(how, "packed")
	}
	if s.late {
		how = append(how, "late")
	}
	return strings.Join(how, " ")
}

// A batch is as many iterations as fit into batchTime, at most maxBatch: long
// enough for the clock not to show, short enough to leave a distribution. The
// peer programs do the same.
const (
	batchTime  = 200 * time.Microsecond
	maxBatch   = 1000
	minBatches = 10
	// Samples are taken in chunks of this many and put into the histogram
	// between chunks, outside the measured time.
	chunk = 4096
)

// measurement collects the rounds of one spec.
type measurement struct {
	spec
	all      *distribution
	medians  []float64 // of the rounds
	batchLen int
	windowed int
	verified bool
	mallocs  uint64 // by both ranks, while it was measured
	calls    uint64 // into C, by both
	messages uint64 // of both
}

func newMeasurement(s spec) *measurement {
	m := &measurement{spec: s, all: newDistribution()}
	if s.window > 0 && s.pattern != patternLat {
		m.windowed = streamWindow(s.window, s.bytes)
	}
	return m
}

// series is a kind of iteration that can be repeated: what lat and the
// bandwidth patterns have in common.
type series interface {
	// run makes n iterations; with samples it times each, in ns.
	run(n int, samples []int64) error
	// over ends a series of runs.
	over() error
	// finish leaves the queues as it found them.
	finish() error
}

// checked is a series that can tell whether its messages arrive.
type checked interface {
	// prepare makes the messages, and makes the memory that they go to hold
	// something else.
	prepare()
	// check looks at every byte of the messages that this rank has received since
	// prepare, and at their neighbours.
	check() error
}

// windows is the series of the bandwidth patterns: an iteration is one window
// of messages, and a run ends when the last byte has arrived.
type windows struct {
	*stream
	both bool
}

func (w windows) run(n int, _ []int64) error { return w.batch(n*w.window, w.both) }
func (w windows) over() error                { return nil }

// round measures once more. Both ranks call it with equal specs.
func (p *pair) round(ctx context.Context, m *measurement) error {
	if m.verify && !m.verified {
		if err := p.verify(ctx, m.op, m.bytes, p.inline); err != nil {
			return err
		}
		m.verified = true
	}
	var s series
	if m.pattern == patternLat {
		s = newLatency(p, m.op, m.bytes, p.inline, m.every)
		clear(p.recv.Bytes()[:max(m.bytes, atomicBytes)]) // the counter of atomics, the byte that writes are seen by
	} else {
		s = windows{newStream(p, m.op, m.bytes, p.inline, m.windowed, m.list, m.every), m.pattern == patternBiBW}
	}
	return m.take(ctx, p.job, s)
}

// take warms up and measures one round. All ranks call it with equal specs.
func (m *measurement) take(ctx context.Context, job exchanger, s series) error {
	runtime.GC() // none is due in the middle
	if _, err := share(ctx, job, struct{}{}, nil); err != nil {
		return err
	}
	iteration, err := warmUp(ctx, job, s, m.warmup)
	if err != nil {
		return err
	}
	plan, err := agree(ctx, job, m.plan(iteration))
	if err != nil {
		return err
	}
	m.batchLen = plan.Batch
	verify := func() error { return nil }
	if c, ok := s.(checked); ok && m.verify {
		// What is timed is to move the bytes, not only what came before.
		c.prepare()
		if _, err := share(ctx, job, struct{}{}, nil); err != nil {
			return err
		}
		verify = c.check
	}
	d := newDistribution()
	var samples []int64
	if m.each {
		samples = make([]int64, chunk)
	}
	before := counted()
	for left := plan.Iterations; left > 0; {
		n := min(left, plan.Batch)
		if m.each {
			n = min(left, chunk)
		}
		t := nanos()
		if err := s.run(n, samples); err != nil {
			return err
		}
		t = nanos() - t
		left -= n
		m.addSamples(d, n, t, samples)
	}
	own := counted().since(before)
	if err := s.over(); err != nil {
		return err
	}
	if err := s.finish(); err != nil {
		return err
	}
	all, err := share(ctx, job, own, verify())
	if err != nil {
		return err
	}
	for _, n := range all {
		m.mallocs += n.Mallocs
		m.calls += n.Calls
	}
	m.messages += uint64(plan.Iterations * m.messagesOf())
	m.all.merge(d)
	m.medians = append(m.medians, d.quantile(50))
	return nil
}

// addSamples turns what was timed into samples of the pattern's unit: a run of
// n iterations that took t ns, or the first n of samples.
func (m *measurement) addSamples(d *distribution, n int, t int64, samples []int64) {
	perNS := float64(n*m.messagesOf()) / float64(t)
	switch {
	case m.pattern == patternRate:
		d.add(perNS * 1e9)
	case m.pattern == patternHalo: // what one rank sends: they all do so at once
		d.add(float64(n) * float64(m.bytes) * 1e3 / float64(t))
	case unitOf(m.pattern) == unitBandwidth:
		d.add(perNS * float64(m.bytes) * 1e3)
	case samples == nil:
		d.add(1 / perNS)
	default:
		for _, v := range samples[:n] {
			d.add(float64(v) / float64(m.messagesOf()))
		}
	}
}

// messagesOf is the number of messages of an iteration, of all ranks together.
// The latency is the time of one: half a round trip, as perftest and OSU define
// it, where the operation is not itself the round trip. What a message of a thread to
// itself costs is shared by its two ends.
func (m *measurement) messagesOf() int {
	switch m.pattern {
	case patternBiBW:
		return 2 * m.windowed
	case patternBW, patternRate:
		return m.windowed
	case patternHalo:
		return 2 * m.ranks * len(axesOf(m.axis))
	case patternRing:
		return m.ranks
	}
	if m.op.fetch || isCollective(m.pattern) || m.pattern == patternAddSlice {
		return 1
	}
	return 2
}

// warmUp runs once, once more, then four times as many iterations each time until
// that takes about d, and on until a run is no faster than the best before it, up to
// steadyRuns times. It says what an iteration takes, in ns: the best mean of these runs,
// for one that was interrupted must not be taken for a slow operation.
func warmUp(ctx context.Context, job exchanger, s series, d time.Duration) (float64, error) {
	best := math.Inf(1)
	n := 1
	for runs, long := 1, 0; ; runs++ {
		t := nanos()
		if err := s.run(n, nil); err != nil {
			return 0, err
		}
		took := nanos() - t
		if err := s.over(); err != nil {
			return 0, err
		}
		took, err := agree(ctx, job, took)
		if err != nil {
			return 0, err
		}
		mean := float64(max(took, 1)) / float64(n)
		steady := mean > best*(1-steadyGain)
		best = min(best, mean)
		switch {
		case runs >= 3 && best*float64(n) >= float64(d)/2:
			if long++; steady || long > steadyRuns {
				return best, nil
			}
		case runs > 1:
			n *= 4
		}
	}
}

// A warm-up is over when a run is not faster by more than this than the best before,
// or after so many runs more: where figures wander none is ever steady.
const (
	steadyGain = 0.02
	steadyRuns = 8
)

// plan is how long a measurement is.
type plan struct {
	Iterations int `json:"iterations"`
	Batch      int `json:"batch"`
}

// plan derives the length from what an iteration takes, in ns.
func (m *measurement) plan(iteration float64) plan {
	pl := plan{Batch: m.batch}
	if pl.Batch == 0 {
		pl.Batch = max(1, min(maxBatch, int(float64(batchTime)/iteration)))
	}
	if m.each {
		pl.Batch = 1
	}
	if m.iters > 0 {
		// Of bandwidth, messages; an iteration is a window of them.
		per := max(1, m.windowed)
		pl.Iterations = (m.iters + per - 1) / per
	} else {
		batches := max(minBatches, int(float64(m.time)/(iteration*float64(pl.Batch))))
		pl.Iterations = batches * pl.Batch
	}
	if m.mean {
		if m.iters == 0 {
			pl.Iterations = max(1, int(float64(m.time)/iteration))
		}
		pl.Batch = pl.Iterations
	}
	pl.Batch = min(pl.Batch, pl.Iterations)
	return pl
}

// counts is what this process ever did.
type counts struct {
	Mallocs uint64 `json:"mallocs"` // heap objects
	Calls   uint64 `json:"calls"`   // into C
}

func counted() counts {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return counts{s.Mallocs, uint64(runtime.NumCgoCall())}
}

func (c counts) since(before counts) counts {
	return counts{c.Mallocs - before.Mallocs, c.Calls - before.Calls}
}

// result is what was measured, as the report has it.
func (m *measurement) result(layer, provider string, timer float64) Result {
	r := Result{
		Pattern: m.pattern, Layer: layer, Provider: provider, Peer: peerSluice, Op: m.op.name,
		Mode: modeBatch, Batch: int64(m.batchLen), Window: int64(m.windowed), Bytes: int64(m.bytes),
		Unit: unitOf(m.pattern), Verified: m.verified, TimerNS: timer, Rounds: len(m.medians), Spread: spread(slices.Clone(m.medians)),
		Ranks: int64(m.ranks), Axis: m.axis, Halo: m.halo, Block: int64(m.block), Receive: m.receiving(),
	}
	if m.each {
		r.Mode = modeEach
	}
	allocs := float64(m.mallocs) / float64(max(m.messages, 1))
	r.AllocsPerMessage = &allocs
	if provider == providerIBV {
		if m.windowed > 0 {
			r.List = int64(m.list)
		}
		calls := float64(m.calls) / float64(max(m.messages, 1))
		r.CrossingsPerMessage = &calls
	}
	r.Medians = m.medians
	if m.histogram {
		r.Histogram = m.all.encode()
	}
	m.all.fill(&r)
	return r
}
