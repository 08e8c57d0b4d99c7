package main

import (
	"context"
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/sluice-hpc/sluice/qmp"
)

// suiteQMP is the suite of what is measured through package qmp, and of the peer that
// does what the C library does over MPI.
const suiteQMP = "qmp"

// How sums are called: the operation of their results.
const (
	qmpSumDouble      = "sum_double"
	qmpSumDoubleArray = "sum_double_array"
)

// openQMP makes the machine of the node.
func openQMP(ctx context.Context, b *bed) (err error) {
	b.qmp, err = qmp.New(b.Node, nil, qmp.WithContext(ctx))
	return err
}

func declareSums(_ context.Context, b *bed, m *measurement) (series, error) {
	if m.op = qmpSumDoubleArray; m.bytes == doubleBytes {
		m.op = qmpSumDouble
	}
	memory, _, err := b.memory(&m.spec, m.bytes+guard, 0)
	if err != nil {
		return nil, err
	}
	return newSums(b.qmp.DefaultComm(), m.spec, memory), nil
}

func newSums(c *qmp.Comm, m spec, memory []byte) *qmpSums {
	s := &qmpSums{spec: m, comm: c, memory: memory, x: doubles(memory[:m.bytes])}
	for rank := range c.NumberOfNodes() {
		s.seeds = append(s.seeds, seedFor(rank, m.bytes, m.op))
	}
	return s
}

// qmpSums adds up one double of each node, or several, in place, again and again: after
// the first time all nodes have the same, and from then on each sum is that times their
// number.
type qmpSums struct {
	spec
	comm   *qmp.Comm
	memory []byte // with its guard
	x      []float64
	seeds  []uint64 // of what each node gives
	done   int      // sums since prepare
}

func (s *qmpSums) run(n int, samples []int64) error {
	t := startLaps(samples)
	for i := range n {
		var err error
		if s.op == qmpSumDouble {
			err = s.comm.SumDouble(&s.x[0])
		} else {
			err = s.comm.SumDoubleArray(s.x)
		}
		if err != nil {
			return err
		}
		t.lap(i)
	}
	s.done += n
	return nil
}

func (s *qmpSums) close() error { return nil }

func (s *qmpSums) prepare() {
	fillGuard(s.memory)
	for i := range s.x {
		s.x[i] = wholeNumber(s.seeds[s.comm.NodeNumber()], i)
	}
	s.done = 0
}

// check compares the sums, and what lies behind them, with what must be there. Times
// another number than a power of two they are rounded in an order that is not known:
// then only the first is looked at.
func (s *qmpSums) check() error {
	nodes := s.comm.NumberOfNodes()
	if s.done > 1 && bits.OnesCount(uint(nodes)) != 1 {
		return nil
	}
	want := make([]byte, len(s.memory))
	fillGuard(want)
	for i := range s.x {
		v := 0.0
		for node := range nodes {
			v += wholeNumber(s.seeds[node], i)
		}
		v = math.Ldexp(v, (s.done-1)*bits.TrailingZeros(uint(nodes)))
		binary.NativeEndian.PutUint64(want[i*doubleBytes:], math.Float64bits(v))
	}
	return compareBytes(s.op, s.memory, want, s.bytes)
}

// qmpFaces is the exchange of haloExchange, by relative handles of a topology of one
// axis: faces of different axes of the lattice go over the same two wires.
type qmpFaces struct {
	haloExchange
	exchange *qmp.Handle // a multiple of all messages
}

func declareFaces(_ context.Context, b *bed, m *measurement) (series, error) {
	m.halo = haloPacked
	h, err := newHalo(b, m)
	if err != nil {
		return nil, err
	}
	s := &qmpFaces{haloExchange: *h}
	comm := b.qmp.DefaultComm()
	if !comm.LogicalTopologyIsDeclared() {
		if err := comm.DeclareLogicalTopology([]int{b.Size()}); err != nil {
			return nil, err
		}
	}
	var handles []*qmp.Handle
	for i, f := range s.faces {
		dir := []int{qmp.Minus, qmp.Plus}[i%2]
		block, size := blockOf(f.axis), m.faceLen()
		out, err := qmp.DeclareStridedMsgMem(s.field[f.at*block:], min(block, size), max(size/block, 1), latticeSide*block)
		if err != nil {
			return nil, err
		}
		in, err := qmp.DeclareMsgMem(f.into[:size])
		if err != nil {
			return nil, err
		}
		send, err := comm.DeclareSendRelative(out, 0, dir, qmp.DefaultPriority)
		if err != nil {
			return nil, err
		}
		receive, err := comm.DeclareReceiveRelative(in, 0, -dir, qmp.DefaultPriority)
		if err != nil {
			return nil, err
		}
		handles = append(handles, send, receive)
	}
	s.exchange, err = qmp.DeclareMultiple(handles...)
	return s, err
}

func (s *qmpFaces) run(n int, _ []int64) error {
	for range n {
		if err := s.exchange.Start(); err != nil {
			return err
		}
		if err := s.exchange.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func (s *qmpFaces) close() error { return s.exchange.CloseAll() }
