package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// row is a row of bench compare: the measurement of one command of bench, with several sizes, and
// the peers' programs that do the same. To add one, add a line to rows: a pattern with its layer,
// provider and dimensions, the peers' programs, and the bars of its figures; figures without a bar
// are only shown.
//
//	{suite: "channel", layer: layerChannel, pattern: patternLat, provider: "shm", memory: bothMemories, sizes: fourths,
//		peers: []string{"mpi p2p -m", "limit"}, bars: []bar{{op: memoryAlloc, sizes: "8", limit: 0.75}}},
//
// Figures of sluice and of peers are compared if size, axis and Figure are equal. With --quick only
// sizes and axes with a bar are measured. Under a load, sluice runs with its flag, and the peers
// with bench load.
type row struct {
	suite    string // for --only, with provider, pattern, ranks, window and load
	layer    string // of sluice; with the pattern it names the command
	pattern  string
	provider string
	memory   string        // kinds, a list; empty: the command has no choice
	op       string        // of verbs
	sizes    string        // list; empty: only the command's size
	axes     string        // for halos, instead of sizes
	ranks    int           // 0: the command's own
	window   int           // 0: the command's own
	unbound  bool          // ranks of peers are not bound to a CPU, nor are those of sluice
	load     string        // what shares the CPUs
	kind     string        // the operation, for patterns with several
	count    int           // for patterns of many objects: how many; 0: other patterns
	loss     string        // percentage of lost packets
	time     time.Duration // of a figure, instead of 100 ms; 0: 100 ms
	args     []string      // more arguments of sluice

	// peers are the programs to compare with, and their arguments; sizes, ranks, window and time
	// are added to them:
	//
	//	mpi NAME ...    peers/mpi_NAME.c, with each installed MPI
	//	limit           the machine's limit, for the row's pattern
	//	zmq             chunks with libzmq
	//	ucx tag|am|put  ucx_perftest
	//	fi              fi_pingpong
	//	perftest        perftest's program for the row's operation
	peers []string
	bars  []bar
}

// bar is a bound for figures of a row, relative to the best MPI, or to what it names.
type bar struct {
	op      string  // of sluice; empty: each
	sizes   string  // or axes: list; empty: all
	figure  string  // for patterns that have several
	against string  // a peer; empty: the best MPI
	fixed   float64 // instead of a peer: a value in the figure's unit
	calls   float64 // instead of a peer: calls into C for each message
	limit   float64 // of ours / theirs: at most; for bandwidths and rates at least
	aim     float64 // the ratio to aim for; 0: the limit
	best    bool    // the best operation of sluice counts
}

// Sizes and kinds of memory that many rows have: from a double to 4 MiB, for collectives to 8 MiB,
// in powers of four.
const (
	fourths      = "8,16,64,256,1k,4k,16k,64k,256k,1M,4M"
	vectors      = "8,64,256,1k,4k,16k,64k,128k,256k,1M,4M,8M"
	bothMemories = memoryAlloc + "," + memoryHeap
	heapFirst    = memoryHeap + "," + memoryAlloc
	intoHeap     = memoryAlloc + ">" + memoryHeap
	fromHeap     = memoryHeap + ">" + memoryAlloc
	allMemories  = bothMemories + "," + intoHeap + "," + fromHeap
)

// rows are all rows of bench compare, in the order in which they are measured and shown.
var rows = slices.Concat([]row{
	// Channels between two ranks with a core each. The lower bound for a message is the line that
	// carries it; the upper bound for a bandwidth is one copy.
	{suite: "channel", layer: layerChannel, pattern: patternLat, provider: "shm", memory: allMemories, sizes: fourths,
		peers: []string{"mpi p2p -m", "ucx tag", "ucx am", "ucx put", "fi", "limit"}, bars: []bar{
			{op: memoryAlloc, sizes: "8", limit: 0.75, aim: 0.6},
			{op: memoryAlloc, sizes: "8", against: limitLine, limit: 1.7, aim: 1.4},
			{op: memoryAlloc, sizes: "4k", limit: 0.75},
			{op: memoryHeap, sizes: "8,16,64,256,1k,64k,256k,1M,4M", limit: 0.83},
			{op: memoryHeap, sizes: "4k,16k", limit: 0.91},
			{op: intoHeap, sizes: "64k,256k,1M,4M", limit: 1.05},
			{op: fromHeap, sizes: "64k,256k,1M,4M", limit: 1.05},
		}},
	{suite: "channel", layer: layerChannel, pattern: patternBW, provider: "shm", memory: allMemories, sizes: fourths, window: defaultChannelWindow,
		peers: []string{"mpi p2p -m -d bw", "ucx tag", "limit"}, bars: []bar{
			{op: memoryAlloc, sizes: "256k,1M,4M", limit: 2},
			{op: memoryHeap, sizes: "8,16,64,256,1k,64k,256k,1M,4M", limit: 1.2},
			{op: memoryHeap, sizes: "4k,16k", limit: 1.1},
			{op: intoHeap, sizes: "64k,256k,1M,4M", limit: 0.95},
			{op: fromHeap, sizes: "64k,256k,1M,4M", limit: 0.95},
		}},
	{suite: "channel", layer: layerChannel, pattern: patternLat, provider: "tcp", memory: bothMemories, sizes: fourths,
		peers: []string{"mpi p2p -m", "ucx tag", "fi"}, bars: []bar{{op: memoryAlloc, sizes: "8", limit: 1}}},
	{suite: "channel", layer: layerChannel, pattern: patternBW, provider: "tcp", memory: bothMemories, sizes: fourths, window: defaultChannelWindow,
		peers: []string{"mpi p2p -m -d bw", "ucx tag"}, bars: []bar{{op: memoryAlloc, sizes: "1M", limit: 1}}},
	{suite: "channel", layer: layerChannel, pattern: patternHalo, provider: "shm", memory: bothMemories, axes: "x,y,z,t,all", ranks: 2,
		peers: []string{"mpi halo", "mpi halo -k"}, bars: []bar{
			{op: memoryAlloc, sizes: "x", limit: 2},
			{op: memoryAlloc, sizes: "z,t", limit: 1.5},
			{op: memoryHeap, limit: 1.1},
		}},
	{suite: "channel", layer: layerChannel, pattern: patternRing, provider: "shm", sizes: "8", ranks: defaultRingRanks, unbound: true,
		peers: []string{"mpi p2p -d ring"}, bars: []bar{{limit: 1}}},
	{suite: "channel", layer: layerChannel, pattern: patternLocal, provider: providerSelf, sizes: "8", bars: []bar{{fixed: 40, limit: 1}}},

	// The verbs layer: persistent requests that share one buffer.
	{suite: "verbs", layer: layerVerbs, pattern: patternLat, provider: "shm", op: "send", sizes: "8,1k,64k,1M", peers: []string{"mpi p2p"}},
	{suite: "verbs", layer: layerVerbs, pattern: patternLat, provider: "shm", op: "write-imm", sizes: "8,1k,64k,1M",
		peers: []string{"mpi p2p", "ucx put"}, bars: []bar{{sizes: "8", limit: 1, aim: 0.6}}},
	{suite: "verbs", layer: layerVerbs, pattern: patternBW, provider: "shm", op: "write", sizes: "64k,256k,1M,4M",
		peers: []string{"mpi p2p -d bw"}, bars: []bar{{limit: 2}}},
	{suite: "verbs", layer: layerVerbs, pattern: patternBW, provider: "shm", op: "send", sizes: "64k,256k,1M,4M",
		peers: []string{"mpi p2p -d bw"}, bars: []bar{{limit: 2}}},
	{suite: "verbs", layer: layerVerbs, pattern: patternLat, provider: "tcp", op: "send", sizes: "8,1k,64k,1M",
		peers: []string{"mpi p2p"}, bars: []bar{{sizes: "8", limit: 1}}},
	{suite: "verbs", layer: layerVerbs, pattern: patternBW, provider: "tcp", op: "write", sizes: "64k,256k,1M,4M",
		peers: []string{"mpi p2p -d bw"}, bars: []bar{{sizes: "1M,4M", limit: 1}}},

	// Matched messages, each a request of its own.
	{suite: "impi", layer: layerIMPI, pattern: patternLat, provider: "shm", memory: heapFirst, sizes: "8,16,64,256,1k,4k,8k,16k,64k,256k,1M,4M",
		peers: []string{"mpi p2p -n", "ucx tag", "fi"}, bars: []bar{{sizes: "8", limit: 1.25}, {sizes: "4k,8k,16k,64k,256k,1M", limit: 1}}},
	{suite: "impi", layer: layerIMPI, pattern: patternBW, provider: "shm", memory: heapFirst, sizes: fourths, window: defaultWindow,
		peers: []string{"mpi p2p -n -d bw", "ucx tag"}, bars: []bar{{sizes: "64k,256k,1M", limit: 1}}},
	{suite: "impi", layer: layerIMPI, pattern: patternRate, provider: "shm", memory: heapFirst, sizes: fourths, window: defaultWindow,
		peers: []string{"mpi p2p -n -d rate"}, bars: []bar{{sizes: "8", limit: 1}, {sizes: "8", fixed: 4e6, limit: 1}}},
	{suite: "impi", layer: layerIMPI, pattern: patternLat, provider: carrierTCP, memory: heapFirst, sizes: fourths,
		peers: []string{"mpi p2p -n", "ucx tag", "fi"}, bars: []bar{{sizes: "8", limit: 1}}},
	{suite: "impi", layer: layerIMPI, pattern: patternBW, provider: carrierTCP, memory: heapFirst, sizes: fourths, window: defaultWindow,
		peers: []string{"mpi p2p -n -d bw"}, bars: []bar{{sizes: "64k,256k,1M", limit: 0.9}}},
	{suite: "impi", layer: layerIMPI, pattern: patternRate, provider: carrierTCP, sizes: fourths, window: defaultWindow,
		peers: []string{"mpi p2p -n -d rate"}},

	// The same over memory of the node that the job is made of.
	{suite: "impi node", layer: layerIMPI, pattern: patternLat, provider: "shm", memory: memoryNode, sizes: "8,64k,1M,4M", peers: []string{"mpi p2p -n"}},
	{suite: "impi node", layer: layerIMPI, pattern: patternBW, provider: "shm", memory: memoryNode, sizes: "64k,1M,4M", window: defaultWindow,
		peers: []string{"mpi p2p -n -d bw"}},
},
	// Collectives of 2 ranks with a core each, and of more on the available CPUs.
	collectiveRows(2, bothMemories, vectors, "called,declared", []bar{{op: callCalled, limit: 0.75}}, []bar{
		{op: calledAlloc, sizes: "8,64,256,1k", limit: 0.75},
		{op: calledAlloc, sizes: "128k", limit: 0.6},
		{op: calledAlloc, sizes: "8M", limit: 0.5},
		{op: calledHeap, sizes: "16k,64k,128k,256k,1M,4M,8M", limit: 0.77},
	}),
	collectiveRows(4, bothMemories, vectors, callCalled, []bar{{limit: 1}}, []bar{
		{op: calledAlloc, sizes: "8,1k,128k", limit: 1},
		{op: calledHeap, sizes: "16k,64k,128k,256k,1M,4M,8M", limit: 0.77},
	}),
	collectiveRows(8, bothMemories, "8,1k,16k,128k,1M,8M", callCalled, []bar{{limit: 1}}, []bar{
		{op: calledAlloc, sizes: "8,1k,128k", limit: 1},
		{op: calledHeap, sizes: "16k,128k,1M,8M", limit: 0.77},
	}),
	collectiveRows(16, bothMemories, "8,1k,64k,1M,8M", callCalled, nil, []bar{{op: calledHeap, sizes: "64k,1M,8M", limit: 0.77}}),
	collectiveRows(32, bothMemories, "8,1k,64k", callCalled, nil, nil),
	collectiveRows(64, bothMemories, "8,1k,64k", callCalled, nil, nil),
	otherCollectives(2, "bcast", "reduce", "reduce-scatter", "scan", "exscan", "gather", "scatter", "allgather", "alltoall",
		"gatherv", "scatterv", "allgatherv", "alltoallv"),
	otherCollectives(4, "bcast", "alltoall", "scatterv", "alltoallv"), otherCollectives(8, "bcast", "alltoall"), otherCollectives(16, "bcast", "alltoall"),
	[]row{
		{suite: "exact", layer: layerChannel, pattern: patternExact, provider: "shm", ranks: 2, bars: []bar{{op: exactNarrow, against: eightDoubles, limit: 1.5}, {op: exactWide, against: manyDoubles, limit: 4}}},
		{suite: "exact", layer: layerChannel, pattern: patternExact, provider: "shm", ranks: 8, bars: []bar{{op: exactNarrow, against: eightDoubles, limit: 1.5}, {op: exactWide, against: manyDoubles, limit: 4}}},
		{suite: "exact", layer: layerExact, pattern: patternAddSlice, provider: providerSelf, sizes: "8M", bars: []bar{{op: addExact, against: loopRounded, limit: 2}}},

		// Calls of QMP programs: the bars of channels and collectives, plus ten per cent.
		{suite: "qmp", layer: layerQMP, pattern: "allreduce", provider: "shm", sizes: "8,1k,128k,8M", ranks: 2, peers: []string{"mpi qmp -c allreduce"}, bars: []bar{
			{sizes: "8,1k", limit: 0.825},
			{sizes: "128k", limit: 0.66},
			{sizes: "8M", limit: 0.55},
		}},
		{suite: "qmp", layer: layerQMP, pattern: "allreduce", provider: "shm", sizes: "8,1k,128k", ranks: 4, peers: []string{"mpi qmp -c allreduce"}, bars: []bar{{limit: 1.1}}},
		{suite: "qmp", layer: layerQMP, pattern: "allreduce", provider: "shm", sizes: "8,1k,128k", ranks: 8, peers: []string{"mpi qmp -c allreduce"}, bars: []bar{{limit: 1.1}}},
		{suite: "qmp", layer: layerQMP, pattern: patternHalo, provider: "shm", memory: memoryAlloc, axes: "x,y,z,t,all,half", ranks: 2, peers: []string{"mpi qmp -c halo"}, bars: []bar{
			{sizes: "x", limit: 1.8},
			{sizes: "z,t,half", limit: 1.35},
		}},
	},
	// Chunks to workers that ask for them: the dialect that serves best counts.
	fanouts(3, 1), fanouts(3, 8), fanouts(9, 1), fanouts(9, 8),
	// An RDMA device, as a C program uses it with libibverbs.
	[]row{
		overDevice(patternLat, "write", "8", 0, 0, 1, bar{limit: 1.1}),
		overDevice(patternLat, "send", "8", 0, 0, 1, bar{limit: 1.1}),
		overDevice(patternBW, "write", "64k", 64, 1, 1, bar{limit: 0.95}),
		overDevice(patternBW, "write", "1M", 16, 1, 1, bar{limit: 0.95}),
		overDevice(patternBW, "send", "64k", 64, 1, 1, bar{limit: 0.95}),
		overDevice(patternBW, "read", "64k", 64, 1, 1, bar{limit: 0.95}),
		overDevice(patternRate, "write", "64", 64, 1, 64, bar{limit: 0.9}),
		overDevice(patternRate, "write", "64", 64, 64, 64, bar{limit: 0.9}, bar{calls: 1. / 16, limit: 1}),
	},
	programRows(),
)

// collectiveRows are a barrier and allreduces of so many ranks.
func collectiveRows(ranks int, memory, sizes, call string, barrier, allreduce []bar) []row {
	calls := []string{"--call", call}
	return []row{
		{suite: "collectives", layer: layerChannel, pattern: "barrier", provider: "shm", ranks: ranks, args: calls, peers: []string{"mpi coll -c barrier"}, bars: barrier},
		{suite: "collectives", layer: layerChannel, pattern: "allreduce", provider: "shm", memory: memory, sizes: sizes, ranks: ranks, args: calls,
			peers: []string{"mpi coll -c allreduce"}, bars: allreduce},
	}
}

func otherCollectives(ranks int, kinds ...string) (list []row) {
	for _, kind := range kinds {
		r := row{suite: "collectives", layer: layerChannel, pattern: kind, provider: "shm", memory: bothMemories, sizes: "8,1k,128k,8M", ranks: ranks,
			args: []string{"--call", callCalled}, peers: []string{"mpi coll -c " + kind}}
		switch kind {
		case "bcast":
			r.bars = []bar{{op: calledHeap, limit: 0.83}}
		case "alltoall":
			r.sizes, r.bars = "8,1k,64k,128k,8M", []bar{{op: calledHeap, sizes: "64k", limit: 0.83}}
			if ranks > 4 { // all vectors of 8 MiB blocks would take gigabytes
				r.sizes = "8,1k,64k"
			}
		}
		list = append(list, r)
	}
	return list
}

func fanouts(ranks, window int) []row {
	return []row{{suite: "fanout", layer: layerFanout, pattern: patternFanout, provider: "shm", sizes: "64,4k,1M", ranks: ranks, window: window, unbound: true,
		peers: []string{"mpi fanout", "zmq"}, bars: []bar{{limit: 1.5, best: true}, {against: peerZMQ, limit: 2, best: true}}}}
}

// overDevice does the same as perftest: the same operation, with as many outstanding, posted in one
// call and signalled, none inline.
func overDevice(pattern, op, size string, window, list, every int, bars ...bar) row {
	for i := range bars {
		bars[i].against = peerPerftest
	}
	r := row{suite: "verbs", layer: layerVerbs, pattern: pattern, provider: providerIBV, op: op, sizes: size, window: window, peers: []string{"perftest"}, bars: bars,
		args: []string{"--inline", "0", "--signal-every", strconv.Itoa(every), "--warmup", "20ms"}}
	if pattern == patternLat {
		// perftest reads the cycle counter in each iteration, and prints the median. Short batches
		// contain few interruptions, and almost no cost of the clock.
		r.args = append(r.args, "--batch=4")
	} else {
		r.args = append(r.args, "--mean", "--list", strconv.Itoa(list))
	}
	return r
}

// String returns the name of a row, which --only matches.
func (r *row) String() string {
	words := []string{r.provider, r.suite, r.pattern, strings.TrimSpace(r.op + " " + r.kind), "", "", "", r.load}
	if r.suite == r.pattern {
		words[1] = ""
	}
	if r.ranks > 2 || isCollective(r.pattern) && r.ranks > 0 {
		words[4] = fmt.Sprintf("%d ranks", r.ranks)
	}
	if r.count > 0 {
		words = append(words, fmt.Sprintf("×%d", r.count))
	}
	if r.loss != "" {
		words = append(words, r.loss+" %")
	}
	if r.window > 0 && (r.pattern == patternFanout || r.loss != "") {
		words[5] = fmt.Sprintf("window %d", r.window)
	}
	if n := r.list(); n > 1 {
		words[6] = fmt.Sprintf("×%d", n)
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// list returns how many work requests are posted in one call.
func (r *row) list() int {
	i := slices.Index(r.args, "--list")
	if i < 0 {
		return 0
	}
	n, _ := strconv.Atoi(r.args[i+1])
	return n
}

// points returns the row's sizes or axes, or one empty point if it has neither.
func (r *row) points() []string { return strings.Split(r.sizes+r.axes, ",") }

// barred returns the points that have a bar.
func (r *row) barred() []string {
	return slices.DeleteFunc(r.points(), func(p string) bool {
		return !slices.ContainsFunc(r.bars, func(b bar) bool { return b.covers(p) })
	})
}

func (b *bar) covers(point string) bool {
	return b.sizes == "" || slices.Contains(strings.Split(b.sizes, ","), point)
}

// point returns the point of a result of this row.
func (r *row) point(v *Result) string {
	switch {
	case r.axes != "":
		return v.Axis
	case r.sizes != "":
		return formatSize(v.Bytes)
	}
	return ""
}

// measuredBy returns the pattern that measures the row. (Its command may have another name.)
func (r *row) measuredBy() *pattern {
	return firstPattern(func(p *pattern) bool { return p.layer == r.layer && p.name == r.pattern })
}

// command returns the command that measures some points, for this version of bench and earlier
// ones.
func (r *row) command(points []string, t time.Duration) []string {
	p := r.measuredBy()
	args := []string{r.layer, p.command()}
	if p.top {
		args = args[1:]
	}
	add := func(flag, value string) {
		if value != "" && value != "0" {
			args = append(args, flag, value)
		}
	}
	switch {
	case r.layer == layerIMPI:
		add("--carrier", r.provider)
	case r.layer == layerVerbs && r.provider == providerIBV: // by its device
	case r.layer != layerFanout && r.provider != providerSelf:
		add("--provider", r.provider)
	}
	add("--op", r.op)
	add("--memory", r.memory)
	switch {
	case r.axes != "":
		add("--axis", strings.Join(points, ","))
	case r.layer == layerQMP:
		add("--doubles", inDoublesOf(points))
	default:
		add("--sizes", strings.Join(points, ","))
	}
	if _, chosen := p.option("ranks"); chosen {
		add("--ranks", strconv.Itoa(r.ranks))
	}
	add("--window", strconv.Itoa(r.window))
	add("--load", r.load)
	add("--kinds", r.kind)
	add("--count", strconv.Itoa(r.count))
	add("--loss", r.loss)
	if usual, _ := p.option("batch"); usual == strconv.Itoa(eachIteration) && r.provider != providerIBV {
		args = append(args, "--batch")
	}
	return append(append(args, r.args...), "--time", t.String(), "--json")
}

// inDoublesOf converts sizes to counts of doubles.
func inDoublesOf(sizes []string) string {
	var counts []string
	for _, s := range sizes {
		n, err := parseSize(s)
		if err != nil {
			panic(err) // the table is wrong
		}
		counts = append(counts, strconv.Itoa(n/doubleBytes))
	}
	return strings.Join(counts, ",")
}

// programRows are situations of programs other than a ping-pong on a quiet machine. Most have no
// bar, or miss it today.
func programRows() (list []row) {
	overlap := func(provider, kind string, peers ...string) {
		list = append(list, row{suite: patternOverlap, layer: layerChannel, pattern: patternOverlap, provider: provider, kind: kind, memory: bothMemories, sizes: "256k,1M,4M",
			time: 200 * time.Millisecond, peers: peers, bars: []bar{{sizes: "1M", figure: "wait", fixed: 20, limit: 1}, {sizes: "1M", figure: "total", fixed: 105, limit: 1}}})
	}
	for _, provider := range []string{"shm", "tcp"} {
		overlap(provider, kindSend, "mpi overlap -c send")
		overlap(provider, kindAllreduce, "mpi overlap -c allreduce")
	}
	overlap(providerRoCE, kindSend)
	overlap(providerIBV, kindSend)

	// Shared CPUs: there is a bar only with a neighbour on each core.
	for _, load := range []string{loadBusy, loadQuota} {
		bars := []bar{{figure: figureMean, limit: 1.2}, {figure: figureNeighbour, fixed: 45, limit: 1}}
		if load == loadQuota {
			bars = nil
		}
		r := row{suite: "shared", layer: layerChannel, provider: "shm", load: load, memory: memoryAlloc, ranks: 2, time: 2 * time.Second, bars: bars}
		lat, allreduce, halo := r, r, r
		lat.pattern, lat.sizes, lat.ranks, lat.peers = patternLat, "8,4k,64k", 0, []string{"mpi shared -c lat"}
		allreduce.pattern, allreduce.sizes, allreduce.args, allreduce.peers = kindAllreduce, "8", []string{"--call", callCalled}, []string{"mpi shared -c allreduce"}
		halo.pattern, halo.axes, halo.peers = patternHalo, axisAll, []string{"mpi shared -c halo"}
		list = append(list, lat, allreduce, halo)
	}

	// Messages of impi that must be searched for.
	for _, provider := range []string{"shm", carrierTCP} {
		r := row{suite: suiteIMPI, layer: layerIMPI, provider: provider, sizes: "8,4k,64k"}
		unexpected, posted, anySource := r, r, r
		unexpected.pattern, unexpected.window, unexpected.peers = patternUnexpected, 64, []string{"mpi match -c unexpected"}
		posted.pattern, posted.window, posted.sizes, posted.peers = patternPosted, 1000, "8", []string{"mpi match -c posted"}
		anySource.pattern, anySource.peers = patternAnySource, []string{"mpi match -c anysource"}
		list = append(list, unexpected, posted, anySource)
	}

	// Many handles, goroutines or queue pairs.
	for _, provider := range []string{"shm", "tcp"} {
		for _, count := range []int{1, 100, 10_000} {
			list = append(list, row{suite: "handles", layer: layerChannel, pattern: "handles", provider: provider, count: count, memory: memoryAlloc, sizes: "8"})
		}
		list = append(list,
			row{suite: "waiters", layer: layerChannel, pattern: "waiters", provider: provider, count: 1000, time: 5 * time.Second,
				bars: []bar{{fixed: 1, limit: 1}, {figure: "threads", fixed: 4, limit: 1}}},
			row{suite: "pages", layer: layerChannel, pattern: "pages", provider: provider, sizes: "64M", time: time.Second, bars: []bar{{fixed: 103, limit: 1}}},
			row{suite: "idle", layer: layerChannel, pattern: "idle", provider: provider, time: 3 * time.Second, bars: []bar{{fixed: 0.1, limit: 1}}})
		for _, count := range []int{1, 100, 1000} {
			r := row{suite: "cq", layer: layerVerbs, pattern: "cq", provider: provider, count: count, sizes: "8"}
			if count == 1000 {
				r.bars = []bar{{figure: "growth", fixed: 2, limit: 1}, {figure: "poll-growth", fixed: 2, limit: 1}}
			}
			list = append(list, r)
		}
	}

	// Messages that are declared for one use, or get other memory each time.
	for _, provider := range []string{"shm", "tcp"} {
		for _, kind := range strings.Split(oneshotKinds, ",") {
			r := row{suite: "oneshot", layer: layerChannel, pattern: "oneshot", provider: provider, kind: kind, memory: bothMemories, sizes: "8,4k,256k",
				peers: []string{"mpi oneshot -c isend", "mpi oneshot -c init"}}
			switch kind {
			case oneshotSend:
				r.bars = []bar{{limit: 1.3}}
			case oneshotLayout:
				r.peers = []string{"mpi oneshot -c vector"}
			}
			list = append(list, r)
		}
	}

	// Far ahead of the receiver, and over networks that lose packets.
	for _, provider := range []string{"shm", "tcp"} {
		list = append(list, row{suite: "ahead", layer: layerChannel, pattern: "ahead", provider: provider, count: 100_000, memory: memoryAlloc, sizes: "8,16k"})
	}
	for _, provider := range []string{providerRoCE, "tcp"} {
		for _, loss := range []string{"0.1", "1"} {
			for _, window := range []int{1, 8} {
				list = append(list, row{suite: "loss", layer: layerChannel, pattern: "loss", provider: provider, loss: loss, window: window, memory: memoryAlloc, sizes: "4k,64k", time: 3 * time.Second})
			}
		}
		list = append(list, row{suite: "incast", layer: layerChannel, pattern: "incast", provider: provider, ranks: 9, memory: memoryAlloc, sizes: "64k", time: 3 * time.Second})
	}

	// The start of a job.
	for _, ranks := range []int{8, 32, 128, 256} {
		list = append(list, row{suite: "start", layer: layerChannel, pattern: "start", provider: "shm", ranks: ranks, unbound: true, peers: []string{"mpi start"}})
	}
	return list
}
