package coll_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
)

// elem is the bytes of an element of all operations here.
const elem = colltest.Elem

// group is one collective as a whole: what all members' shapes are made from.
type group struct {
	colltest.Reference
	algorithm coll.Algorithm
	agreed    bool // counts are known to all
	segment   int
}

func (g *group) String() string {
	return fmt.Sprintf("%v by %v, agreed %v", &g.Reference, g.algorithm, g.agreed)
}

// shape is the collective as one member sees it, without anything that this member
// need not know.
func (g *group) shape(rank int) *coll.Shape {
	s := &coll.Shape{
		Kind: g.Kind, Rank: rank, Size: g.Size, Root: g.Root, Elem: elem, Count: g.Count,
		Counts: g.Counts, Agreed: g.agreed, Ordered: g.Ordered, Segment: g.segment,
	}
	if g.Counts != nil && !g.agreed && rank != g.Root && (g.Kind == coll.Gather || g.Kind == coll.Scatter) {
		s.Counts = make([]int, g.Size)
		for i := range s.Counts {
			s.Counts[i] = -99
		}
		s.Counts[rank] = g.Counts[rank]
	}
	if g.Between != nil {
		s.SendCounts, s.RecvCounts = g.Pairs(rank)
	}
	return s
}

// member is one of a group with its memory.
type member struct {
	in, out, scratch []byte
	run              *coll.Run
}

// join gives a member its memory and makes its run.
func (g *group) join(t testing.TB, n *colltest.Network, rank int, schedule *coll.Schedule) *member {
	m := &member{scratch: bytes.Repeat([]byte{0xA5}, coll.ScratchSize(schedule))}
	m.in, m.out = g.Memory(rank, func(n int) []byte { return make([]byte, n) })
	var err error
	m.run, err = coll.NewRun(n.Carrier(rank), schedule, m.in, m.out, m.scratch, g.Combiner())
	require.NoError(t, err)
	return m
}

// header is that of a group's call.
func (g *group) header(rank int, sequence uint32) coll.Header {
	return coll.Header{Sequence: sequence, Signature: coll.Sign(g.shape(rank), g.algorithm, 1, 2)}
}

// headers are those of all members.
func (g *group) headers(sequence uint32) []coll.Header {
	h := make([]coll.Header, g.Size)
	for i := range h {
		h[i] = g.header(i, sequence)
	}
	return h
}

// schedules builds those of all members.
func (g *group) schedules(t testing.TB) []*coll.Schedule {
	all := make([]*coll.Schedule, g.Size)
	for rank := range all {
		s, err := coll.Build(g.algorithm, g.shape(rank))
		require.NoError(t, err, g)
		all[rank] = s
	}
	return all
}

// members joins all members to a network, with the schedules given or those of Build.
func (g *group) members(t testing.TB, n *colltest.Network, schedules []*coll.Schedule) []*member {
	all := make([]*member, g.Size)
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
	wanted := g.Wanted()
	for rank, m := range members {
		if wanted[rank] != nil {
			require.True(t, bytes.Equal(wanted[rank], m.out), "%v: member %d", g, rank)
		}
		if !g.InPlace && m.in != nil {
			require.True(t, bytes.Equal(g.Given(rank), m.in), "%v: In of member %d was written", g, rank)
		}
		require.NoError(t, m.run.Close())
	}
}
