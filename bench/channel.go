package main

import (
	"context"
	"fmt"
	"strings"
)

// channelRun is one table of results: one pattern in one kind of memory.
type channelRun struct {
	rounds
	node     *node
	provider string
	memory   string
	arena    int // bytes that the largest needs
}

func (r *channelRun) unavailable() string { return "" }

// channelSeries is a series over channels.
type channelSeries interface {
	series
	checked
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
	ms, err := r.measureBy(func(m *measurement) error {
		what := strings.Join(strings.Fields(fmt.Sprint(m.pattern, " ", m.axis, " ", formatSize(int64(m.bytes)))), " ")
		progress(r.provider + " " + r.memory + " " + what)
		if err := r.round(ctx, job, m, arena); err != nil {
			return fmt.Errorf("%s: %s in %s memory: %w", r.provider, what, r.memory, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	results := make([]Result, len(ms))
	for i, m := range ms {
		results[i] = m.result(layerChannel, r.provider, timer)
		switch {
		case m.suite == suiteQMP:
			results[i].Layer, results[i].Suite = layerQMP, suiteQMP
		case m.pattern == patternAddSlice:
			results[i].Layer = layerExact
		case m.ranks == 0 && m.pattern != patternLocal:
			results[i].Suite = suiteChannel
		}
	}
	for _, part := range splitResults(results) {
		w.results(part)
	}
	// Nobody leaves while the other still uses a channel.
	_, err = share(ctx, job, struct{}{}, nil)
	return err
}

func (r *channelRun) round(ctx context.Context, job exchanger, m *measurement, arena []byte) (err error) {
	s, err := declareSeries(r.node, m, arena)
	if err != nil {
		return err
	}
	if err := takeChecked(ctx, job, m, s); err != nil {
		return err
	}
	return s.close()
}

// takeChecked measures one round of a series, and checks what it moves if that is
// asked for. The messages are made either way: memory that nobody has written may
// be one page of zeros many times over, which fits every cache.
func takeChecked(ctx context.Context, job exchanger, m *measurement, s channelSeries) error {
	if m.verify {
		if err := moveOnce(ctx, job, s); err != nil {
			return err
		}
	} else {
		s.prepare()
	}
	if err := m.take(ctx, job, s); err != nil {
		return err
	}
	m.verified = m.verify
	return nil
}

// turning is a series of which one iteration is not like the next.
type turning interface {
	// turns is after how many iterations they are the same again.
	turns() int
}

// moveOnce moves all messages once, of each turn, and checks them. All ranks call it;
// all fail if one finds something wrong.
func moveOnce(ctx context.Context, job exchanger, s channelSeries) error {
	turns := 1
	if t, ok := s.(turning); ok {
		turns = t.turns()
	}
	for range turns {
		s.prepare()
		if _, err := share(ctx, job, struct{}{}, nil); err != nil {
			return err
		}
		if err := s.run(1, nil); err != nil {
			return err
		}
		if _, err := share(ctx, job, struct{}{}, s.check()); err != nil {
			return err
		}
	}
	return nil
}

// declareSeries declares the channels of a measurement, in memory of arena.
func declareSeries(n *node, m *measurement, arena []byte) (channelSeries, error) {
	if m.suite == suiteQMP {
		return declareQMP(n, m, arena)
	}
	switch m.pattern {
	case patternHalo:
		return declareHalo(n, m.spec, arena)
	case patternBW, patternBiBW, patternRate:
		return declareWindows(n, m, arena)
	case patternExact:
		return declareExact(n), nil
	case patternAddSlice:
		return declareAddSlice(m, arena), nil
	}
	if isCollective(m.pattern) {
		return declareCollective(n, m, arena)
	}
	if m.late {
		return declareAnnounced(n, m, arena)
	}
	return declareToken(n, m, arena)
}

// Buffers begin at pages, and messages that have one together at cache lines.
const (
	pageBytes = 4096
	lineBytes = 64
)

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// strideOf is how far apart the messages of a window are, whose memory is so long.
func strideOf(span int) int { return roundUp(span+guard, lineBytes) }

// arenaSize is what declareSeries needs.
func arenaSize(s *spec) int {
	switch s.pattern {
	case patternHalo:
		return haloArena(s)
	case patternBW, patternBiBW, patternRate:
		return 2 * roundUp(streamWindow(s.window, s.bytes)*strideOf(s.extent().span()), pageBytes)
	}
	return 2 * roundUp(strideOf(s.extent().span()), pageBytes)
}

// messages are channels of one size, of which each has memory of its own.
type messages struct {
	declarations
	extent        // of what is sent
	into   extent // of what is received
	op     string
	from   int      // whose messages arrive here
	outs   [][]byte // each with its guard
	ins    [][]byte // that messages arrive in, each with its guard
}

// carve takes memory from the arena for count messages each way, and for those
// that this rank sends and receives.
func (s *messages) carve(arena []byte, count, sends, receives int) {
	span := s.span()
	stride := strideOf(span)
	for i := range sends {
		s.outs = append(s.outs, arena[i*stride:][:span+guard])
	}
	arena = arena[roundUp(count*stride, pageBytes):]
	for i := range receives {
		s.ins = append(s.ins, arena[i*stride:][:s.into.span()+guard])
	}
}

// seed tells the messages of all ranks, and those of one, apart.
func (s *messages) seed(rank, i int) uint64 { return seedFor(rank, s.bytes, s.op) + uint64(i)<<32 }

func (s *messages) prepare() {
	for i, out := range s.outs {
		s.fill(out, s.seed(s.node.Rank(), i))
	}
	for _, in := range s.ins {
		fillGuard(in)
	}
}

func (s *messages) check() error {
	for i, in := range s.ins {
		if err := s.into.check(s.op, in, s.seed(s.from, i)); err != nil {
			return err
		}
	}
	return nil
}
