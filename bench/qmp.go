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
func openQMP(ctx context.Context, b *bed) {
	b.qmp = must1(qmp.New(b.Node, nil, qmp.WithContext(ctx)))
}

func declareSums(_ context.Context, b *bed, m *measurement) series {
	if m.op = qmpSumDoubleArray; m.bytes == doubleBytes {
		m.op = qmpSumDouble
	}
	memory, _ := b.memory(&m.spec, m.bytes+guard, 0)
	return newSums(b.qmp.DefaultComm(), m.spec, memory)
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

func (s *qmpSums) run(n int, samples []int64) {
	repeat(n, samples, func() {
		if s.op == qmpSumDouble {
			must(s.comm.SumDouble(&s.x[0]))
		} else {
			must(s.comm.SumDoubleArray(s.x))
		}
	})
	s.done += n
}

func (s *qmpSums) close() {}

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
func (s *qmpSums) check() {
	nodes := s.comm.NumberOfNodes()
	if s.done > 1 && bits.OnesCount(uint(nodes)) != 1 {
		return
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
	compareBytes(s.op, s.memory, want, s.bytes)
}

// declareFaces is the exchange of haloExchange, by relative handles of a topology of one
// axis: faces of different axes of the lattice go over the same two wires.
func declareFaces(_ context.Context, b *bed, m *measurement) series {
	m.halo = haloPacked
	s := newHalo(b, m)
	comm := b.qmp.DefaultComm()
	if !comm.LogicalTopologyIsDeclared() {
		must(comm.DeclareLogicalTopology([]int{b.Size()}))
	}
	var handles []*qmp.Handle
	for i, f := range s.faces {
		dir := []int{qmp.Minus, qmp.Plus}[i%2]
		block, size := blockOf(f.axis), m.faceLen()
		out := must1(qmp.DeclareStridedMsgMem(s.field[f.at*block:], min(block, size), max(size/block, 1), latticeSide*block))
		in := must1(qmp.DeclareMsgMem(f.into[:size]))
		handles = append(handles, must1(comm.DeclareSendRelative(out, 0, dir, qmp.DefaultPriority)),
			must1(comm.DeclareReceiveRelative(in, 0, -dir, qmp.DefaultPriority)))
	}
	s.all = multipleOfQMP{must1(qmp.DeclareMultiple(handles...))}
	return s
}

// multipleOfQMP is closed with the handles that it is of.
type multipleOfQMP struct{ *qmp.Handle }

func (m multipleOfQMP) Close() error { return m.CloseAll() }
