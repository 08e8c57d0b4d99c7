package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/channel"
)

// envRouter tells ranks where the router of their star is.
const envRouter = "SLUICE_BENCH_ROUTER"

const longLoss = `The ranks are in two network namespaces, which a third one joins that drops packets at random,
each way. Rank 1 sends, with so many messages outstanding. The figure itself is the time of a
message, from the start of its receive; rate what arrives in all. The connections are made
before, without loss. It needs root, and nft.`

// lossWords are the shares of packets, in percent, that can be lost.
var lossWords = []string{"0", "0.1", "0.2", "0.5", "1", "2", "5", "10"}

func measureLoss(ctx context.Context, b *bed, m *measurement) error {
	flows, err := newFlows(b, m)
	if err != nil {
		return err
	}
	s := flows[0]
	if err := s.move(10 * time.Millisecond); err != nil { // that connects
		return err
	}
	if b.Rank() == 0 {
		err = lose(m.loss)
	}
	if err := barrier(ctx, b, err); err != nil {
		return err
	}
	if err := s.move(m.o.time); err != nil {
		return err
	}
	if b.Rank() == 0 {
		err = lose(0)
	}
	if err := barrier(ctx, b, errors.Join(err, s.check())); err != nil {
		return err
	}
	m.addAll(s.samples)
	m.figure("rate", s.rate())
	return s.close()
}

const longIncast = `Rank 0 receives from all others, each in a network namespace of its own, that a router joins.
The figure itself is the rate of all together, sender that of each, and fairness Jain's index
of these: 1 if all get the same, 1/n if one of n gets all (RFC 5166). It needs root, and nft.`

func measureIncast(ctx context.Context, b *bed, m *measurement) error {
	flows, err := newFlows(b, m)
	if err != nil {
		return err
	}
	moveAll := func(d time.Duration) error { // all are done when it returns
		errs := make([]error, len(flows))
		var moving sync.WaitGroup
		for i, s := range flows {
			moving.Go(func() { errs[i] = s.move(d) })
		}
		moving.Wait()
		return barrier(ctx, b, errors.Join(errs...))
	}
	if err := moveAll(10 * time.Millisecond); err != nil { // that connects
		return err
	}
	began := nanos()
	if err := moveAll(m.o.time); err != nil {
		return err
	}
	took := nanos() - began
	var rates []float64
	bytes := 0
	for _, s := range flows {
		if err := s.check(); err != nil {
			return err
		}
		rates = append(rates, s.rate())
		bytes += len(s.samples) * s.bytes
		if err := s.close(); err != nil {
			return err
		}
	}
	m.add(float64(bytes) * 1e3 / float64(took))
	m.figure("sender", rates...)
	m.figure("fairness", jain(rates))
	return nil
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

// flow is messages from one rank to another, of which a window is outstanding. The last byte
// of each tells whether more follow.
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
func newFlows(b *bed, m *measurement) (list []*flow, err error) {
	if os.Getenv(envRouter) == "" {
		return nil, usagef("%s makes a network of its own, which a job that something else has started does not have", m.name)
	}
	peers := []int{0}
	if b.Rank() == 0 {
		peers = peers[:0]
		for rank := 1; rank < b.Size(); rank++ {
			peers = append(peers, rank)
		}
	}
	room := roundUp(m.bytes, lineBytes)
	memory, _, err := b.memory(&m.spec, len(peers)*m.windowed*room, 0)
	if err != nil {
		return nil, err
	}
	for _, peer := range peers {
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
		if s.err != nil {
			return nil, s.err
		}
		list = append(list, s)
	}
	return list, nil
}

func (s *flow) seed(from, slot int) uint64 { return seedFor(from, s.bytes, "flow") + uint64(slot) }

// check looks at the last message of each slot.
func (s *flow) check() error {
	if s.node.Rank() != 0 {
		return nil
	}
	for i, b := range s.memory[:min(len(s.memory), len(s.samples))] {
		if err := checkPattern("flow", b[:s.bytes-1], s.bytes-1, s.seed(s.peer, i)); err != nil {
			return err
		}
	}
	return nil
}

// move moves messages for so long, by the sender's clock.
func (s *flow) move(d time.Duration) error {
	s.samples = s.samples[:0]
	began := nanos()
	defer func() { s.took = nanos() - began }()
	started := make([]int64, len(s.handles))
	start := func(slot int) error {
		started[slot] = nanos()
		return s.handles[slot].Start()
	}
	wait := func(slot int) error {
		err := s.handles[slot].Wait()
		s.samples = append(s.samples, float64(nanos()-started[slot]))
		return err
	}
	if s.node.Rank() == 0 {
		return s.arrive(start, wait)
	}
	return s.leave(start, wait, began+int64(d))
}

// leave sends. Once it is time all messages of a window say so: as many receives have been
// started.
func (s *flow) leave(start, wait func(slot int) error, until int64) error {
	window := len(s.handles)
	for i, last := 0, -1; last < 0 || i <= last; i++ {
		slot, says := i%window, flowGoesOn
		if i >= window {
			if err := wait(slot); err != nil {
				return err
			}
		}
		if last < 0 && nanos() > until {
			last = i + window - 1
		}
		if last >= 0 {
			says = flowEnds
		}
		s.memory[slot][s.bytes-1] = says
		if err := start(slot); err != nil {
			return err
		}
	}
	// Of the last window each slot has one outstanding.
	for slot := range window {
		if err := wait(slot); err != nil {
			return err
		}
	}
	return nil
}

// arrive receives.
func (s *flow) arrive(start, wait func(slot int) error) error {
	window := len(s.handles)
	for slot := range window {
		if err := start(slot); err != nil {
			return err
		}
	}
	for i, ending := 0, 0; ending < window; i++ {
		slot := i % window
		if err := wait(slot); err != nil {
			return err
		}
		if s.memory[slot][s.bytes-1] == flowEnds {
			ending++
		} else if err := start(slot); err != nil {
			return err
		}
	}
	return nil
}

// rate is in MB/s.
func (s *flow) rate() float64 {
	return float64(len(s.samples)) * float64(s.bytes) * 1e3 / float64(s.took)
}
