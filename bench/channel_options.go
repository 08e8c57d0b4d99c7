package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// channelOptions are the flags of bench channel, halo, ring and local.
type channelOptions struct {
	pattern  string
	provider string
	memory   string
	sizes    string
	window   int
	ranks    int
	axis     string
	halo     string
	timing

	memories []string
	bytes    []int
	axes     []string
}

// Whose memory messages lie in: the operation of results of channels.
const (
	memoryAlloc = "alloc" // of Node.Alloc
	memoryHeap  = "heap"  // of Go's heap
)

// providerSelf moves messages within a rank.
const providerSelf = "self"

const (
	defaultChannelWindow = 16
	defaultRanks         = 2
	defaultRingRanks     = 8
	maxRanks             = 1024
)

func (o *channelOptions) addFlags(f *pflag.FlagSet) {
	o.timing.addFlags(f)
	f.StringVar(&o.memory, "memory", memoryAlloc, "buffers: alloc (Node.Alloc), heap (Go memory, pinned), or both in a list")
	if o.pattern == patternLocal {
		o.provider = providerSelf
	} else {
		f.StringVar(&o.provider, "provider", "", "provider: shm, tcp, ... (default the best there is)")
	}
	switch o.pattern {
	case patternHalo:
		f.IntVar(&o.ranks, "ranks", defaultRanks, "ranks to start; a job has its own number")
		f.StringVar(&o.axis, "axis", strings.Join(axes, ","), "axes of which the faces are exchanged, one after the other: a list; all: of x, y, z and t at once")
		f.StringVar(&o.halo, "halo", haloPacked, "receive into: packed (one contiguous buffer for a face) or strided (a field, as the face was sent from)")
		return
	case patternRing:
		f.IntVar(&o.ranks, "ranks", defaultRingRanks, "ranks to start; a job has its own number")
		f.StringVar(&o.sizes, "sizes", "8", "bytes, as of bench channel lat")
	case patternLocal:
		f.StringVar(&o.sizes, "sizes", "8", "bytes, as of bench channel lat")
	default:
		f.StringVar(&o.sizes, "sizes", "", "bytes: MIN:MAX (powers of two between) or a list; k, M, G are binary (default 0:4M as far as the pattern allows)")
	}
	if unitOf(o.pattern) == unitLatency {
		o.addBatch(f)
		return
	}
	window := defaultChannelWindow
	if o.pattern == patternRate {
		window = defaultWindow
	}
	f.IntVar(&o.window, "window", window, "handles started at once (fewer where they exceed 64 MiB together)")
}

// memoryOperation is the operation of messages in a kind of memory.
func memoryOperation(memory string) operation { return operation{name: memory, recv: true} }

// check completes the options, or says which of them cannot be.
func (o *channelOptions) check() error {
	var err error
	if o.memories, err = parseList("memory", o.memory, memoryAlloc, memoryHeap); err != nil {
		return err
	}
	op := memoryOperation(o.memory)
	switch {
	case o.pattern == patternHalo:
		if o.axes, err = parseList("axis", o.axis, axes...); err != nil {
			return err
		}
		if o.halo != haloPacked && o.halo != haloStrided {
			return usagef("--halo %q: want %s or %s", o.halo, haloPacked, haloStrided)
		}
	case o.sizes == "":
		o.bytes = op.defaultSizes(o.pattern)
	default:
		if o.bytes, err = parseSizes(o.sizes); err != nil {
			return err
		}
	}
	for _, n := range o.bytes {
		if err := op.checkSize(o.pattern, n); err != nil {
			return err
		}
	}
	if o.ranks != 0 || o.pattern == patternHalo || o.pattern == patternRing {
		if err := inRange("ranks", o.ranks, 2, maxRanks); err != nil {
			return err
		}
	}
	if slices.Contains([]string{patternBW, patternBiBW, patternRate}, o.pattern) {
		if err := inRange("window", o.window, 1, maxWindow); err != nil {
			return err
		}
	}
	return o.timing.check()
}

// parseList reads a list of words, each one of those that can be.
func parseList(flag, text string, words ...string) ([]string, error) {
	list := strings.Split(text, ",")
	for _, w := range list {
		if !slices.Contains(words, w) {
			return nil, usagef("--%s %q: want %s, or several of them", flag, w, strings.Join(words, ", "))
		}
	}
	return list, nil
}

// task is what the options ask for: one table for each kind of memory.
func (o *channelOptions) task() task {
	t := task{start: 2, least: 2, most: 2}
	switch o.pattern {
	case patternLocal:
		t.start, t.least, t.most = 1, 1, 1
	case patternHalo, patternRing:
		t.start, t.most = o.ranks, 0
	}
	var n *node
	t.join = func(ctx context.Context) (_ rankJob, err error) {
		if o.provider == "" {
			best, err := bestDevice()
			if err != nil {
				return nil, err
			}
			o.provider = best.Provider()
		}
		n, err = joinNode(ctx, o.provider)
		return n, err
	}
	t.plan = func(context.Context) ([]run, error) {
		var plan []run
		for _, memory := range o.memories {
			plan = append(plan, o.runIn(n, memory))
		}
		return plan, nil
	}
	return t
}

func (o *channelOptions) runIn(n *node, memory string) *channelRun {
	r := &channelRun{node: n, provider: o.provider, memory: memory, rounds: rounds{count: o.rounds}}
	add := func(s spec) {
		r.specs = append(r.specs, s)
		r.arena = max(r.arena, arenaSize(&s))
	}
	op := memoryOperation(memory)
	for _, bytes := range o.bytes {
		s := o.spec(o.pattern, op, bytes)
		switch o.pattern {
		case patternRing:
			s.ranks = n.Size()
		case patternBW, patternBiBW, patternRate:
			s.window = o.window
		}
		add(s)
	}
	for _, axis := range o.axes {
		s := o.spec(o.pattern, op, 2*len(axesOf(axis))*faceBytes)
		s.axis, s.halo, s.ranks = axis, o.halo, n.Size()
		add(s)
	}
	return r
}
