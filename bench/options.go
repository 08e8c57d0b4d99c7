package main

import (
	"cmp"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// options are the options of all patterns. The pattern says which apply, and their defaults.
type options struct {
	provider, device, carrier   string
	ranks                       int
	op, dialect, call, memory   string
	sizes, doubles, blocks      string
	packed, late                bool
	axis, halo                  string
	window, list, inline, every int
	kinds, count, loss, load    string
	events, portable            bool

	time, warmup  time.Duration
	iters, rounds int
	batch         int // of latency; eachIteration: none
	each          bool
	mean          bool // one sample
	verify        bool
	allocs        bool
	histogram     bool

	// Set by check: the dimensions to vary.
	ops, memories, calls, axes, carriers, losses []string
	bytes, blockBytes, counts                    []int
}

// Defaults and bounds.
const (
	defaultWindow        = 64
	defaultChannelWindow = 16
	defaultRingRanks     = 8
	maxWindow            = 4096
	maxRanks             = 1024
	maxTime              = time.Hour
	eachIteration        = -1 // of --batch

	timingOptions = "time=100ms iters=0 warmup=5ms verify rounds=1 mean allocs histogram load "
)

// The memory of messages. "alloc>heap" is different memory at the two ends, the sender's first.
const (
	memoryAlloc = "alloc" // from Node.Alloc, Job.Alloc, or the provider
	memoryHeap  = "heap"  // from Go's heap
	memoryNode  = "node"  // from Node.Alloc, also where alloc is from Job.Alloc
)

var memoryKinds = []string{memoryAlloc, memoryHeap, memoryAlloc + ">" + memoryHeap, memoryHeap + ">" + memoryAlloc, memoryNode}

// listForm is the form of a list of sizes.
const listForm = "MIN:MAX (powers of two between; MIN:MAX:xN of N) or a list; k, M, G are binary"

// flags are all flags there are.
func (o *options) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.StringVar(&o.provider, "provider", "", "provider: shm, tcp, ... (default the best available)")
	f.StringVar(&o.device, "device", "", "device, by its name")
	f.StringVar(&o.carrier, "carrier", "", "what carries packets: "+strings.Join(impiCarriers, ", ")+", or several in a list (default all that are available)")
	f.IntVarP(&o.ranks, "ranks", "n", 2, "ranks to start; ignored under a launcher")
	f.StringVar(&o.op, "op", "", "operation: "+strings.Join(operationNames(), ", ")+", or several in a list")
	f.StringVar(&o.dialect, "dialect", "", "dialects: a list")
	f.StringVar(&o.call, "call", "", "called (Group.Run), declared (Group.Declare, started again and again), or both in a list")
	f.StringVar(&o.memory, "memory", "", "buffers: alloc (the library's), heap (Go's), node (Node.Alloc's, where alloc is impi's), alloc>heap, heap>alloc (different at sender and receiver), or several in a list")
	f.StringVar(&o.sizes, "sizes", "", "bytes of a message, of a vector, of each rank's block: "+listForm+" (default 0:4M as far as the pattern allows)")
	f.StringVar(&o.doubles, "doubles", "", "the same in doubles")
	f.StringVar(&o.blocks, "blocks", "", "messages made of blocks of these sizes, with gaps of the same length; --sizes must be multiples (default one piece)")
	f.BoolVar(&o.packed, "packed", false, "receive into one piece the messages that are sent in blocks")
	f.BoolVar(&o.late, "late", false, "start each receive after another message has announced its message: the receiver comes second")
	f.StringVar(&o.axis, "axis", "", "axes whose faces are exchanged, one after the other: a list; all: x, y, z and t at once; half (qmp): t, 96 contiguous bytes a site")
	f.StringVar(&o.halo, "halo", haloPacked, "receive into: packed (one contiguous buffer for a face) or strided (a field, as the face was sent from)")
	f.IntVar(&o.window, "window", 0, "messages outstanding (fewer if they exceed 64 MiB together)")
	f.IntVar(&o.list, "list", 0, "post work requests in lists of at most this length (default an eighth of the window)")
	f.IntVar(&o.inline, "inline", -1, "post messages up to this length inline (default 256, or 32 over memory that peers map, or the device's limit)")
	f.IntVar(&o.every, "signal-every", 0, "signal one work request in N (default a quarter of the window)")
	f.BoolVar(&o.events, "events", false, "wait by sleeping on a completion channel, not by polling")
	f.BoolVar(&o.portable, "portable", false, "tcp: use only what every operating system has")
	f.StringVar(&o.kinds, "kinds", "", "operations to measure: a list")
	f.StringVar(&o.count, "count", "", "numbers of objects to measure with: "+listForm)
	f.StringVar(&o.loss, "loss", "", "percentages of lost packets: a list")
	f.StringVar(&o.load, "load", "", "what shares the CPUs: "+loadBusy+" (a computing process on each core) or "+loadQuota+" (half a CPU a rank, by cgroup); then each iteration is timed, at most 4,000,000")
	f.BoolVar(&o.each, "each", false, "time each iteration, with the clock in the loop")

	f.DurationVar(&o.time, "time", 0, "measured time of each size and round")
	f.IntVar(&o.iters, "iters", 0, "measure N iterations (for bandwidth and rate: messages) instead of by time")
	f.DurationVar(&o.warmup, "warmup", 0, "warm up until iterations take this long and no longer get faster")
	f.BoolVar(&o.verify, "verify", true, "check every byte, before and after timing")
	f.IntVar(&o.rounds, "rounds", 1, "measure all sizes N times, and show the spread of the medians")
	f.BoolVar(&o.mean, "mean", false, "take one sample, the mean of the whole measurement, as perftest does for bandwidth")
	f.BoolVar(&o.allocs, "allocs", false, "show the heap allocations of a message")
	f.BoolVar(&o.histogram, "histogram", false, "with --json: all samples, as an HdrHistogram")
	f.IntVar(&o.batch, "batch", 0, "no clock in the loop: time batches of N iterations, or (--batch alone, or 0) of as many as fit into 200 µs")
	return f
}

// addFlags adds the flags that apply to the pattern, of options o, unless f has them.
func (p *pattern) addFlags(f *pflag.FlagSet, o *options) {
	o.flags().VisitAll(func(flag *pflag.Flag) {
		usual, applies := p.option(flag.Name)
		if !applies {
			return
		}
		if usual != "" {
			if err := flag.Value.Set(usual); err != nil {
				panic(err) // it stands in the table
			}
			flag.DefValue = usual
		}
		if flag.Name == "batch" && o.batch == eachIteration { // --batch needs no value
			flag.NoOptDefVal = "0"
		}
		if f.Lookup(flag.Name) == nil {
			f.AddFlag(flag)
		}
	})
}

// parse makes the options of a pattern from the flags of the command line. It ignores flags that
// do not apply: they are for other patterns of the same command.
func (p *pattern) parse(given map[string]string) *options {
	o := &options{}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	p.addFlags(f, o)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if f.Lookup(name) == nil {
			continue
		}
		if err := f.Set(name, given[name]); err != nil {
			must(invalidFlag(err))
		}
	}
	o.complete(p, given)
	return o
}

// complete checks the options, and fills in what they vary.
func (o *options) complete(p *pattern, given map[string]string) {
	o.memories, o.ops, o.blockBytes = []string{memoryAlloc}, []string{p.name}, []int{0}
	usualKinds, _ := p.option("kinds")
	for _, l := range []struct {
		flag, text string
		words      []string
		to         *[]string
	}{
		{"memory", o.memory, memoryKinds, &o.memories},
		{"carrier", cmp.Or(o.carrier, strings.Join(impiCarriers, ",")), impiCarriers, &o.carriers},
		{"op", o.op, operationNames(), &o.ops},
		{"dialect", o.dialect, dialects, &o.ops},
		{"call", o.call, []string{callCalled, callDeclared}, &o.calls},
		{"axis", o.axis, qmpAxes, &o.axes},
		{"halo", o.halo, []string{haloPacked, haloStrided}, new([]string)},
		{"kinds", o.kinds, strings.Split(usualKinds, ","), &o.ops},
		{"loss", o.loss, lossWords, &o.losses},
	} {
		if _, applies := p.option(l.flag); applies {
			*l.to = parseList(l.flag, l.text, l.words...)
		}
	}
	o.checkSizes(p, given)
	if _, applies := p.option("count"); applies {
		o.counts = sizesOf("count", o.count)
		for _, n := range o.counts {
			inRange("count", n, 1, maxCount)
		}
	}
	for _, r := range []struct {
		flag      string
		v, lo, hi int
	}{
		{"ranks", o.ranks, max(p.ranks.least, 1), maxRanks},
		{"window", o.window, 1, maxWindow},
		{"list", o.list, 0, maxWindow},
		{"signal-every", o.every, 0, maxWindow},
		{"iters", o.iters, 0, 1 << 40},
		{"batch", o.batch, eachIteration, 1 << 30},
		{"rounds", o.rounds, 1, 1000},
	} {
		if _, applies := p.option(r.flag); applies {
			inRange(r.flag, r.v, r.lo, r.hi)
		}
	}
	checkTime(o.time)
	switch {
	case o.warmup < 0 || o.warmup > maxTime:
		must(usagef("--warmup %v: want 0 to %v", o.warmup, maxTime))
	case o.each && given["batch"] != "":
		must(usagef("--each and --batch exclude each other"))
	case o.load != "" && o.load != loadBusy && o.load != loadQuota:
		must(usagef("--load %q: want %s or %s", o.load, loadBusy, loadQuota))
	}
	o.each = o.each || o.batch == eachIteration || o.load != ""
	if p.check != nil {
		p.check(o)
	}
}

// checkSizes reads --sizes, --doubles or --blocks. Given sizes must be possible; impossible ones
// of the default are left out.
func (o *options) checkSizes(p *pattern, given map[string]string) {
	text, unit, flag := o.sizes, 1, "sizes"
	_, sums := p.option("doubles")
	switch {
	case given["sizes"] != "" && given["doubles"] != "":
		must(usagef("--sizes and --doubles exclude each other"))
	case sums && o.doubles != "":
		text, unit, flag = o.doubles, doubleBytes, "doubles"
	case text == "" && p.name == patternRate:
		text = "0:4k"
	case text == "":
		text = "0:4M"
	}
	o.bytes = sizesOf(flag, text)
	for i, n := range o.bytes {
		if n > maxSize/unit || n == 0 && sums && p.layer == layerQMP {
			must(usagef("--doubles %s: at most %s", formatSize(int64(n)), formatSize(maxSize/doubleBytes)))
		}
		o.bytes[i] = n * unit
	}
	if o.blocks != "" {
		o.blockBytes = sizesOf("blocks", o.blocks)
	}
	if _, applies := p.option("sizes"); !applies || given["sizes"] == "" {
		return
	}
	for _, op := range o.ops {
		for _, n := range o.bytes {
			must((&spec{pattern: p, op: op, bytes: n}).sizeError())
		}
	}
}

func inRange(name string, v, lo, hi int) {
	if v < lo || v > hi {
		must(usagef("--%s %d: want %d to %d", name, v, lo, hi))
	}
}

func checkTime(t time.Duration) {
	if t <= 0 || t > maxTime {
		must(usagef("--time %v: want more than 0, at most %v", t, maxTime))
	}
}

// parseList reads a list of the given words.
func parseList(flag, text string, words ...string) []string {
	list := strings.Split(text, ",")
	for _, w := range list {
		if !slices.Contains(words, w) {
			must(usagef("--%s %q: want %s, or several of them", flag, w, strings.Join(words, ", ")))
		}
	}
	return list
}

// checkVerbs checks the options of operations and queues.
func checkVerbs(o *options) {
	if o.list == 0 {
		o.list = max(1, o.window/8)
	}
	if o.every == 0 {
		o.every = max(1, o.window/4)
	}
	for _, name := range o.ops {
		if op := operationOf(name); o.events && o.window == 0 && !op.recv && !op.fetch {
			must(usagef("--events: the peer of a plain write gets no completion to wait for; use write-imm"))
		}
	}
	if o.provider != "" && o.device != "" {
		must(usagef("--provider and --device exclude each other"))
	}
	if slices.ContainsFunc(o.memories, func(m string) bool { return strings.Contains(m, ">") }) {
		must(usagef("--memory %q: queue pairs need the same kind of memory at both ends", o.memory))
	}
}

// checkBlocks checks that messages consist of whole blocks.
func checkBlocks(o *options) {
	if o.packed && o.blocks == "" {
		must(usagef("--packed needs --blocks"))
	}
	for _, block := range o.blockBytes {
		for _, n := range o.bytes {
			if o.blocks != "" && (block == 0 || n == 0 || n%block != 0 || n > maxSize/2) {
				must(usagef("--blocks %s: a message of %s is not a multiple of that", formatSize(int64(block)), formatSize(int64(n))))
			}
		}
	}
}

// sizesOf reads the sizes that a flag has.
func sizesOf(flag, text string) []int {
	sizes, err := parseSizes(text)
	if err != nil {
		must(usagef("invalid value %q of --%s: %v; want sizes, such as 1,1k,1M or 8:1M", text, flag, err))
	}
	return sizes
}

// inDoubles returns an error unless all sizes are whole doubles.
func inDoubles(sizes []int) error {
	for _, n := range sizes {
		if n%doubleBytes != 0 {
			return usagef("--sizes %s: want whole doubles, of %d bytes", formatSize(int64(n)), doubleBytes)
		}
	}
	return nil
}

// maxSize bounds the bytes of a message, even if the device allows more.
const maxSize = 1 << 30

// parseSizes reads "min:max", which stands for min, the powers of two between, and max;
// "min:max:x4", for min, as long as there is one of at most max four times as much, and so on;
// a list "8,4k,1M"; or one size. Suffixes are binary: k, M, G.
func parseSizes(text string) (sizes []int, err error) {
	defer catch(&err)
	if from, to, isRange := strings.Cut(text, ":"); isRange {
		return parseRange(from, to), nil
	}
	for s := range strings.SplitSeq(text, ",") {
		sizes = append(sizes, must1(parseSize(s)))
	}
	return sizes, nil
}

func parseRange(from, to string) (sizes []int) {
	to, by, multiplied := strings.Cut(to, ":x")
	lo, hi := must1(parseSize(from)), must1(parseSize(to))
	if lo > hi {
		must(usagef("%d is more than %d", lo, hi))
	}
	if !multiplied {
		return doubling(lo, hi)
	}
	factor, err := strconv.Atoi(by)
	if err != nil || factor < 2 || lo == 0 {
		must(usagef("%q does not multiply %d", by, lo))
	}
	for n := lo; n <= hi; n *= factor {
		sizes = append(sizes, n)
	}
	return sizes
}

// doubling returns lo, the powers of two between, and hi.
func doubling(lo, hi int) []int {
	sizes := []int{lo}
	for n := 1 << bits.Len(uint(lo)); n < hi; n <<= 1 {
		sizes = append(sizes, n)
	}
	if hi > lo {
		sizes = append(sizes, hi)
	}
	return sizes
}

func parseSize(text string) (int, error) {
	digits, shift := strings.TrimSpace(text), 0
	if n := len(digits) - 1; n >= 0 {
		if k := strings.IndexByte("kKmMgG", digits[n]); k >= 0 {
			digits, shift = digits[:n], 10*(k/2+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0, usagef("%q is not a size", text)
	}
	if n > maxSize>>shift {
		return 0, usagef("%s is more than %s", text, formatSize(maxSize))
	}
	return int(n) << shift, nil
}

// formatSize writes n as parseSize reads it, with the largest suffix that fits.
func formatSize(n int64) string {
	for _, u := range []struct {
		shift  int
		suffix string
	}{{30, "G"}, {20, "M"}, {10, "k"}} {
		if n != 0 && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// formatValue writes a figure of a result with its significant digits.
func formatValue(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000 || a == 0:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// readable writes a figure with three digits and a suitable unit.
func readable(v float64, unit string) string {
	units := []string{unit}
	switch unit {
	case unitLatency:
		units = []string{"ns", "µs", "ms", "s"}
	case unitBandwidth:
		units = []string{"MB/s", "GB/s"}
	case unitRate, unitFanout:
		units = []string{unit, "k " + unit, "M " + unit}
	}
	for v >= 999.5 && len(units) > 1 {
		v /= 1000
		units = units[1:]
	}
	digits := 2
	for limit := 9.995; digits > 0 && v >= limit; limit *= 10 {
		digits--
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + units[0]
}
