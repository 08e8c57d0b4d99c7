package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/sluice-hpc/sluice/internal/coll"
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

// declareQMP declares a measurement of suiteQMP.
func declareQMP(n *node, m *measurement, arena []byte) (channelSeries, error) {
	if m.pattern == patternHalo {
		return declareQMPFaces(n, m.spec, arena)
	}
	s := &qmpSums{spec: m.spec, comm: n.qmp.DefaultComm(), memory: arena[:m.bytes+guard]}
	s.x = doubles(s.memory[:m.bytes])
	for rank := range s.comm.NumberOfNodes() {
		s.seeds = append(s.seeds, seedFor(rank, m.bytes, m.pattern))
	}
	return s, nil
}

// What bench qmp faces also exchanges: the halo of qmp/examples/wilson, whose sites send
// half spinors, of 96 bytes, which lie together.
const (
	axisHalf  = "half"
	halfBytes = faceBytes / 2
)

var qmpAxes = append(slices.Clone(axes), axisHalf)

// qmpArena is the memory that declareQMP needs.
func qmpArena(s *spec) int {
	if s.pattern == patternHalo {
		return haloArena(s)
	}
	return roundUp(s.bytes+guard, pageBytes)
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
		if s.op.name == qmpSumDouble {
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

func (s *qmpSums) over() error   { return nil }
func (s *qmpSums) finish() error { return nil }
func (s *qmpSums) close() error  { return nil }

// value is element i of what a node gives: small whole numbers.
func (s *qmpSums) value(node, i int) float64 {
	return float64(patternWord(s.seeds[node], i) & (1<<20 - 1))
}

func (s *qmpSums) prepare() {
	fillGuard(s.memory)
	for i := range s.x {
		s.x[i] = s.value(s.comm.NodeNumber(), i)
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
			v += s.value(node, i)
		}
		v = math.Ldexp(v, (s.done-1)*bits.TrailingZeros(uint(nodes)))
		binary.NativeEndian.PutUint64(want[i*doubleBytes:], math.Float64bits(v))
	}
	if bytes.Equal(s.memory, want) {
		return nil
	}
	for at, b := range want {
		if s.memory[at] != b {
			return &CorruptError{Op: s.op.name, Bytes: s.bytes, Offset: at, Got: s.memory[at], Want: b}
		}
	}
	return nil
}

// qmpFaces is the exchange of haloExchange, by relative handles of a topology of one
// axis: faces of different axes of the lattice go over the same two wires.
type qmpFaces struct {
	haloExchange
	exchange *qmp.Handle // a multiple of all messages
}

func declareQMPFaces(n *node, m spec, arena []byte) (*qmpFaces, error) {
	s := &qmpFaces{haloExchange: haloExchange{declarations: declarations{node: n}, spec: m, field: arena[:fieldBytes]}}
	arena = arena[fieldBytes:]
	comm := n.qmp.DefaultComm()
	if !comm.LogicalTopologyIsDeclared() {
		if err := comm.DeclareLogicalTopology([]int{n.Size()}); err != nil {
			return nil, err
		}
	}
	var handles []*qmp.Handle
	for _, axis := range axesOf(m.axis) {
		block := siteBytes
		for range axis {
			block *= latticeSide
		}
		size := faceBytes
		if m.axis == axisHalf {
			size = halfBytes
		}
		for up, at := range []int{0, latticeSide - 1} { // down, then up
			dir, from := qmp.Minus, (n.Rank()+1)%n.Size()
			if up == 1 {
				dir, from = qmp.Plus, (n.Rank()+n.Size()-1)%n.Size()
			}
			f := haloFace{axis: axis, at: at, from: from, into: arena[:size+guard], packed: true}
			arena = arena[strideOf(faceBytes):]
			s.faces = append(s.faces, f)
			out, err := qmp.DeclareStridedMsgMem(s.field[at*block:], min(block, size), max(size/block, 1), latticeSide*block)
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
	}
	var err error
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

// titleOfQMP says what the figures of a table are.
func titleOfQMP(r *Result, how string) string {
	if r.Pattern == coll.Allreduce.String() {
		return fmt.Sprintf("%s qmp, %s of %d nodes, in place, ns; %s", r.Provider, r.Op, r.Ranks, how)
	}
	return fmt.Sprintf("%s qmp, faces in %s memory, MB/s (10^6 bytes) that each of %d nodes sends, µs of an exchange", r.Provider, r.Op, r.Ranks)
}
