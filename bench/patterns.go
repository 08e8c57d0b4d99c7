package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// pattern is one kind of measurement. One table has all measurements of bench; commands, flags,
// the plan of a run, and units and titles of results are made from it.
//
// To add one, write a function that declares it and a row of the table:
//
//   - A pattern that repeats one iteration has declare, which returns a [series]. The loop
//     that all of them share ([measurement.take]) warms it up, agrees on its length,
//     verifies and times it.
//   - A pattern that is a procedure of its own (time to start, overlap, CPU of idle ranks)
//     has measure instead. All ranks call it once in each round of each measurement; it
//     adds samples ([sampled.addAll]), or adds figures of its own ([measurement.figure]).
//
// Neither returns errors: [must] ends the job with the first one, at all ranks; a step that only
// some of them may fail at is followed by a barrier, which takes the error that [try] returns.
//
// Either finds what it runs over in [bed]: the node of this rank, memory, and what its open
// has made. Which measurements one command stands for is said by vary, as dimensions; the
// flags that apply, with their defaults, by options. A new flag is a field of [options],
// a line of its flags, and a check. Commands are "bench LAYER NAME", several of a layer in
// one job "bench LAYER NAME,NAME".
type pattern struct {
	name     string                                           // of its results; and of its command, unless use says otherwise
	layer    string                                           // of the software that is measured
	use      string                                           // name of the command; empty: that of the pattern
	top      bool                                             // the command is one of bench itself, too
	suite    string                                           // of its results
	unit     string                                           // of its results
	figures  map[string]string                                // further figures, by Result.Figure, with their units
	short    string                                           // help in one line
	long     string                                           // and what follows
	what     string                                           // what a figure is, for titles
	options  string                                           // flags that apply beside those of timing: NAME or NAME=DEFAULT
	ranks    ranks                                            // of its jobs
	check    func(*options)                                   // of what only this pattern asks of options; may be nil
	split    func(context.Context, *session, work) []work     // one for each device or carrier; nil: as it is
	vary     []dimension                                      // what it is measured with
	messages func(*spec) int                                  // of an iteration; nil: one
	open     func(context.Context, *bed)                      // makes what all its measurements share; may be nil
	declare  func(context.Context, *bed, *measurement) series // makes an iteration that can be repeated
	measure  func(context.Context, *bed, *measurement)        // one round of a procedure, in place of declare
	early    func(context.Context, *session)                  // what a rank does before it exchanges anything; may be nil
	alone    time.Duration                                    // each measurement is a job of its own, which ends within this; 0: it is not
	hosts    bool                                             // each rank of such a job is on a host of its own, which a router joins
}

// ranks says how many ranks a pattern needs.
type ranks struct {
	least, most int  // most 0: any number
	unbound     bool // they are left to the system, not each bound to a core
}

func (r ranks) String() string {
	switch {
	case r.most == 1:
		return "within one rank"
	case r.most != r.least:
		return fmt.Sprintf("between at least %d ranks", r.least)
	}
	return fmt.Sprintf("between %d ranks", r.least)
}

var (
	oneRank  = ranks{least: 1, most: 1}
	twoRanks = ranks{least: 2, most: 2}
	twoUp    = ranks{least: 2}
	anyRanks = ranks{least: 1}
)

var patterns []*pattern

// The table refers to functions that look into it.
func init() {
	patterns = slices.Concat(
		// Work requests of a pair of queue pairs.
		transfers(pattern{layer: layerVerbs, open: openDevice, declare: declareVerbs, check: checkVerbs, vary: []dimension{byOp, byHeap, bySize},
			options: "provider device memory=alloc sizes inline=-1 events portable"},
			"op=send signal-every=64", "op=write window=64 list=0 signal-every=0", "op=send window=256 list=0 signal-every=0"),
		// Channels between two ranks: each message of a window has memory of its own.
		transfers(pattern{layer: layerChannel, suite: suiteChannel, declare: declareChannel, check: checkBlocks, vary: []dimension{byMemory, byBlock, bySize},
			options: "provider memory=alloc sizes blocks packed", long: longChannel},
			"late", "window=16", "window=64"),
		// Messages of impi: each is a request of its own, and all of a window share memory.
		transfers(pattern{layer: layerIMPI, suite: suiteIMPI, open: openIMPI, declare: declareIMPI, split: byCarrier, check: checkIMPI, vary: []dimension{byOp, byAlloc, bySize},
			options: "carrier memory=heap sizes", long: longIMPI},
			"", "window=64", "window=64"),
		[]*pattern{
			{name: patternHalo, layer: layerChannel, top: true, unit: unitBandwidth, ranks: twoUp, declare: declareHalo, check: checkAxes, vary: []dimension{byMemory, byAxis}, messages: faces,
				options: "provider ranks=2 memory=alloc axis=x,y,z,t,all halo=packed", what: "that each rank sends, in one start and one wait of all its faces",
				short: "Exchange the faces of a lattice with both neighbours on a ring of ranks", long: longHalo},
			{name: patternRing, layer: layerChannel, top: true, unit: unitLatency, ranks: twoUp, declare: declareChannel, vary: []dimension{byMemory, bySize}, messages: hops,
				options: "provider ranks=8 memory=alloc sizes=8 batch=-1", what: "a hop",
				short: "Pass a message round a ring of ranks: the time of a hop", long: "With more ranks than CPUs, consecutive ranks share one."},
			{name: patternLocal, layer: layerChannel, top: true, unit: unitLatency, ranks: oneRank, declare: declareChannel, vary: []dimension{byMemory, bySize}, messages: bothEnds,
				options: "memory=alloc sizes=8 batch=-1", what: "a start and a successful test, the mean of both ends",
				short: "Start and test messages from one thread to itself", long: longLocal},
			{name: patternAddSlice, layer: layerExact, top: true, unit: unitBandwidth, ranks: oneRank, declare: declareAddSlice, vary: []dimension{bySize, besideLoop},
				options: "sizes=8M", what: "terms, on one core",
				short: "Add terms to an exact sum, on one core", long: longAddSlice},
			{name: coll.Allreduce.String(), layer: layerQMP, use: "sum", suite: suiteQMP, unit: unitLatency, ranks: anyRanks, open: openQMP, declare: declareSums, vary: []dimension{byMemory, bySize},
				options: "provider ranks=2 memory=alloc doubles=1,128,16k,1M batch=0", what: "in place",
				short: "Sums of doubles of all nodes, in place, through package qmp"},
			{name: patternHalo, layer: layerQMP, use: "faces", suite: suiteQMP, unit: unitBandwidth, ranks: twoUp, open: openQMP, declare: declareFaces, vary: []dimension{byMemory, byAxis}, messages: faces,
				options: "provider ranks=2 memory=alloc axis=x,y,z,t,all,half", what: "that each node sends",
				short: "Faces of a lattice exchanged with both neighbours, through package qmp"},
			{name: patternUnexpected, layer: layerIMPI, suite: suiteIMPI, unit: unitLatency, ranks: twoRanks, open: openIMPI, declare: declareMatching, split: byCarrier, check: checkIMPI, vary: []dimension{byOp, bySize}, messages: oneWay,
				options: "carrier sizes=8,4k,64k window=64 batch=0", what: "a message of a window",
				short: "Messages that arrive before their receives: each of a window", long: longMatching},
			{name: patternPosted, layer: layerIMPI, suite: suiteIMPI, unit: unitLatency, ranks: twoRanks, open: openIMPI, declare: declareMatching, split: byCarrier, check: checkIMPI, vary: []dimension{byOp, bySize}, messages: oneWay,
				options: "carrier sizes=8 window=1000 batch=0", what: "a message of a window",
				short: "Messages to 1,000 posted receives, matched in the opposite order: each of them", long: longMatching},
			{name: patternAnySource, layer: layerIMPI, suite: suiteIMPI, unit: unitLatency, ranks: twoRanks, open: openIMPI, declare: declareIMPI, split: byCarrier, check: checkIMPI, vary: []dimension{byOp, bySize}, messages: bothEnds,
				options: "carrier sizes=8,4k,64k batch=-1", what: "half a round trip",
				short: "Latency of Send and Recv from any source: half a round trip", long: longIMPI},
			{name: patternFanout, layer: layerFanout, use: "rate", suite: suiteFanout, unit: unitFanout, ranks: ranks{least: 2, unbound: true}, open: openFanout, measure: measureFanout,
				vary:    []dimension{byOp, bySize},
				options: "dialect=plain,numbered,each sizes=64,4k,1M window=1 ranks=3", what: "from a supplier to workers",
				short: "Chunks a second from rank 0 to all other ranks", long: longFanout},
		},
		collectives(),
		[]*pattern{
			{name: patternLine, layer: layerMachine, unit: unitLatency, ranks: twoRanks, declare: declareLine, split: needsSHM, vary: []dimension{bySize}, messages: bothEnds,
				options: "sizes=8 batch=0", what: "half a round trip", short: "Pass a cache line back and forth, without a library"},
			{name: patternCopy, layer: layerMachine, unit: unitBandwidth, ranks: anyRanks, declare: declareCopy, vary: []dimension{byMemory, bySize},
				options: "ranks=1 memory=heap sizes=1M", what: "by one core", short: "Copy memory with one core"},
			{name: patternPeek, layer: layerMachine, unit: unitBandwidth, ranks: twoUp, declare: declarePeek, split: needsSHM, vary: []dimension{byMemory, bySize},
				options: "ranks=2 memory=heap sizes=1M", what: "out of another process, by process_vm_readv", short: "Copy memory out of another process"},
		},
		procedures())
}

// transfers are the four patterns of messages between two ranks, with the options that
// latency, both bandwidths and rate have beyond those of all.
func transfers(base pattern, lat, bw, rate string) []*pattern {
	base.ranks = twoRanks
	var list []*pattern
	for _, t := range []struct {
		name, unit, what, short, options string
		messages                         func(*spec) int
	}{
		{patternLat, unitLatency, "half a round trip", "Latency: half a round trip", lat + " batch=-1", pingPong},
		{patternBW, unitBandwidth, "one way", "Bandwidth from rank 0 to rank 1", bw, oneWay},
		{patternBiBW, unitBandwidth, "both ways together", "Bandwidth of both directions together", bw, bothWays},
		{patternRate, unitRate, "one way", "Messages a second from rank 0 to rank 1", rate, oneWay},
	} {
		p := base
		p.name, p.unit, p.what, p.short, p.messages = t.name, t.unit, t.what, t.short, t.messages
		p.options += " " + t.options
		list = append(list, &p)
	}
	return list
}

// Messages of an iteration, of all ranks together, among which its time is shared.
func oneWay(s *spec) int   { return s.windowed }
func bothWays(s *spec) int { return 2 * s.windowed }
func bothEnds(*spec) int   { return 2 }
func hops(s *spec) int     { return s.ranks }
func faces(s *spec) int    { return 2 * s.ranks * len(axesOf(s.axis)) }

// pingPong: of operations that are a round trip by themselves the time is not halved.
func pingPong(s *spec) int {
	if operationOf(s.op).fetch {
		return 1
	}
	return 2
}

// A dimension makes several measurements of each.
type dimension func(o *options, list []spec) []spec

func vary[T any](list []spec, values []T, set func(*spec, T)) []spec {
	var all []spec
	for _, s := range list {
		for _, v := range values {
			one := s
			set(&one, v)
			all = append(all, one)
		}
	}
	return all
}

// bySize leaves out sizes of the default that the operation cannot have.
func bySize(o *options, list []spec) []spec {
	all := vary(list, o.bytes, func(s *spec, n int) { s.bytes = n })
	return slices.DeleteFunc(all, func(s spec) bool { return s.sizeError() != nil })
}

func byBlock(o *options, list []spec) []spec {
	return vary(list, o.blockBytes, func(s *spec, n int) { s.block = n })
}

func byMemory(o *options, list []spec) []spec {
	return vary(list, o.memories, func(s *spec, m string) { s.memory, s.op = m, m })
}

// byHeap is byMemory where results of operations name only the heap.
func byHeap(o *options, list []spec) []spec {
	return vary(list, o.memories, func(s *spec, m string) {
		if s.memory = m; m != memoryAlloc {
			s.op += " " + m
		}
	})
}

// byAlloc is byMemory where results of operations name only Alloc.
func byAlloc(o *options, list []spec) []spec {
	return vary(list, o.memories, func(s *spec, m string) {
		if s.memory = m; m != memoryHeap {
			s.op += " " + m
		}
	})
}

// byOp: by operation of verbs, by dialect of fanout, by calls of impi.
func byOp(o *options, list []spec) []spec {
	return vary(list, o.ops, func(s *spec, op string) { s.op = op })
}

func byAxis(o *options, list []spec) []spec {
	return vary(list, o.axes, func(s *spec, axis string) { s.axis, s.halo, s.bytes = axis, o.halo, axisBytes(axis) })
}

func (p *pattern) command() string {
	if p.use != "" {
		return p.use
	}
	return p.name
}

// findPattern is the pattern of a command; nil: there is none.
func findPattern(layer, command string) *pattern {
	return firstPattern(func(p *pattern) bool { return p.layer == layer && p.command() == command })
}

func firstPattern(is func(*pattern) bool) *pattern {
	if i := slices.IndexFunc(patterns, is); i >= 0 {
		return patterns[i]
	}
	return nil
}

// unitOf is the unit that results of a pattern have; empty: there is no such pattern.
func unitOf(name string) string { return unitOfFigure(name, "") }

// unitOfFigure is the unit of one of its figures.
func unitOfFigure(name, figure string) string {
	p := firstPattern(func(p *pattern) bool { return p.name == name && (figure == "" || p.figures[figure] != "") })
	switch {
	case figure == figureNeighbour:
		return unitShare
	case figure == figureMean, figure == figureP99:
		return unitLatency
	case p == nil:
		return ""
	case figure != "":
		return p.figures[figure]
	}
	return p.unit
}

// option is the default of one of its flags, and whether it applies.
func (p *pattern) option(flag string) (usual string, applies bool) {
	for _, f := range strings.Fields(timingOptions + p.options) {
		if name, value, _ := strings.Cut(f, "="); name == flag {
			usual, applies = value, true
		}
	}
	return usual, applies
}
