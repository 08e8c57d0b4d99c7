package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// collectiveOptions are the flags of bench collectives, and of each by its name.
type collectiveOptions struct {
	kinds string
	jobFlags
	memoryFlags
	sizeFlags
	call    string
	doubles string
	each    bool
	timing

	patterns []string
	calls    []string
}

// exactBeside is what an exact sum is shown beside: an allreduce of 64 doubles.
const exactBeside = 64 * doubleBytes

// defaultCollectiveSizes are those of the OSU benchmarks, from one double on.
const defaultCollectiveSizes = "8:1M"

// collectivePatterns are all kinds of collectives, and exact sums.
func collectivePatterns() []string {
	var names []string
	for k := coll.Barrier; k <= coll.Alltoall; k++ {
		names = append(names, k.String())
	}
	return append(names, patternExact)
}

// addFlags adds the flags; of one kind alone where kinds is set.
func (o *collectiveOptions) addFlags(f *pflag.FlagSet) {
	o.timing.addFlags(f)
	o.addProvider(f, "; each rank is a host of its own but for shm")
	o.addRanks(f, defaultRanks)
	f.BoolVar(&o.each, "each", false, "time each collective, with the clock in the loop")
	f.IntVar(&o.batch, "batch", 0, "time batches of so many (default as many as fit 200 µs)")
	if o.kinds == "" {
		f.StringVar(&o.kinds, "kinds", strings.Join(collectivePatterns(), ","), "kinds: a list")
	}
	if o.kinds == patternExact {
		o.memory, o.call = memoryAlloc, callCalled
		return
	}
	f.StringVar(&o.call, "call", callCalled+","+callDeclared, "called (Group.Run), declared (Group.Declare, started again and again), or both in a list")
	if o.kinds == coll.Barrier.String() {
		o.memory = memoryAlloc
		return
	}
	o.addMemory(f, "Node.Alloc")
	o.addSizes(f, "bytes of the vector, or of each rank's block", defaultCollectiveSizes)
	f.StringVar(&o.doubles, "doubles", "", "the same in doubles, in place of --sizes")
}

// check completes the options, or says which of them cannot be.
func (o *collectiveOptions) check() error {
	var err error
	if o.patterns, err = parseList("kinds", o.kinds, collectivePatterns()...); err != nil {
		return err
	}
	if err := o.checkMemory(); err != nil {
		return err
	}
	if o.calls, err = parseList("call", o.call, callCalled, callDeclared); err != nil {
		return err
	}
	if err := inRange("ranks", o.ranks, 1, maxRanks); err != nil {
		return err
	}
	switch {
	case o.sizes != "" && o.doubles != "":
		return usagef("--sizes and --doubles: want one of them")
	case o.doubles != "":
		if o.bytes, err = parseSizes(o.doubles); err != nil {
			return err
		}
		for i, n := range o.bytes {
			if n > maxSize/doubleBytes {
				return usagef("--doubles %s: at most %s", formatSize(int64(n)), formatSize(maxSize/doubleBytes))
			}
			o.bytes[i] = n * doubleBytes
		}
	default:
		sizes := o.sizes
		if sizes == "" {
			sizes = defaultCollectiveSizes
		}
		if o.bytes, err = parseSizes(sizes); err != nil {
			return err
		}
	}
	if err := inDoubles(o.bytes); err != nil {
		return err
	}
	if o.each && o.batch != 0 {
		return usagef("--each and --batch: want one of them")
	}
	if o.each {
		o.batch = eachIteration
	}
	return o.timing.check()
}

// task is what the options ask for.
func (o *collectiveOptions) task() task {
	var n *node
	return task{
		start: o.ranks, least: 1,
		join: func(ctx context.Context) (_ rankJob, err error) {
			n, o.provider, err = joinBest(ctx, o.provider)
			return n, err
		},
		plan: func(ctx context.Context) (plan []run, err error) {
			if n.group, err = n.World(ctx); err != nil {
				return nil, err
			}
			for _, pattern := range o.patterns {
				for i, memory := range o.memories {
					if i > 0 && (pattern == coll.Barrier.String() || pattern == patternExact) {
						continue // these have no memory
					}
					r, err := o.runIn(n, pattern, memory)
					if err != nil {
						return nil, err
					}
					plan = append(plan, r)
				}
			}
			return plan, nil
		},
	}
}

// runIn is one kind in one kind of memory, by all ways of calling.
func (o *collectiveOptions) runIn(n *node, pattern, memory string) (*channelRun, error) {
	r := &channelRun{node: n, provider: o.provider, memory: memory, rounds: rounds{count: o.rounds}}
	add := func(pattern, call string, bytes int) error {
		s := o.collectiveSpec(pattern, call, memory, bytes, n.Size())
		r.specs = append(r.specs, s)
		if pattern == patternExact {
			return nil
		}
		if bytes > maxSize/n.Size() {
			return usagef("%s of %s: with %d ranks more than %s", pattern, formatSize(int64(bytes)), n.Size(), formatSize(maxSize))
		}
		r.arena = max(r.arena, collectiveArena(&s))
		return nil
	}
	if pattern == patternExact {
		if err := add(pattern, callCalled, exactBytes); err != nil {
			return nil, err
		}
		return r, add(coll.Allreduce.String(), callCalled, exactBeside)
	}
	sizes := o.bytes
	if pattern == coll.Barrier.String() {
		sizes = []int{0}
	}
	for _, call := range o.calls {
		for _, bytes := range sizes {
			if err := add(pattern, call, bytes); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// collectiveSpec is a measurement of a collective. Its operation is how it is called,
// and over what memory if over any. A barrier has no result to verify.
func (o *collectiveOptions) collectiveSpec(pattern, call, memory string, bytes, ranks int) spec {
	name := call
	if pattern != coll.Barrier.String() && pattern != patternExact {
		name += " " + memory
	}
	s := o.spec(pattern, memoryOperation(name), bytes)
	s.ranks, s.declared = ranks, call == callDeclared
	s.verify = s.verify && pattern != coll.Barrier.String()
	return s
}

// splitResults are those of each kind and way of calling, in their order.
func splitResults(rs []Result) [][]Result {
	var parts [][]Result
	for len(rs) > 0 {
		n := slices.IndexFunc(rs, func(r Result) bool { return r.Pattern != rs[0].Pattern || r.Op != rs[0].Op })
		if n < 0 {
			n = len(rs)
		}
		parts = append(parts, rs[:n])
		rs = rs[n:]
	}
	return parts
}
