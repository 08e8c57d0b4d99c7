package main

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/verbs"
)

// verbsRun is one table of results: one pattern and operation over one device.
type verbsRun struct {
	pairOptions
	rounds
	pattern string
	missing string // why it cannot be run; empty: it can
}

// verbsOptions are the flags of bench verbs.
type verbsOptions struct {
	pattern     string
	provider    string
	device      string
	op          string
	sizes       string
	window      int
	list        int
	inline      int
	signalEvery int
	mr          string
	events      bool
	portable    bool
	timing

	operation operation
	bytes     []int
}

// timing says how long and how often is measured: flags of all patterns.
type timing struct {
	time   time.Duration
	iters  int
	warmup time.Duration
	batch  int  // of latency
	mean   bool // one sample
	verify bool
	rounds int
	allocs bool
}

func (o *timing) addFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.time, "time", defaultTime, "measured time of each size and round")
	f.IntVar(&o.iters, "iters", 0, "measure so many iterations (messages, of bandwidth and rate) instead of by time")
	f.DurationVar(&o.warmup, "warmup", defaultWarmup, "warm up by doubling iterations until that many take this long")
	f.BoolVar(&o.verify, "verify", true, "check every byte, both ways, before timing")
	f.IntVar(&o.rounds, "rounds", 1, "measure all sizes so many times over, and give the spread of the medians")
	f.BoolVar(&o.mean, "mean", false, "take one sample, the mean of all that is measured, as perftest's bandwidth is")
	f.BoolVar(&o.allocs, "allocs", false, "show the heap allocations of a message")
}

// addBatch adds the flag of patterns that can time each iteration.
func (o *timing) addBatch(f *pflag.FlagSet) {
	f.IntVar(&o.batch, "batch", eachIteration, "no clock in the loop: time batches, of N iterations, or (--batch alone) as many as fit 200 µs")
	f.Lookup("batch").NoOptDefVal = "0"
}

func (o *timing) check() error {
	switch {
	case o.time <= 0 || o.time > maxTime:
		return usagef("--time %v: want more than 0, at most %v", o.time, maxTime)
	case o.warmup < 0 || o.warmup > maxTime:
		return usagef("--warmup %v: want 0 to %v", o.warmup, maxTime)
	}
	for _, c := range []struct {
		name   string
		v      int
		lo, hi int
	}{
		{"iters", o.iters, 0, 1 << 40},
		{"batch", o.batch, eachIteration, 1 << 30},
		{"rounds", o.rounds, 1, 1000},
	} {
		if err := inRange(c.name, c.v, c.lo, c.hi); err != nil {
			return err
		}
	}
	return nil
}

// spec is a measurement of a pattern.
func (o *timing) spec(pattern string, op operation, bytes int) spec {
	return spec{pattern: pattern, op: op, bytes: bytes, each: o.batch == eachIteration && !o.mean && unitOf(pattern) == unitLatency, mean: o.mean,
		time: o.time, iters: o.iters, batch: max(o.batch, 0), warmup: o.warmup, verify: o.verify}
}

// Defaults, and the bounds of what can be asked for.
const (
	defaultTime       = 100 * time.Millisecond
	summaryTime       = 50 * time.Millisecond // there are many sizes, and nobody waits a minute
	defaultWarmup     = 5 * time.Millisecond
	defaultWindow     = 64
	defaultRateWindow = 256
	maxWindow         = 4096
	maxTime           = time.Hour
	eachIteration     = -1 // of --batch
)

func (o *verbsOptions) addFlags(f *pflag.FlagSet, op string) {
	f.StringVar(&o.provider, "provider", "", "provider, by its first device: shm, tcp, ... (default the best there is)")
	f.StringVar(&o.device, "device", "", "device, by its name")
	f.StringVar(&o.op, "op", op, "operation: "+operationNames())
	f.StringVar(&o.sizes, "sizes", "", "bytes: MIN:MAX (powers of two between) or a list; k, M, G are binary (default 0:4M as far as the pattern allows)")
	o.timing.addFlags(f)
	f.IntVar(&o.inline, "inline", -1, "give messages of at most so many bytes inline (default 256, over memory that peers map 32, or the device's limit)")
	f.StringVar(&o.mr, "mr", "alloc", "buffers: alloc (the provider's memory) or heap (Go memory, registered)")
	f.BoolVar(&o.events, "events", false, "wait by sleeping on a completion channel, not by polling")
	f.BoolVar(&o.portable, "portable", false, "tcp: use only what every operating system has")
	if o.pattern == patternLat {
		f.IntVar(&o.signalEvery, "signal-every", latencySignal, "signal one send in so many")
		o.addBatch(f)
		return
	}
	window := defaultWindow
	if o.pattern == patternRate {
		window = defaultRateWindow
	}
	f.IntVar(&o.window, "window", window, "messages outstanding (fewer where they exceed 64 MiB together)")
	f.IntVar(&o.list, "list", 0, "post work requests in lists of at most so many (default an eighth of the window)")
	f.IntVar(&o.signalEvery, "signal-every", 0, "signal one work request in so many (default a quarter of the window)")
}

// check completes the options, or says which of them cannot be.
func (o *verbsOptions) check() error {
	var err error
	if o.operation, err = findOperation(o.op); err != nil {
		return err
	}
	if o.sizes == "" {
		o.bytes = o.operation.defaultSizes(o.pattern)
	} else if o.bytes, err = parseSizes(o.sizes); err != nil {
		return err
	}
	for _, n := range o.bytes {
		if err := o.operation.checkSize(o.pattern, n); err != nil {
			return err
		}
	}
	if o.pattern != patternLat {
		if o.list == 0 {
			o.list = max(1, o.window/8)
		}
		if o.signalEvery == 0 {
			o.signalEvery = max(1, o.window/4)
		}
		if err := inRange("window", o.window, 1, maxWindow); err != nil {
			return err
		}
		if err := inRange("list", o.list, 1, maxWindow); err != nil {
			return err
		}
	}
	switch {
	case o.mr != "alloc" && o.mr != "heap":
		return usagef("--mr %q: want alloc or heap", o.mr)
	case o.provider != "" && o.device != "":
		return usagef("--provider and --device: want one of them")
	case o.events && o.pattern == patternLat && !o.operation.recv && !o.operation.fetch:
		return usagef("--events: the peer of a plain write gets no completion to wait for; use write-imm")
	}
	if err := inRange("signal-every", o.signalEvery, 1, maxWindow); err != nil {
		return err
	}
	return o.timing.check()
}

func inRange(name string, v, lo, hi int) error {
	if v < lo || v > hi {
		return usagef("--%s %d: want %d to %d", name, v, lo, hi)
	}
	return nil
}

// runs is what the options ask for: one table.
func (o *verbsOptions) runs(ctx context.Context, job exchanger) ([]verbsRun, error) {
	device := o.device + o.provider
	if device == "" {
		name := ""
		best, err := bestDevice()
		if err == nil {
			name = best.Name()
		}
		all, err := share(ctx, job, name, err)
		if err != nil {
			return nil, err
		}
		device = all[0]
	}
	r := verbsRun{pattern: o.pattern, rounds: rounds{count: o.rounds},
		pairOptions: pairOptions{device: device, portable: o.portable, heap: o.mr == "heap", events: o.events, inline: o.inline}}
	for _, n := range o.bytes {
		s := o.spec(o.pattern, o.operation, n)
		s.window, s.list, s.every = o.window, o.list, o.signalEvery
		r.add(s)
	}
	return []verbsRun{r}, nil
}

// add appends a measurement and makes the pair large enough for it.
func (r *verbsRun) add(s spec) {
	r.specs = append(r.specs, s)
	r.maxBytes = max(r.maxBytes, s.bytes)
	if s.pattern == patternLat {
		r.sendDepth, r.recvDepth = latencySendDepth(s.every), latencyRecvDepth
	} else {
		r.sendDepth, r.recvDepth = streamSendDepth(s.window), streamRecvs
	}
}

// bestDevice is the device that the library would choose.
func bestDevice() (*verbs.Device, error) {
	devs, err := verbs.Devices()
	if len(devs) == 0 {
		return nil, verbs.Errorf("", "choose device", cmp.Or(err, verbs.ErrNoDevice), "of %d providers", len(verbs.Providers()))
	}
	return devs[0], nil
}

// summaryOptions are the flags of bench without a subcommand.
type summaryOptions struct {
	time     time.Duration
	sizes    string
	portable bool
}

func (o *summaryOptions) addFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.time, "time", summaryTime, "measured time of each size")
	f.StringVar(&o.sizes, "sizes", "", "bytes, as of bench verbs (default 0:4M)")
	f.BoolVar(&o.portable, "portable", false, "tcp: use only what every operating system has")
}

// runs is one table of latency and one of bandwidth for each provider, best
// first. One that is not there, at either rank, is a run that says why.
func (o *summaryOptions) runs(ctx context.Context, job exchanger) ([]verbsRun, error) {
	var runs []verbsRun
	for _, p := range verbs.Providers() {
		why := ""
		if _, err := verbs.Find(p.Name); err != nil {
			why = err.Error()
		}
		all, err := share(ctx, job, why, nil)
		if err != nil {
			return nil, err
		}
		if why := cmp.Or(all...); why != "" {
			runs = append(runs, verbsRun{missing: p.Name + ": " + why})
			continue
		}
		for _, c := range []struct{ pattern, op string }{{patternLat, "send"}, {patternBW, "write"}} {
			v := verbsOptions{pattern: c.pattern, provider: p.Name, op: c.op, sizes: o.sizes, window: defaultWindow, inline: -1,
				signalEvery: latencySignal, mr: "alloc", portable: o.portable,
				timing: timing{time: o.time, warmup: defaultWarmup, batch: eachIteration, verify: true, rounds: 1}}
			if c.pattern != patternLat {
				v.signalEvery = 0
			}
			if err := v.check(); err != nil {
				return nil, err
			}
			r, err := v.runs(ctx, job)
			if err != nil {
				return nil, err
			}
			runs = append(runs, r...)
		}
	}
	return runs, nil
}
