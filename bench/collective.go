package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"slices"
	"sort"
	"strings"
	"unsafe"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/qmp"
)

const longCollective = `The figure is the time of one collective in a loop without a clock, on rank 0, as in
IMB: all ranks begin together, and only the collective itself keeps them together.
The root, if there is one, rotates over the ranks. Reductions add doubles. Every
collective, with every root, is verified before it is timed, and so are the timed ones.
With more ranks than CPUs, consecutive ranks share one.`

const longUneven = longCollective + `
The blocks differ in length, and the size is the mean: of n ranks, block i is longer by
(2i+1-n)/n of the size, where size/n is rounded down to whole doubles, so that none is
empty. In an alltoallv block (r+s) mod n goes from rank r to rank s.`

// How a collective is called: part of the operation of its results.
const (
	callCalled   = "called"   // Group.Run
	callDeclared = "declared" // once, and started again and again
)

const (
	doubleBytes = 8

	// What exact sums are compared with: allreduces of 8 and of 64 doubles.
	besideFew  = 8 * doubleBytes
	besideMany = 64 * doubleBytes
)

// collectives are the patterns of all kinds, and of exact sums.
func collectives() []*pattern {
	const options = "provider ranks=2 each batch=0 "
	var list []*pattern
	for _, name := range append(collectiveNames(), unevenNames...) {
		k, _ := collectiveKind(name)
		p := &pattern{name: name, layer: layerChannel, top: true, unit: unitLatency, ranks: anyRanks, declare: declareCollective, open: openGroup,
			vary: []dimension{byMemory, byCall, bySize}, options: options + "call=called,declared memory=alloc sizes=8:1M doubles",
			short: "Measure " + name + " of all ranks", long: longCollective}
		if k == coll.Barrier {
			p.vary, p.options = []dimension{byCall}, options+"call=called,declared"
		}
		if p.what = whatOf(k); isUneven(name) {
			p.what, p.long = "mean "+p.what, longUneven
		}
		list = append(list, p)
	}
	return append(list, &pattern{name: patternExact, layer: layerChannel, top: true, unit: unitLatency, ranks: anyRanks, declare: declareExact, open: openGroup,
		vary: []dimension{besideDoubles}, options: options, what: "of one accumulator",
		short: "Measure an allreduce of one exact accumulator, and of 8 and 64 doubles for comparison", long: longExact})
}

// whatOf describes the bytes of a collective, and what is done with them.
func whatOf(k coll.Kind) string {
	src, dst := collectiveBlocks(k, 2)
	switch {
	case k == coll.Barrier:
		return "all ranks"
	case k.Reduces() && max(src, dst) > 1:
		return "sum of doubles, bytes of each rank's block"
	case k.Reduces():
		return "sum of doubles"
	case max(src, dst) > 1:
		return "bytes of each rank's block"
	}
	return "bytes of the vector"
}

// collectiveNames are the names of all kinds, without exact sums and blocks that differ.
func collectiveNames() []string {
	var names []string
	for k := coll.Barrier; k <= coll.Alltoall; k++ {
		names = append(names, k.String())
	}
	return names
}

// unevenNames are the collectives whose blocks differ in length, as MPI names them.
var unevenNames = []string{"gatherv", "scatterv", "allgatherv", "alltoallv"}

func isUneven(pattern string) bool { return slices.Contains(unevenNames, pattern) }

// byCall follows byMemory: the operation is how it is called, and over what memory.
func byCall(o *options, list []spec) []spec {
	return vary(list, o.calls, func(s *spec, call string) {
		s.declared = call == callDeclared
		if s.op != s.name {
			call += " " + s.op
		}
		s.op = call
	})
}

// besideDoubles is both exact sums, and two allreduces.
func besideDoubles(_ *options, list []spec) []spec {
	with := func(bytes int, op string) spec {
		s := list[0]
		s.bytes, s.op = bytes, op
		return s
	}
	few, many := with(besideFew, calledAlloc), with(besideMany, calledAlloc)
	few.pattern = firstPattern(func(p *pattern) bool { return p.name == coll.Allreduce.String() && p.layer == layerChannel })
	many.pattern = few.pattern
	return []spec{with(narrowBytes, exactNarrow), with(exactBytes, exactWide), few, many}
}

func openGroup(ctx context.Context, b *bed) { b.group = must1(b.World(ctx)) }

// collectiveKind is the kind of collective that a pattern is named after.
func collectiveKind(pattern string) (coll.Kind, bool) {
	if isUneven(pattern) {
		pattern = strings.TrimSuffix(pattern, "v")
	}
	return coll.ParseKind(pattern)
}

// isCollective reports whether the pattern is a collective, including exact sums.
func isCollective(pattern string) bool {
	_, ok := collectiveKind(pattern)
	return ok || pattern == patternExact
}

// collectiveBlocks returns the memory that a rank sends and receives, in multiples of the bytes of
// a measurement.
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

// collectiveBytes returns the bytes that a rank sends and receives.
func (s *spec) collectiveBytes(rank int) (src, dst int) {
	kind, _ := collectiveKind(s.name)
	bytes := func(blocks int) int {
		if blocks == 1 && isUneven(s.name) {
			return (s.blockAt(rank, rank+1) - s.blockAt(rank, rank)) * doubleBytes
		}
		return blocks * s.bytes
	}
	src, dst = collectiveBlocks(kind, s.ranks)
	return bytes(src), bytes(dst)
}

// blockAt returns where block i of a rank's memory begins, in doubles: see longUneven. The peers'
// programs use the same.
func (s *spec) blockAt(rank, i int) int {
	count, n := s.bytes/doubleBytes, s.ranks
	if !isUneven(s.name) {
		return i * count
	}
	if kind, _ := collectiveKind(s.name); kind != coll.Alltoall {
		rank = 0
	}
	at := func(i int) int { return i*count - i%n*(n-i%n)*(count/n) }
	return at(rank+i) - at(rank)
}

// collectiveSeries repeats one collective of doubles, of all ranks. The
// root of those that have one rotates, so that no rank runs ahead of the others.
type collectiveSeries struct {
	spec
	group    *channel.Group
	kind     coll.Kind
	in, out  []byte // what this rank sends, and receives; out with its guard
	src, dst []float64
	counts   []int    // of its blocks, if they differ; nil: they do not
	seeds    []uint64 // of the data of each rank
	roots    int
	root     int                   // of the next
	handles  []*channel.Collective // by root; nil: it is called
	first    int                   // the root of the first since prepare
	done     int                   // collectives since prepare
}

func declareCollective(_ context.Context, b *bed, m *measurement) series {
	src, dst := m.collectiveBytes(b.Rank())
	in, out := b.memory(&m.spec, src, dst+guard)
	s := newCollective(b.group, m.spec, in, out)
	for root := 0; m.declared && root < s.roots; root++ {
		s.handles = append(s.handles, must1(s.group.Declare(s.operation(root))))
	}
	return s
}

func newCollective(g *channel.Group, m spec, in, out []byte) *collectiveSeries {
	kind, _ := collectiveKind(m.name)
	s := &collectiveSeries{spec: m, group: g, kind: kind, roots: 1, in: in, out: out, src: doubles(in), dst: doubles(out[:len(out)-guard])}
	if kind.Rooted() {
		s.roots = g.Size()
	}
	for rank := range g.Size() {
		s.seeds = append(s.seeds, seedFor(rank, m.bytes, m.name))
		if isUneven(m.name) {
			s.counts = append(s.counts, m.blockAt(g.Rank(), rank+1)-m.blockAt(g.Rank(), rank))
		}
	}
	return s
}

// doubles are the elements that lie in b, which begins at a multiple of their size.
func doubles(b []byte) []float64 {
	return unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/doubleBytes)
}

func (s *collectiveSeries) operation(root int) channel.Operation {
	switch s.name {
	case "gatherv":
		return channel.Gatherv(s.dst, s.counts, s.src, root)
	case "scatterv":
		return channel.Scatterv(s.dst, s.src, s.counts, root)
	case "allgatherv":
		return channel.Allgatherv(s.dst, s.counts, s.src)
	case "alltoallv":
		return channel.Alltoallv(s.dst, s.counts, s.src, s.counts)
	}
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

func (s *collectiveSeries) run(n int, samples []int64) {
	repeat(n, samples, s.once)
	s.done += n
}

func (s *collectiveSeries) once() {
	root := s.root
	if s.root++; s.root == s.roots {
		s.root = 0
	}
	if s.handles == nil {
		must(s.group.Run(context.Background(), s.operation(root)))
		return
	}
	c := s.handles[root]
	must(c.Start())
	must(c.Wait())
}

func (s *collectiveSeries) close() {
	for _, c := range s.handles {
		must(c.Close())
	}
}

// turns returns the number of collectives until each rank has been the root.
func (s *collectiveSeries) turns() int { return s.roots }

// wholeNumber returns element i of the data with a seed: small, so that sums are exact in any
// order.
func wholeNumber(seed uint64, i int) float64 { return float64(patternWord(seed, i) & (1<<20 - 1)) }

func (s *collectiveSeries) value(rank, i int) float64 { return wholeNumber(s.seeds[rank], i) }

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

// check compares the result on this rank, and the guard after it, with the expected bytes.
func (s *collectiveSeries) check() {
	want := make([]byte, len(s.out))
	fillGuard(want)
	if s.gets() {
		for i := range s.dst {
			binary.NativeEndian.PutUint64(want[i*doubleBytes:], math.Float64bits(s.expected(i)))
		}
	}
	compareBytes(s.name+" "+s.op, s.out, want, len(s.out)-guard)
}

// gets reports whether this rank's memory should have been written since prepare.
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

// expected returns element i of the result on this rank.
func (s *collectiveSeries) expected(i int) float64 {
	me := s.group.Rank()
	// The block, where dst has several.
	from := sort.Search(s.group.Size()-1, func(j int) bool { return s.blockAt(me, j+1) > i })
	at := i - s.blockAt(me, from)
	switch s.kind {
	case coll.Broadcast: // later ones copy the result of the first
		return s.value(s.first, i)
	case coll.ReduceScatter:
		return s.sum(0, s.group.Size(), s.blockAt(me, me)+i)
	case coll.Scan:
		return s.sum(0, me+1, i)
	case coll.Exscan:
		return s.sum(0, me, i)
	case coll.Gather, coll.Allgather:
		return s.value(from, at)
	case coll.Scatter:
		return s.value((s.first+s.done-1)%s.roots, s.blockAt(me, me)+i)
	case coll.Alltoall:
		return s.value(from, s.blockAt(from, me)+at)
	}
	return s.sum(0, s.group.Size(), i)
}

// Exact sums: of terms that do not differ too much for a narrow message, and of others.
const (
	exactNarrow = "narrow"
	exactWide   = "wide"
	narrowBytes = 16 * 8
	exactBytes  = exact.Words * 8
)

const longExact = longCollective + `
Narrow are sums of terms near 1, which go in one short message; wide are sums of terms from 2^-600
to 2^600, which need all words of an accumulator.`

// exactTerms are the terms that a rank adds up, of each kind.
const exactTerms = 64

// exactSeries repeatedly merges the accumulators of all ranks. An iteration is a copy of the
// rank's own, which SumExact merges into, and the sum.
type exactSeries struct {
	plain
	group     *channel.Group
	exponents int // of the terms, at most
	own       exact.Accumulator
	total     exact.Accumulator
}

func declareExact(_ context.Context, b *bed, m *measurement) series {
	s := &exactSeries{group: b.group, exponents: 20}
	if m.op == exactWide {
		s.exponents = 600
	}
	s.own.AddSlice(exactTermsOf(s.group.Rank(), s.group.Size(), s.exponents))
	return s
}

// exactTermsOf returns the terms of a rank, from 2^-exponents to 2^exponents. The large ones cancel with
// those of the rank before.
func exactTermsOf(rank, size, exponents int) []float64 {
	large := func(rank, i int) float64 {
		w := patternWord(uint64(rank), i)
		return math.Ldexp(1+float64(w>>12)/(1<<52), int(w%uint64(exponents))) * float64(int(w>>10&2)-1)
	}
	var terms []float64
	for i := range exactTerms {
		small := math.Ldexp(float64(int64(patternWord(uint64(rank), exactTerms+i))), -exponents)
		terms = append(terms, large(rank, i), small, -large((rank+1)%size, i))
	}
	return terms
}

func (s *exactSeries) run(n int, samples []int64) {
	repeat(n, samples, func() {
		s.total = s.own
		must(channel.SumExact(context.Background(), s.group, &s.total))
	})
}

func (s *exactSeries) prepare() { s.total.Reset() }

// check compares the sum with that of numbers wide enough to be exact.
func (s *exactSeries) check() {
	var lists [][]float64
	for rank := range s.group.Size() {
		lists = append(lists, exactTermsOf(rank, s.group.Size(), s.exponents))
	}
	checkExact(s.total.Round(), lists...)
}

const longAddSlice = `The terms have the same sign and exponent.
The exact sum is compared with one in sufficiently wide numbers. A loop in Go that rounds after
each addition is measured beside it.`

// What addslice does with the terms: the operations of its results.
const (
	addExact   = "exact"
	addRounded = "rounded"
)

// besideLoop is the exact sum, and the loop that rounds.
func besideLoop(_ *options, list []spec) []spec {
	return vary(list, []string{addExact, addRounded}, func(s *spec, op string) { s.op = op })
}

// addSliceSeries adds up the same terms repeatedly.
type addSliceSeries struct {
	plain
	memory  []byte
	terms   []float64
	rounded bool
	loop    float64
	sum     exact.Accumulator
}

func declareAddSlice(_ context.Context, b *bed, m *measurement) series {
	memory, _ := b.memory(&m.spec, m.bytes, 0)
	return &addSliceSeries{memory: memory, terms: doubles(memory), rounded: m.op == addRounded}
}

func (s *addSliceSeries) run(n int, samples []int64) {
	repeat(n, samples, func() {
		if s.rounded {
			var sum float64
			for _, x := range s.terms {
				sum += x
			}
			s.loop = sum
			return
		}
		s.sum.Reset()
		s.sum.AddSlice(s.terms)
	})
}

// prepare makes terms in [1, 2).
func (s *addSliceSeries) prepare() {
	const one = 0x3ff << 52
	fillPattern(s.memory, seedFor(0, len(s.memory), patternAddSlice))
	for i := range s.terms {
		b := s.memory[i*doubleBytes:]
		binary.NativeEndian.PutUint64(b, one|binary.NativeEndian.Uint64(b)>>12)
	}
	s.sum.Reset()
}

func (s *addSliceSeries) check() {
	if !s.rounded {
		checkExact(s.sum.Round(), s.terms)
		return
	}
	// Each of n additions rounds by at most 2^-53 of a sum that grows.
	n, want := float64(len(s.terms)), exact.Sum(s.terms)
	if math.Abs(s.loop-want) > n*0x1p-53*want {
		must(fmt.Errorf("rounded sum is %g, must be %g", s.loop, want))
	}
}

// checkExact compares a sum of terms with that of numbers wide enough to be exact.
func checkExact(got float64, lists ...[]float64) {
	const precision = 4400 // bits: the range of float64 twice, and carries
	sum, term := new(big.Float).SetPrec(precision), new(big.Float)
	for _, terms := range lists {
		for _, x := range terms {
			sum.Add(sum, term.SetFloat64(x))
		}
	}
	want, _ := sum.Float64()
	if math.Float64bits(got) != math.Float64bits(want) {
		must(fmt.Errorf("exact sum is %g (%#016x), must be %g (%#016x)", got, math.Float64bits(got), want, math.Float64bits(want)))
	}
}

// suiteQMP is the suite of measurements through package qmp, and of the peer that does what the C
// library does over MPI.
const suiteQMP = "qmp"

// How sums are called: the operation of their results.
const (
	qmpSumDouble      = "sum_double"
	qmpSumDoubleArray = "sum_double_array"
)

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

// qmpSums repeatedly adds up one double of each node, or several, in place. After the first sum
// all nodes have the same, and each further sum multiplies it by their number.
type qmpSums struct {
	plain
	spec
	comm   *qmp.Comm
	memory []byte // with its guard
	x      []float64
	seeds  []uint64 // of the data of each node
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

func (s *qmpSums) prepare() {
	fillGuard(s.memory)
	for i := range s.x {
		s.x[i] = wholeNumber(s.seeds[s.comm.NodeNumber()], i)
	}
	s.done = 0
}

// check compares the sums, and the guard after them, with the expected bytes. If the number of
// nodes is not a power of two, sums are rounded in an unknown order: then only the first one is
// checked.
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

// declareFaces declares the exchange of haloExchange with relative handles of a topology of one
// axis: faces of different axes of the lattice go over the same two connections.
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

// multipleOfQMP is closed together with its handles.
type multipleOfQMP struct{ *qmp.Handle }

func (m multipleOfQMP) Close() error { return m.CloseAll() }
