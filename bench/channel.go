package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/channel"
)

// channelOptions are the flags of bench channel, halo, ring and local.
type channelOptions struct {
	pattern  string
	provider string
	memory   string
	sizes    string
	window   int
	ranks    int
	axis     string
	halo     string
	timing

	memories []string
	bytes    []int
	axes     []string
}

// Whose memory messages lie in: the operation of results of channels.
const (
	memoryAlloc = "alloc" // of Node.Alloc
	memoryHeap  = "heap"  // of Go's heap
)

// providerSelf moves messages within a rank.
const providerSelf = "self"

const (
	defaultChannelWindow = 16
	defaultRanks         = 2
	defaultRingRanks     = 8
	maxRanks             = 1024
)

func (o *channelOptions) addFlags(f *pflag.FlagSet) {
	o.timing.addFlags(f)
	f.StringVar(&o.memory, "memory", memoryAlloc, "buffers: alloc (Node.Alloc), heap (Go memory, pinned), or both in a list")
	if o.pattern == patternLocal {
		o.provider = providerSelf
	} else {
		f.StringVar(&o.provider, "provider", "", "provider: shm, tcp, ... (default the best there is)")
	}
	switch o.pattern {
	case patternHalo:
		f.IntVar(&o.ranks, "ranks", defaultRanks, "ranks to start; a job has its own number")
		f.StringVar(&o.axis, "axis", strings.Join(axes, ","), "axes of which the faces are exchanged, one after the other: a list; all: of x, y, z and t at once")
		f.StringVar(&o.halo, "halo", haloPacked, "receive into: packed (one contiguous buffer for a face) or strided (a field, as the face was sent from)")
		return
	case patternRing:
		f.IntVar(&o.ranks, "ranks", defaultRingRanks, "ranks to start; a job has its own number")
		f.StringVar(&o.sizes, "sizes", "8", "bytes, as of bench channel lat")
	case patternLocal:
		f.StringVar(&o.sizes, "sizes", "8", "bytes, as of bench channel lat")
	default:
		f.StringVar(&o.sizes, "sizes", "", "bytes: MIN:MAX (powers of two between) or a list; k, M, G (default 0:4M as far as the pattern allows)")
	}
	if unitOf(o.pattern) == unitLatency {
		o.addBatch(f)
		return
	}
	window := defaultChannelWindow
	if o.pattern == patternRate {
		window = defaultWindow
	}
	f.IntVar(&o.window, "window", window, "handles started at once (fewer where they exceed 64 MiB together)")
}

// memoryOperation is the operation of messages in a kind of memory.
func memoryOperation(memory string) operation { return operation{name: memory, recv: true} }

// check completes the options, or says which of them cannot be.
func (o *channelOptions) check() error {
	var err error
	if o.memories, err = parseList("memory", o.memory, memoryAlloc, memoryHeap); err != nil {
		return err
	}
	op := memoryOperation(o.memory)
	switch {
	case o.pattern == patternHalo:
		if o.axes, err = parseList("axis", o.axis, axes...); err != nil {
			return err
		}
		if o.halo != haloPacked && o.halo != haloStrided {
			return usagef("--halo %q: want %s or %s", o.halo, haloPacked, haloStrided)
		}
	case o.sizes == "":
		o.bytes = op.defaultSizes(o.pattern)
	default:
		if o.bytes, err = parseSizes(o.sizes); err != nil {
			return err
		}
	}
	for _, n := range o.bytes {
		if err := op.checkSize(o.pattern, n); err != nil {
			return err
		}
	}
	if o.ranks != 0 || o.pattern == patternHalo || o.pattern == patternRing {
		if err := inRange("ranks", o.ranks, 2, maxRanks); err != nil {
			return err
		}
	}
	if slices.Contains([]string{patternBW, patternBiBW, patternRate}, o.pattern) {
		if err := inRange("window", o.window, 1, maxWindow); err != nil {
			return err
		}
	}
	return o.timing.check()
}

// parseList reads a list of words, each one of those that can be.
func parseList(flag, text string, words ...string) ([]string, error) {
	list := strings.Split(text, ",")
	for _, w := range list {
		if !slices.Contains(words, w) {
			return nil, usagef("--%s %q: want %s, or several of them", flag, w, strings.Join(words, ", "))
		}
	}
	return list, nil
}

// task is what the options ask for: one table for each kind of memory.
func (o *channelOptions) task() task {
	t := task{start: 2, least: 2, most: 2}
	switch o.pattern {
	case patternLocal:
		t.start, t.least, t.most = 1, 1, 1
	case patternHalo, patternRing:
		t.start, t.most = o.ranks, 0
	}
	var n *node
	t.join = func(ctx context.Context) (_ rankJob, err error) {
		if o.provider == "" {
			best, err := bestDevice()
			if err != nil {
				return nil, err
			}
			o.provider = best.Provider()
		}
		n, err = joinNode(ctx, o.provider)
		return n, err
	}
	t.plan = func(context.Context) ([]run, error) {
		var plan []run
		for _, memory := range o.memories {
			plan = append(plan, o.runIn(n, memory))
		}
		return plan, nil
	}
	return t
}

func (o *channelOptions) runIn(n *node, memory string) *channelRun {
	r := &channelRun{node: n, provider: o.provider, memory: memory, rounds: o.rounds}
	add := func(s spec) {
		r.specs = append(r.specs, s)
		r.arena = max(r.arena, arenaSize(&s))
	}
	op := memoryOperation(memory)
	for _, bytes := range o.bytes {
		s := o.spec(o.pattern, op, bytes)
		switch o.pattern {
		case patternRing:
			s.ranks = n.Size()
		case patternBW, patternBiBW, patternRate:
			s.window = o.window
		}
		add(s)
	}
	for _, axis := range o.axes {
		s := o.spec(o.pattern, op, 2*len(axesOf(axis))*faceBytes)
		s.axis, s.halo, s.ranks = axis, o.halo, n.Size()
		add(s)
	}
	return r
}

// channelRun is one table of results: one pattern in one kind of memory.
type channelRun struct {
	node     *node
	provider string
	memory   string
	specs    []spec
	rounds   int
	arena    int // bytes that the largest needs
}

func (r *channelRun) steps() int { return len(r.specs) * r.rounds }

func (r *channelRun) unavailable() string { return "" }

// channelSeries is a series over channels.
type channelSeries interface {
	series
	// verify moves all messages once and looks at every byte of them and at
	// their neighbours. All ranks call it; all fail if one finds something wrong.
	verify(ctx context.Context) error
	close() error
}

// measure declares, verifies and times one after the other.
func (r *channelRun) measure(ctx context.Context, job exchanger, w *writer, timer float64, progress func(string)) error {
	var arena []byte
	if r.memory == memoryHeap {
		arena = make([]byte, r.arena)
	} else {
		m, err := r.node.Alloc(r.arena)
		if err != nil {
			return err
		}
		arena = m.Bytes()
	}
	ms := make([]*measurement, len(r.specs))
	for i, s := range r.specs {
		ms[i] = newMeasurement(s)
	}
	for range r.rounds {
		for _, m := range ms {
			what := strings.Join(strings.Fields(fmt.Sprint(m.pattern, " ", m.axis, " ", formatSize(int64(m.bytes)))), " ")
			progress(r.provider + " " + r.memory + " " + what)
			if err := r.round(ctx, job, m, arena); err != nil {
				return fmt.Errorf("%s: %s in %s memory: %w", r.provider, what, r.memory, err)
			}
		}
	}
	results := make([]Result, len(ms))
	for i, m := range ms {
		results[i] = m.result(layerChannel, r.provider, timer)
		if m.ranks == 0 && m.pattern != patternLocal {
			results[i].Suite = suiteChannel
		}
	}
	w.results(results)
	// Nobody leaves while the other still uses a channel.
	_, err := share(ctx, job, struct{}{}, nil)
	return err
}

func (r *channelRun) round(ctx context.Context, job exchanger, m *measurement, arena []byte) (err error) {
	s, err := declareSeries(r.node, m, arena)
	if err != nil {
		return err
	}
	if m.verify && !m.verified {
		if err := s.verify(ctx); err != nil {
			return err
		}
		m.verified = true
	}
	if err := m.take(ctx, job, s); err != nil {
		return err
	}
	return s.close()
}

// declareSeries declares the channels of a measurement, in memory of arena.
func declareSeries(n *node, m *measurement, arena []byte) (channelSeries, error) {
	switch m.pattern {
	case patternHalo:
		return declareHalo(n, m.spec, arena)
	case patternBW, patternBiBW, patternRate:
		return declareWindows(n, m, arena)
	}
	return declareToken(n, m, arena)
}

// Buffers begin at pages, and messages that have one together at cache lines.
const (
	pageBytes = 4096
	lineBytes = 64
)

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// strideOf is how far apart the messages of a window are.
func strideOf(bytes int) int { return roundUp(bytes+guard, lineBytes) }

// arenaSize is what declareSeries needs.
func arenaSize(s *spec) int {
	switch s.pattern {
	case patternHalo:
		return haloArena(s)
	case patternBW, patternBiBW, patternRate:
		return 2 * roundUp(streamWindow(s.window, s.bytes)*strideOf(s.bytes), pageBytes)
	}
	return 2 * roundUp(strideOf(s.bytes), pageBytes)
}

// messages are channels of one size, of which each has memory of its own.
type messages struct {
	declarations
	op    string
	bytes int
	from  int      // whose messages arrive here
	outs  [][]byte // each with its guard
	ins   [][]byte
}

// carve takes the memory of count messages each way from the arena.
func (s *messages) carve(arena []byte, count int) {
	stride := strideOf(s.bytes)
	for i := range count {
		s.outs = append(s.outs, arena[i*stride:][:s.bytes+guard])
	}
	arena = arena[roundUp(count*stride, pageBytes):]
	for i := range count {
		s.ins = append(s.ins, arena[i*stride:][:s.bytes+guard])
	}
}

func (s *messages) layout(buf []byte) channel.Layout { return channel.Contiguous(buf[:s.bytes]) }

func (s *messages) over() error   { return nil }
func (s *messages) finish() error { return nil }

// verifyBy is verify with the run that moves every message once.
func (s *messages) verifyBy(ctx context.Context, run func(int, []int64) error, receives bool) error {
	seed := func(rank, i int) uint64 { return seedFor(rank, s.bytes, s.op) + uint64(i)<<32 }
	for i := range s.outs {
		fillPattern(s.outs[i][:s.bytes], seed(s.node.Rank(), i))
		fillGuard(s.ins[i])
	}
	if _, err := share(ctx, s.node, struct{}{}, nil); err != nil {
		return err
	}
	err := run(1, nil)
	if err != nil {
		return err
	}
	for i := range s.ins {
		if receives {
			err = errors.Join(err, checkPattern(s.op, s.ins[i], s.bytes, seed(s.from, i)))
		}
	}
	_, err = share(ctx, s.node, struct{}{}, err)
	return err
}

// token is one message that goes from rank to rank and comes back: to and fro
// between two, round a ring of more, and within one rank from one handle to
// another.
//
//	rank 0                      the others
//	start send, receive         start receive
//	wait for both  ── token ──▶ wait for it
//	        ◀── token ───────── start send, and the next receive; wait for the send
type token struct {
	messages
	out, in *channel.Handle
}

func declareToken(n *node, m *measurement, arena []byte) (*token, error) {
	left, right := (n.Rank()+n.Size()-1)%n.Size(), (n.Rank()+1)%n.Size()
	s := &token{messages: messages{declarations: declarations{node: n}, op: m.op.name, bytes: m.bytes, from: left}}
	s.carve(arena, 1)
	s.out = s.send(s.layout(s.outs[0]), right)
	s.in = s.receive(s.layout(s.ins[0]), left)
	return s, s.err
}

func (s *token) verify(ctx context.Context) error { return s.verifyBy(ctx, s.run, true) }

func (s *token) run(n int, samples []int64) error {
	switch {
	case s.node.Size() == 1:
		return s.keep(n, samples)
	case s.node.Rank() == 0:
		return s.lead(n, samples)
	}
	return s.pass(n, samples)
}

// lead is run at rank 0, where the token starts.
func (s *token) lead(n int, samples []int64) error {
	last := nanos()
	for i := range n {
		if err := s.out.Start(); err != nil {
			return err
		}
		if err := s.in.Start(); err != nil {
			return err
		}
		if err := s.out.Wait(); err != nil {
			return err
		}
		if err := s.in.Wait(); err != nil {
			return err
		}
		if samples != nil {
			now := nanos()
			samples[i] = now - last
			last = now
		}
	}
	return nil
}

// pass is run at the other ranks.
func (s *token) pass(n int, samples []int64) error {
	if err := s.in.Start(); err != nil {
		return err
	}
	last := nanos()
	for i := range n {
		if err := s.in.Wait(); err != nil {
			return err
		}
		if err := s.out.Start(); err != nil {
			return err
		}
		if i+1 < n {
			if err := s.in.Start(); err != nil {
				return err
			}
		}
		if err := s.out.Wait(); err != nil {
			return err
		}
		if samples != nil {
			now := nanos()
			samples[i] = now - last
			last = now
		}
	}
	return nil
}

// keep is run within one rank: both handles are started, and tested until both
// are over.
func (s *token) keep(n int, samples []int64) error {
	last := nanos()
	for i := range n {
		if err := s.out.Start(); err != nil {
			return err
		}
		if err := s.in.Start(); err != nil {
			return err
		}
		if err := testUntilOver(s.in); err != nil {
			return err
		}
		if err := testUntilOver(s.out); err != nil {
			return err
		}
		if samples != nil {
			now := nanos()
			samples[i] = now - last
			last = now
		}
	}
	return nil
}

func testUntilOver(h *channel.Handle) error {
	for {
		if done, err := h.Test(); done {
			return err
		}
	}
}

// channelWindows starts many handles at once, one way or both, waits for all of
// them, and has the receiver say that it has all: the last byte counts.
type channelWindows struct {
	messages
	both  bool
	sends []*channel.Handle
	recvs []*channel.Handle
	ack   *channel.Handle
}

// Streams of messages and of their acknowledgement.
const (
	streamMessages = 0
	streamAck      = 1
)

func declareWindows(n *node, m *measurement, arena []byte) (*channelWindows, error) {
	other := 1 - n.Rank()
	s := &channelWindows{messages: messages{declarations: declarations{node: n, stream: streamMessages}, op: m.op.name, bytes: m.bytes, from: other},
		both: m.pattern == patternBiBW}
	s.carve(arena, m.windowed)
	for i := range m.windowed {
		if s.both || n.Rank() == 0 {
			s.sends = append(s.sends, s.send(s.layout(s.outs[i]), other))
		}
		if s.both || n.Rank() != 0 {
			s.recvs = append(s.recvs, s.receive(s.layout(s.ins[i]), other))
		}
	}
	s.stream = streamAck
	ack := channel.Contiguous(make([]byte, 1))
	if n.Rank() == 0 {
		s.ack = s.receive(ack, other)
	} else {
		s.ack = s.send(ack, other)
	}
	return s, s.err
}

func (s *channelWindows) verify(ctx context.Context) error {
	return s.verifyBy(ctx, s.run, len(s.recvs) > 0)
}

func (s *channelWindows) run(n int, _ []int64) error {
	for range n {
		for _, list := range [...][]*channel.Handle{s.recvs, s.sends} {
			for _, h := range list {
				if err := h.Start(); err != nil {
					return err
				}
			}
		}
		for _, list := range [...][]*channel.Handle{s.sends, s.recvs} {
			for _, h := range list {
				if err := h.Wait(); err != nil {
					return err
				}
			}
		}
		if err := s.ack.Start(); err != nil {
			return err
		}
		if err := s.ack.Wait(); err != nil {
			return err
		}
	}
	return nil
}
