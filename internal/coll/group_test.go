package coll_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
)

// elem is the bytes of an element of all operations here.
const elem = 8

// sum is commutative: 64-bit integers modulo 2^64.
func sum(dst, a, b []byte) {
	for i := 0; i < len(dst); i += elem {
		binary.LittleEndian.PutUint64(dst[i:], binary.LittleEndian.Uint64(a[i:])+binary.LittleEndian.Uint64(b[i:]))
	}
}

// affine is associative and not commutative: of two maps x → mx + c modulo 2^32 the
// one that does a first.
func affine(dst, a, b []byte) {
	for i := 0; i < len(dst); i += elem {
		am, ac := binary.LittleEndian.Uint32(a[i:]), binary.LittleEndian.Uint32(a[i+4:])
		bm, bc := binary.LittleEndian.Uint32(b[i:]), binary.LittleEndian.Uint32(b[i+4:])
		binary.LittleEndian.PutUint32(dst[i:], am*bm)
		binary.LittleEndian.PutUint32(dst[i+4:], ac*bm+bc)
	}
}

// group is one collective as a whole: what all members' shapes are made from.
type group struct {
	kind      coll.Kind
	algorithm coll.Algorithm
	size      int
	root      int
	count     int
	counts    []int                  // by member; nil: count
	agreed    bool                   // counts are known to all
	between   func(from, to int) int // elements in Alltoall; nil: count
	ordered   bool
	segment   int
	inPlace   bool
	combine   func(dst, a, b []byte) // nil: affine or sum, as ordered says
}

func (g *group) String() string {
	return fmt.Sprintf("%v by %v: %d members, root %d, %d elements, counts %v (agreed %v), v %v, ordered %v, in place %v",
		g.kind, g.algorithm, g.size, g.root, g.count, g.counts, g.agreed, g.between != nil, g.ordered, g.inPlace)
}

// shape is the collective as one member sees it, without anything that this member
// need not know.
func (g *group) shape(rank int) *coll.Shape {
	s := &coll.Shape{
		Kind: g.kind, Rank: rank, Size: g.size, Root: g.root, Elem: elem, Count: g.count,
		Counts: g.counts, Agreed: g.agreed, Ordered: g.ordered, Segment: g.segment,
	}
	if g.counts != nil && !g.agreed && rank != g.root && (g.kind == coll.Gather || g.kind == coll.Scatter) {
		s.Counts = make([]int, g.size)
		for i := range s.Counts {
			s.Counts[i] = -99
		}
		s.Counts[rank] = g.counts[rank]
	}
	if g.between != nil {
		for i := range g.size {
			s.SendCounts = append(s.SendCounts, g.between(rank, i))
			s.RecvCounts = append(s.RecvCounts, g.between(i, rank))
		}
	}
	return s
}

// of is the elements of a member's block.
func (g *group) of(member int) int {
	if g.counts != nil {
		return g.counts[member]
	}
	return g.count
}

func (g *group) pair(from, to int) int {
	if g.between != nil {
		return g.between(from, to)
	}
	return g.count
}

func (g *group) total() int {
	n := 0
	for i := range g.size {
		n += g.of(i)
	}
	return n
}

// lengths is the elements of In and Out of a member.
func (g *group) lengths(rank int) (in, out int) {
	atRoot := func(n int) int {
		if rank == g.root {
			return n
		}
		return 0
	}
	switch g.kind {
	case coll.Broadcast:
		return 0, g.count
	case coll.Reduce:
		return g.count, atRoot(g.count)
	case coll.Allreduce, coll.Scan, coll.Exscan:
		return g.count, g.count
	case coll.ReduceScatter:
		return g.total(), g.of(rank)
	case coll.Gather:
		return g.of(rank), atRoot(g.total())
	case coll.Scatter:
		return atRoot(g.total()), g.of(rank)
	case coll.Allgather:
		return g.of(rank), g.total()
	case coll.Alltoall:
		for i := range g.size {
			in, out = in+g.pair(rank, i), out+g.pair(i, rank)
		}
		return in, out
	}
	return 0, 0
}

// combiner is the function of the reduction.
func (g *group) combiner() func(dst, a, b []byte) {
	switch {
	case g.combine != nil:
		return g.combine
	case g.ordered:
		return affine
	}
	return sum
}

// value is the element that a member gives.
func value(member, i int) uint64 {
	x := uint64(member)*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9 + 1
	x ^= x >> 29
	return x * 0x94d049bb133111eb
}

// given is what a member has before the collective.
func (g *group) given(rank int) []byte {
	n, _ := g.lengths(rank)
	if g.kind == coll.Broadcast && rank == g.root {
		n = g.count
	}
	var b []byte
	for i := range n {
		b = binary.LittleEndian.AppendUint64(b, value(rank, i))
	}
	return b
}

// begin is the element with which a member's block begins.
func (g *group) begin(member int) int {
	n := 0
	for i := range member {
		n += g.of(i)
	}
	return n
}

// wanted is what each member has afterwards, computed one after the other; nil where
// nothing is promised.
func (g *group) wanted() [][]byte {
	given := make([][]byte, g.size)
	for m := range given {
		given[m] = g.given(m)
	}
	fold := func(upTo int) []byte {
		acc := append([]byte(nil), given[0]...)
		for m := 1; m < upTo; m++ {
			g.combiner()(acc, acc, given[m])
		}
		return acc
	}
	out := make([][]byte, g.size)
	var folded, joined []byte
	switch g.kind {
	case coll.Reduce, coll.Allreduce, coll.ReduceScatter:
		folded = fold(g.size)
	case coll.Gather, coll.Allgather:
		for m := range given {
			joined = append(joined, given[m]...)
		}
	}
	for m := range out {
		switch g.kind {
		case coll.Broadcast:
			out[m] = given[g.root]
		case coll.Reduce:
			if m == g.root {
				out[m] = folded
			}
		case coll.Allreduce:
			out[m] = folded
		case coll.ReduceScatter:
			out[m] = folded[g.begin(m)*elem : (g.begin(m)+g.of(m))*elem]
		case coll.Scan:
			out[m] = fold(m + 1)
		case coll.Exscan:
			if m > 0 {
				out[m] = fold(m)
			}
		case coll.Gather:
			if m == g.root {
				out[m] = joined
			}
		case coll.Scatter:
			out[m] = given[g.root][g.begin(m)*elem : (g.begin(m)+g.of(m))*elem]
		case coll.Allgather:
			out[m] = joined
		case coll.Alltoall:
			for from := range given {
				at := 0
				for to := range m {
					at += g.pair(from, to)
				}
				out[m] = append(out[m], given[from][at*elem:(at+g.pair(from, m))*elem]...)
			}
		}
	}
	return out
}

// member is one of a group with its memory.
type member struct {
	in, out, scratch []byte
	run              *coll.Run
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xA5
	}
	return b
}

// join gives a member its memory and makes its run.
func (g *group) join(t testing.TB, n *colltest.Network, rank int, schedule *coll.Schedule) *member {
	_, out := g.lengths(rank)
	m := &member{in: g.given(rank), out: noise(out * elem), scratch: noise(coll.ScratchSize(schedule))}
	switch {
	case g.kind == coll.Broadcast:
		copy(m.out, m.in)
		m.in = nil
	case !g.inPlace:
	case g.kind == coll.Gather && rank != g.root, g.kind == coll.Scatter && rank != g.root, g.kind == coll.Reduce && rank != g.root:
	case g.kind == coll.Gather, g.kind == coll.Allgather:
		at := g.begin(rank) * elem
		m.in = m.out[at : at+copy(m.out[at:], m.in)]
	case g.kind == coll.Scatter, g.kind == coll.ReduceScatter:
		m.out = m.in[g.begin(rank)*elem:][:g.of(rank)*elem]
	case g.kind == coll.Alltoall:
	default:
		m.out = m.in
	}
	var err error
	m.run, err = coll.NewRun(n.Carrier(rank), schedule, m.in, m.out, m.scratch, g.combiner())
	require.NoError(t, err)
	return m
}

// header is that of a group's call.
func (g *group) header(rank int, sequence uint32) coll.Header {
	return coll.Header{Sequence: sequence, Signature: coll.Sign(g.shape(rank), g.algorithm, 1, 2)}
}

// headers are those of all members.
func (g *group) headers(sequence uint32) []coll.Header {
	h := make([]coll.Header, g.size)
	for i := range h {
		h[i] = g.header(i, sequence)
	}
	return h
}

// schedules builds those of all members.
func (g *group) schedules(t testing.TB) []*coll.Schedule {
	all := make([]*coll.Schedule, g.size)
	for rank := range all {
		s, err := coll.Build(g.algorithm, g.shape(rank))
		require.NoError(t, err, g)
		all[rank] = s
	}
	return all
}

// members joins all members to a network, with the schedules given or those of Build.
func (g *group) members(t testing.TB, n *colltest.Network, schedules []*coll.Schedule) []*member {
	all := make([]*member, g.size)
	for rank := range all {
		var s *coll.Schedule
		if schedules != nil {
			s = schedules[rank]
		} else {
			var err error
			s, err = coll.Build(g.algorithm, g.shape(rank))
			require.NoError(t, err, g)
		}
		all[rank] = g.join(t, n, rank, s)
	}
	return all
}

func runs(members []*member) []*coll.Run {
	r := make([]*coll.Run, len(members))
	for i, m := range members {
		r[i] = m.run
	}
	return r
}

// check runs the group once over the network and compares with the reference.
func (g *group) check(t testing.TB, n *colltest.Network, schedules []*coll.Schedule, random *rand.Rand) {
	members := g.members(t, n, schedules)
	for rank, err := range n.Drive(runs(members), g.headers(7), random) {
		require.NoError(t, err, "%v: member %d", g, rank)
	}
	wanted := g.wanted()
	for rank, m := range members {
		if wanted[rank] != nil {
			require.True(t, bytes.Equal(wanted[rank], m.out), "%v: member %d", g, rank)
		}
		if !g.inPlace && m.in != nil {
			require.True(t, bytes.Equal(g.given(rank), m.in), "%v: In of member %d was written", g, rank)
		}
		require.NoError(t, m.run.Close())
	}
}
