package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/coll"
)

// How a collective is called: part of the operation of its results.
const (
	callCalled   = "called"   // Group.Run
	callDeclared = "declared" // once, and started again and again
)

const doubleBytes = 8

// collectiveKind is the kind of collective that a pattern is named after.
func collectiveKind(pattern string) (coll.Kind, bool) { return coll.ParseKind(pattern) }

// isCollective says whether the pattern is a collective, exact sums among them.
func isCollective(pattern string) bool {
	_, ok := collectiveKind(pattern)
	return ok || pattern == patternExact
}

// collectiveBlocks is how many times the bytes of a measurement the memory is that a
// rank gives, and gets.
func collectiveBlocks(kind coll.Kind, ranks int) (src, dst int) {
	src, dst = 1, 1
	switch kind {
	case coll.Barrier:
		return 0, 0
	case coll.Broadcast:
		return 0, 1
	case coll.ReduceScatter, coll.Scatter:
		src = ranks
	case coll.Gather, coll.Allgather:
		dst = ranks
	case coll.Alltoall:
		src, dst = ranks, ranks
	}
	return src, dst
}

// collectiveArena is the memory that a collective needs.
func collectiveArena(s *spec) int {
	kind, _ := collectiveKind(s.pattern)
	src, dst := collectiveBlocks(kind, s.ranks)
	return roundUp(src*s.bytes, pageBytes) + roundUp(dst*s.bytes+guard, pageBytes)
}

// collectiveSeries does one collective of doubles again and again, of all ranks. The
// root of those that have one goes round, so that nobody runs ahead of the others.
type collectiveSeries struct {
	spec
	group    *channel.Group
	kind     coll.Kind
	in, out  []byte // what this rank gives, and gets; out with its guard
	src, dst []float64
	seeds    []uint64 // of what each rank gives
	roots    int
	root     int                   // of the next
	declared []*channel.Collective // by root; nil: it is called
	first    int                   // the root of the first since prepare
	done     int                   // collectives since prepare
}

func declareCollective(n *node, m *measurement, arena []byte) (*collectiveSeries, error) {
	kind, _ := collectiveKind(m.pattern)
	s := &collectiveSeries{spec: m.spec, group: n.group, kind: kind, roots: 1}
	if kind.Rooted() {
		s.roots = s.group.Size()
	}
	for rank := range s.group.Size() {
		s.seeds = append(s.seeds, seedFor(rank, m.bytes, m.pattern))
	}
	src, dst := collectiveBlocks(kind, s.group.Size())
	s.in = arena[:src*m.bytes]
	s.out = arena[roundUp(src*m.bytes, pageBytes):][:dst*m.bytes+guard]
	s.src, s.dst = doubles(s.in), doubles(s.out[:dst*m.bytes])
	if !m.declared {
		return s, nil
	}
	for root := range s.roots {
		c, err := s.group.Declare(s.operation(root))
		if err != nil {
			return nil, err
		}
		s.declared = append(s.declared, c)
	}
	return s, nil
}

// doubles are the elements that lie in b, which begins at a multiple of their size.
func doubles(b []byte) []float64 {
	return unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/doubleBytes)
}

func (s *collectiveSeries) operation(root int) channel.Operation {
	switch s.kind {
	case coll.Barrier:
		return channel.Barrier()
	case coll.Broadcast:
		return channel.Broadcast(s.dst, root)
	case coll.Reduce:
		return channel.Reduce(channel.Sum, s.dst, s.src, root)
	case coll.Allreduce:
		return channel.Allreduce(channel.Sum, s.dst, s.src)
	case coll.ReduceScatter:
		return channel.ReduceScatter(channel.Sum, s.dst, s.src, nil)
	case coll.Scan:
		return channel.Scan(channel.Sum, s.dst, s.src)
	case coll.Exscan:
		return channel.Exscan(channel.Sum, s.dst, s.src)
	case coll.Gather:
		return channel.Gather(s.dst, s.src, root)
	case coll.Scatter:
		return channel.Scatter(s.dst, s.src, root)
	case coll.Allgather:
		return channel.Allgather(s.dst, s.src)
	}
	return channel.Alltoall(s.dst, s.src)
}

// run makes n collectives.
func (s *collectiveSeries) run(n int, samples []int64) error {
	t := startLaps(samples)
	for i := range n {
		if err := s.once(); err != nil {
			return err
		}
		t.lap(i)
	}
	s.done += n
	return nil
}

func (s *collectiveSeries) once() error {
	root := s.root
	if s.root++; s.root == s.roots {
		s.root = 0
	}
	if s.declared == nil {
		return s.group.Run(context.Background(), s.operation(root))
	}
	c := s.declared[root]
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait(context.Background())
}

func (s *collectiveSeries) over() error   { return nil }
func (s *collectiveSeries) finish() error { return nil }

func (s *collectiveSeries) close() error {
	for _, c := range s.declared {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// turns are the collectives until each root has been one.
func (s *collectiveSeries) turns() int { return s.roots }

// value is element i of what a rank gives: small whole numbers, whose sums are exact
// in whatever order.
func (s *collectiveSeries) value(rank, i int) float64 {
	return float64(patternWord(s.seeds[rank], i) & (1<<20 - 1))
}

// sum is the sum of element i of some ranks.
func (s *collectiveSeries) sum(from, to, i int) float64 {
	v := 0.0
	for rank := from; rank < to; rank++ {
		v += s.value(rank, i)
	}
	return v
}

func (s *collectiveSeries) prepare() {
	me := s.group.Rank()
	s.first, s.done = s.root, 0
	for i := range s.src {
		s.src[i] = s.value(me, i)
	}
	fillGuard(s.out)
	if s.kind == coll.Broadcast && me == s.root {
		for i := range s.dst {
			s.dst[i] = s.value(me, i)
		}
	}
}

// check compares what this rank has got, and what lies behind it, with what must be
// there.
func (s *collectiveSeries) check() error {
	want := make([]byte, len(s.out))
	fillGuard(want)
	if s.gets() {
		for i := range s.dst {
			binary.NativeEndian.PutUint64(want[i*doubleBytes:], math.Float64bits(s.expected(i)))
		}
	}
	if bytes.Equal(s.out, want) {
		return nil
	}
	for at, b := range want {
		if s.out[at] != b {
			return &CorruptError{Op: s.pattern + " " + s.op.name, Bytes: len(s.out) - guard, Offset: at, Got: s.out[at], Want: b}
		}
	}
	return nil
}

// gets says whether anything was to be written to this rank's memory since prepare.
func (s *collectiveSeries) gets() bool {
	me := s.group.Rank()
	switch s.kind {
	case coll.Reduce, coll.Gather:
		return (me-s.first+s.roots)%s.roots < s.done
	case coll.Exscan:
		return me > 0
	}
	return true
}

// expected is element i of what this rank has got.
func (s *collectiveSeries) expected(i int) float64 {
	me, count := s.group.Rank(), s.bytes/doubleBytes
	switch s.kind {
	case coll.Broadcast: // all that follow copy what the first has left
		return s.value(s.first, i)
	case coll.ReduceScatter:
		return s.sum(0, s.group.Size(), me*count+i)
	case coll.Scan:
		return s.sum(0, me+1, i)
	case coll.Exscan:
		return s.sum(0, me, i)
	case coll.Gather, coll.Allgather:
		return s.value(i/count, i%count)
	case coll.Scatter:
		return s.value((s.first+s.done-1)%s.roots, me*count+i)
	case coll.Alltoall:
		return s.value(i/count, me*count+i%count)
	}
	return s.sum(0, s.group.Size(), i)
}
