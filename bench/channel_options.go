package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// channelOptions are the flags of bench channel, halo, ring and local.
type channelOptions struct {
	pattern string
	jobFlags
	memoryFlags
	sizeFlags
	blocks string
	packed bool
	late   bool
	window int
	axis   string
	halo   string
	timing

	block []int // 0: one piece
	axes  []string
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
	o.addMemory(f, "Node.Alloc")
	if o.pattern == patternLocal || o.pattern == patternAddSlice {
		o.provider = providerSelf
	} else {
		o.addProvider(f, "")
	}
	switch o.pattern {
	case patternHalo:
		o.addRanks(f, defaultRanks)
		f.StringVar(&o.axis, "axis", strings.Join(axes, ","), "axes of which the faces are exchanged, one after the other: a list; all: of x, y, z and t at once")
		f.StringVar(&o.halo, "halo", haloPacked, "receive into: packed (one contiguous buffer for a face) or strided (a field, as the face was sent from)")
		return
	case patternRing:
		o.addRanks(f, defaultRingRanks)
		f.StringVar(&o.sizes, "sizes", "8", "bytes, as of bench channel lat")
	case patternLocal:
		f.StringVar(&o.sizes, "sizes", "8", "bytes, as of bench channel lat")
	case patternAddSlice:
		f.StringVar(&o.sizes, "sizes", "8M", "bytes of the terms, as of bench channel bw; whole doubles")
		return
	default:
		o.addSizes(f, "bytes", patternSizes)
		f.StringVar(&o.blocks, "blocks", "", "messages made of blocks of so many bytes, with as much room behind each: sizes as of --sizes, which are multiples (default one piece)")
		f.BoolVar(&o.packed, "packed", false, "receive into one piece what is sent in blocks")
		if o.pattern == patternLat {
			f.BoolVar(&o.late, "late", false, "start each receive when its message has been announced, by another one: the receiver comes second")
		}
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
	if err := o.checkMemory(); err != nil {
		return err
	}
	op := memoryOperation(o.memory)
	if o.pattern == patternHalo {
		if o.axes, err = parseList("axis", o.axis, axes...); err != nil {
			return err
		}
		if o.halo != haloPacked && o.halo != haloStrided {
			return usagef("--halo %q: want %s or %s", o.halo, haloPacked, haloStrided)
		}
	} else if err := o.checkSizes(op, o.pattern); err != nil {
		return err
	}
	o.block = []int{0}
	if o.blocks != "" {
		if o.block, err = parseSizes(o.blocks); err != nil {
			return err
		}
	}
	if o.packed && o.blocks == "" {
		return usagef("--packed: want --blocks, of which it makes one piece")
	}
	for _, block := range o.block {
		for _, n := range o.bytes {
			if o.blocks != "" && (block == 0 || n == 0 || n%block != 0 || n > maxSize/2) {
				return usagef("--blocks %s: messages of %s are not made of them", formatSize(int64(block)), formatSize(int64(n)))
			}
		}
	}
	if o.pattern == patternAddSlice {
		if slices.Contains(o.bytes, 0) {
			return usagef("--sizes 0: want whole doubles")
		}
		if err := inDoubles(o.bytes); err != nil {
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
	case patternLocal, patternAddSlice:
		t.start, t.least, t.most = 1, 1, 1
	case patternHalo, patternRing:
		t.start, t.most = o.ranks, 0
	}
	var n *node
	t.join = func(ctx context.Context) (_ rankJob, err error) {
		n, o.provider, err = joinBest(ctx, o.provider)
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
	for _, block := range o.block {
		for _, bytes := range o.bytes {
			s := o.spec(o.pattern, op, bytes)
			s.block, s.packed, s.late = block, o.packed, o.late
			switch o.pattern {
			case patternRing:
				s.ranks = n.Size()
			case patternBW, patternBiBW, patternRate:
				s.window = o.window
			}
			add(s)
		}
	}
	for _, axis := range o.axes {
		s := o.spec(o.pattern, op, 2*len(axesOf(axis))*faceBytes)
		s.axis, s.halo, s.ranks = axis, o.halo, n.Size()
		add(s)
	}
	return r
}
