package main

import (
	"context"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// spec is one measurement: a pattern, and the values of its dimensions.
type spec struct {
	*pattern
	o        *options
	op       string  // operation of its results
	memory   string  // of alloc, heap, alloc>heap, heap>alloc
	bytes    int     // of a message
	block    int     // bytes of the blocks of a message; 0: one piece
	ranks    int     // of the job
	axis     string  // of halo
	halo     string  // how it receives
	declared bool    // of collectives: not called
	windowed int     // messages of a window; 0: there is none
	kind     string  // the operation, if there are several
	many     int     // handles, waiters, queue pairs, starts
	loss     float64 // percent of packets
	batch    int     // iterations of a batch; 0: as many as fit
}

// specs are the measurements of a pattern with so many ranks.
func (p *pattern) specs(o *options, ranks int) []spec {
	list := []spec{{pattern: p, o: o, op: p.name, memory: memoryAlloc, ranks: ranks, batch: max(o.batch, 0)}}
	for _, by := range p.vary {
		list = by(o, list)
	}
	for i := range list {
		s := &list[i]
		if isCollective(s.name) && s.bytes > maxSize/ranks {
			must(usagef("%s of %s: with %d ranks more than %s", s.name, formatSize(int64(s.bytes)), ranks, formatSize(maxSize)))
		}
		if o.window > 0 && s.layer != layerFanout {
			s.windowed = streamWindow(o.window, s.bytes)
		}
	}
	return list
}

// sizeError returns why the pattern cannot have messages of its size.
func (s *spec) sizeError() error {
	op := operationOf(s.op)
	switch {
	case op.atomic && s.bytes != atomicBytes:
		return usagef("%s has %d bytes, not %d", s.op, atomicBytes, s.bytes)
	case s.bytes == 0 && s.layer == layerVerbs && s.name == patternLat && !op.recv && !op.fetch:
		return usagef("the peer cannot see a %s of 0 bytes: latency needs at least 1", s.op)
	case s.bytes == 0 && s.unit == unitBandwidth:
		return &UsageError{"bandwidth of 0 bytes"}
	case s.bytes == 0 && s.layer == layerFanout:
		return &UsageError{"chunks of 0 bytes"}
	case isCollective(s.name) && s.name != patternExact || s.name == patternAddSlice:
		return inDoubles([]int{s.bytes})
	}
	return nil
}

// each reports whether every iteration is timed, instead of batches.
func (s *spec) each() bool { return s.o.each && s.unit == unitLatency && !s.o.mean }

// extent is the layout of messages in the sender's memory, into that in the receiver's.
func (s *spec) extent() extent {
	if s.kind == oneshotLayout && s.bytes%lineBytes == 0 {
		return extent{s.bytes, lineBytes}
	}
	return extent{s.bytes, s.block}
}

func (s *spec) into() extent {
	if s.o.packed {
		return extent{bytes: s.bytes}
	}
	return s.extent()
}

// received says how messages are received, if not in the layout of the sender and in time.
func (s *spec) received() string {
	var how []string
	if s.o.packed {
		how = append(how, "packed")
	}
	if s.o.late {
		how = append(how, "late")
	}
	return strings.Join(how, " ")
}

// perIteration is the number of messages of an iteration, of all ranks together.
func (s *spec) perIteration() int {
	if s.messages == nil {
		return 1
	}
	return s.messages(s)
}

// A batch has as many iterations as fit into batchTime, at most maxBatch: long enough to hide the
// cost of the clock, short enough to leave a distribution. The peer programs do the same.
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
	sampled
	batchLen int
	verified bool
	mallocs  uint64     // by all ranks, while it was measured
	calls    uint64     // into C, by all ranks
	count    uint64     // messages of all ranks
	others   []*sampled // further figures
	inline   bool
}

// sampled is a figure of a measurement.
type sampled struct {
	figureName string // empty: the one of the pattern itself
	all        *distribution
	round      *distribution // the current one
	medians    []float64     // of the rounds
	of         int64         // exchanges that it is the mean or a percentile of; 0: its samples count
}

func newSampled(name string) *sampled { return &sampled{figureName: name, all: newDistribution()} }

func (s *sampled) begin() { s.round = newDistribution() }

func (s *sampled) end() {
	s.all.merge(s.round)
	if s.round.n > 0 {
		s.medians = append(s.medians, s.round.quantile(50))
	}
}

// addAll adds samples, in the figure's unit.
func (s *sampled) addAll(samples ...float64) {
	for _, v := range samples {
		s.round.add(v)
	}
}

func (s *sampled) fill(r *Result) {
	r.Medians, r.Rounds, r.Spread = s.medians, len(s.medians), spread(slices.Clone(s.medians))
	s.all.fill(r)
	if s.of > 0 {
		r.Samples = s.of
	}
}

func newMeasurement(s spec) *measurement { return &measurement{spec: s, sampled: *newSampled("")} }

// figure adds samples of the current round to one of the further figures of the pattern.
func (m *measurement) figure(name string, samples ...float64) {
	if len(samples) == 0 {
		return
	}
	i := slices.IndexFunc(m.others, func(f *sampled) bool { return f.figureName == name })
	if i < 0 {
		i = len(m.others)
		m.others = append(m.others, newSampled(name))
	}
	m.others[i].begin()
	m.others[i].addAll(samples...)
	m.others[i].end()
}

func (m *measurement) results(b *bed) (list []Result) {
	r := m.result(b)
	if r.Samples > 0 {
		list = append(list, r)
	}
	r.Mode, r.Batch, r.TimerNS, r.AllocsPerMessage, r.CrossingsPerMessage, r.Histogram = "", 0, 0, nil, nil, ""
	for _, f := range m.others {
		r.Figure, r.Unit = f.figureName, unitOfFigure(m.name, f.figureName)
		f.fill(&r)
		list = append(list, r)
	}
	return list
}

// series is an iteration that can be repeated.
type series interface {
	// run makes n iterations; with samples it times each, in ns.
	run(n int, samples []int64)
	// prepare fills the messages, and the memory that receives them with other bytes.
	prepare()
	// check checks every byte of the messages that this rank has received since prepare, and the
	// bytes around them.
	check()
	// close frees its declarations.
	close()
}

// plain is a series that closes nothing.
type plain struct{}

func (plain) close() {}

// A resting series has to do something after a run, outside the measured time.
type resting interface{ rest() }

// A turning series is one whose iterations differ.
type turning interface {
	// turns returns after how many iterations they repeat.
	turns() int
}

// once does a round: of a procedure, or of a series that is declared, verified, measured
// and closed. All ranks call it with equal specs.
func (m *measurement) once(ctx context.Context, b *bed, what string) {
	defer during(func() string { return what })
	m.begin()
	if m.measure != nil {
		m.measure(ctx, b, m)
	} else {
		s := m.declare(ctx, b, m)
		m.takeChecked(ctx, b, s)
		s.close()
	}
	m.end()
}

// takeChecked measures a series, and checks its messages if requested. The messages are filled in
// any case: memory that was never written may be a single page of zeros, mapped many times, which
// fits into every cache.
func (m *measurement) takeChecked(ctx context.Context, job exchanger, s series) {
	if !m.o.verify {
		s.prepare()
	} else {
		moveOnce(ctx, job, s)
	}
	m.take(ctx, job, s)
	m.verified = m.o.verify && m.name != coll.Barrier.String() // a barrier moves no bytes
}

// moveOnce moves all messages once, in each turn, and checks them. All ranks call it, and all
// fail if one finds an error.
func moveOnce(ctx context.Context, job exchanger, s series) {
	turns := 1
	if t, ok := s.(turning); ok {
		turns = t.turns()
	}
	for range turns {
		s.prepare()
		barrier(ctx, job, nil)
		s.run(1, nil)
		rest(s)
		barrier(ctx, job, try(s.check))
	}
}

func rest(s series) {
	if r, ok := s.(resting); ok {
		r.rest()
	}
}

func (m *measurement) take(ctx context.Context, job exchanger, s series) {
	runtime.GC() // so that none is due during the measurement
	if m.o.load != "" {
		m.takeShared(ctx, job, s)
		return
	}
	barrier(ctx, job, nil)
	iteration := warmUp(ctx, job, s, m.o.warmup)
	plan := agree(ctx, job, m.plan(iteration))
	m.batchLen = plan.Batch
	verify := func() {}
	if m.o.verify {
		// The timed messages must move the bytes, not only the earlier ones.
		s.prepare()
		barrier(ctx, job, nil)
		verify = s.check
	}
	before := counted()
	m.time(s, plan)
	own := counted().since(before)
	rest(s)
	all := share(ctx, job, own, try(verify))
	for _, n := range all {
		m.mallocs += n.Mallocs
		m.calls += n.Calls
	}
	m.count += uint64(plan.Iterations * m.perIteration())
}

// time runs the planned iterations, and takes samples.
func (m *measurement) time(s series, p plan) {
	var samples []int64
	if m.each() {
		samples = make([]int64, chunk)
	}
	for left := p.Iterations; left > 0; {
		n := min(left, p.Batch)
		if samples != nil {
			n = min(left, chunk)
		}
		t := nanos()
		s.run(n, samples)
		m.sample(n, nanos()-t, samples)
		left -= n
	}
}

// sample adds timings: n iterations that took t ns, or the first n of samples.
func (m *measurement) sample(n int, t int64, samples []int64) {
	per := float64(m.perIteration())
	messages, ns := float64(n)*per, float64(max(t, 1))
	switch {
	case m.unit == unitBandwidth && m.axis != "": // the bytes of one rank: all send at once
		m.addAll(float64(n) * float64(m.bytes) * 1e3 / ns)
	case m.unit == unitBandwidth:
		m.addAll(messages * float64(m.bytes) * 1e3 / ns)
	case m.unit != unitLatency:
		m.addAll(messages * 1e9 / ns)
	case samples == nil:
		m.addAll(ns / messages)
	default:
		for _, v := range samples[:n] {
			m.addAll(float64(v) / per)
		}
	}
}

// warmUp runs once, once more, then four times as many iterations each time until
// that takes about d, and on until a run is no faster than the best before it, up to
// steadyRuns times. It returns the time of an iteration, in ns: the best mean of these runs, as
// an interrupted run must not be taken for a slow operation.
func warmUp(ctx context.Context, job exchanger, s series, d time.Duration) float64 {
	best := math.Inf(1)
	n := 1
	for runs, long := 1, 0; ; runs++ {
		t := nanos()
		s.run(n, nil)
		took := nanos() - t
		rest(s)
		took = agree(ctx, job, took)
		mean := float64(max(took, 1)) / float64(n)
		steady := mean > best*(1-steadyGain)
		best = min(best, mean)
		switch {
		case runs >= 3 && best*float64(n) >= float64(d)/2:
			if long++; steady || long > steadyRuns {
				return best
			}
		case n >= maxWarmUp: // it takes no time
			return best
		case runs > 1:
			n *= 4
		}
	}
}

// A warm-up ends when a run is not faster by more than this than the best before, or after so many
// more runs: if figures drift, none is ever steady.
const (
	steadyGain = 0.02
	steadyRuns = 8
	maxWarmUp  = 1 << 40 // iterations
)

// plan is how long a measurement is.
type plan struct {
	Iterations int `json:"iterations"`
	Batch      int `json:"batch"`
}

// plan derives the length from the time of an iteration, in ns.
func (m *measurement) plan(iteration float64) plan {
	pl := plan{Batch: m.batch}
	if pl.Batch == 0 {
		pl.Batch = max(1, min(maxBatch, int(float64(batchTime)/iteration)))
	}
	if m.each() {
		pl.Batch = 1
	}
	if m.o.iters > 0 {
		// For bandwidth, messages; an iteration is a window of them.
		per := max(1, m.windowed)
		pl.Iterations = (m.o.iters + per - 1) / per
	} else {
		batches := max(minBatches, int(float64(m.o.time)/(iteration*float64(pl.Batch))))
		pl.Iterations = batches * pl.Batch
	}
	if m.o.mean {
		if m.o.iters == 0 {
			pl.Iterations = max(1, int(float64(m.o.time)/iteration))
		}
		pl.Batch = pl.Iterations
	}
	pl.Batch = min(pl.Batch, pl.Iterations)
	return pl
}

// counts are totals of this process.
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

// result returns the measurement in the form of the report.
func (m *measurement) result(b *bed) Result {
	r := Result{
		Pattern: m.name, Layer: m.layer, Suite: m.suite, Provider: b.provider, Peer: peerSluice, Op: m.op, Device: b.entry.Device,
		Mode: modeBatch, Batch: int64(m.batchLen), Window: int64(m.windowed), Bytes: int64(m.bytes),
		Unit: m.unit, Verified: m.verified, TimerNS: b.timer,
		Axis: m.axis, Halo: m.halo, Block: int64(m.block), Receive: m.received(), Inline: m.inline,
		Load: m.o.load, Count: int64(m.many), Loss: m.loss,
	}
	if m.pattern.ranks.most == 0 {
		r.Ranks = int64(m.ranks)
	}
	if m.each() {
		r.Mode = modeEach
	}
	allocs := float64(m.mallocs) / float64(max(m.count, 1))
	r.AllocsPerMessage = &allocs
	if b.provider == providerIBV {
		if m.windowed > 0 {
			r.List = int64(m.o.list)
		}
		calls := float64(m.calls) / float64(max(m.count, 1))
		r.CrossingsPerMessage = &calls
	}
	if m.o.histogram {
		r.Histogram = m.all.encode()
	}
	m.fill(&r)
	return r
}

// laps times the iterations of a loop if requested, for all loops that measure latency.
//
//	t := startLaps(samples)
//	for i := range n {
//		... an iteration ...
//		t.lap(i)
//	}
type laps struct {
	samples []int64 // nil: the loop reads no clock
	last    int64
}

func startLaps(samples []int64) laps { return laps{samples, nanos()} }

// lap ends lap i, and begins the next. It is inlined, for which take must not be: without timing
// it is one comparison.
func (l *laps) lap(i int) {
	if l.samples != nil {
		l.take(i)
	}
}

//go:noinline
func (l *laps) take(i int) {
	now := nanos()
	l.samples[i] = now - l.last
	l.last = now
}

// mover sends a message to another rank, and receives one.
type mover interface {
	send()
	receive()
}

// repeat makes n iterations. With samples, of length n, each is timed, in ns, including the cost
// of the clock.
func repeat(n int, samples []int64, once func()) {
	t := startLaps(samples)
	for i := range n {
		once()
		t.lap(i)
	}
}

// pingpong makes n iterations of a ping-pong, or of a ring; one rank sends first. Each is timed as
// in repeat.
func pingpong[M mover](m M, first bool, n int, samples []int64) {
	t := startLaps(samples)
	for i := range n {
		if first {
			m.send()
		}
		m.receive()
		if !first {
			m.send()
		}
		t.lap(i)
	}
}

// exchanges is how many iterations are timed on shared CPUs, if there is time: the neighbours' shares
// are those of many turns of the scheduler, each of some milliseconds.
const exchanges = 4_000_000

// Figures of any pattern whose ranks share CPUs: the time of an iteration, and the share of its
// core that a computing process beside a rank gets.
const (
	figureMean      = "mean"
	figureP99       = "p99"
	figureNeighbour = "neighbour"
)

// takeShared times each iteration of a series until there are enough, or the time is over, and
// the CPU time that computing processes beside the ranks get meanwhile. Rank 0 decides between
// chunks, outside the measured time.
func (m *measurement) takeShared(ctx context.Context, job exchanger, s series) {
	const first, most, short = 16, 1 << 17, 50 * time.Millisecond // of chunks, which grow until they take so long
	name, beside, err := loadAround()
	if err == nil && name != m.o.load {
		err = usagef("--load %s: this job was started by a launcher; start it with bench load instead", m.o.load)
	}
	barrier(ctx, job, err)
	s.prepare()
	samples, times, per := make([]int64, most), newDistribution(), 1
	if m.unit == unitLatency {
		per = m.perIteration()
	}
	var spent, burned time.Duration
	for n, done := first, 0; done < exchanges && spent < m.o.time; {
		barrier(ctx, job, nil)
		s.run(1, nil) // a late rank has been waited for
		took, used := m.timeShared(s, samples[:n], beside)
		for _, v := range samples[:n] {
			times.add(float64(v) / float64(per))
		}
		took = agree(ctx, job, took)
		done, spent, burned = done+n, spent+took, burned+used
		if took < short {
			n = min(2*n, most)
		}
	}
	m.figure(figureMean, times.sum/float64(times.n))
	m.figure(figureP99, times.quantile(99))
	for _, f := range m.others {
		f.of += int64(times.n)
	}
	if len(beside) > 0 {
		m.figure(figureNeighbour, 100*burned.Seconds()/(spent.Seconds()*float64(len(beside))))
	}
	barrier(ctx, job, try(s.check))
}

// timeShared times an iteration for each sample. It returns the total time, and the CPU time that
// other processes use meanwhile.
func (m *measurement) timeShared(s series, samples []int64, beside []int) (took, used time.Duration) {
	before := burnedCPU(beside)
	began := nanos()
	s.run(len(samples), samples)
	took = time.Duration(nanos() - began)
	return took, burnedCPU(beside) - before
}
