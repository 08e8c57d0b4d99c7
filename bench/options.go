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
	pattern  string
	provider string
	device   string
	op       string
	sizeFlags
	window      int
	list        int
	inline      int
	signalEvery int
	mr          string
	events      bool
	portable    bool
	timing

	operation operation
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
	o.addSizes(f, "bytes", patternSizes)
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
	if err := o.checkSizes(o.operation, o.pattern); err != nil {
		return err
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
	device, err := o.between(ctx, job)
	if err != nil {
		return nil, err
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

// between is the device of this rank that leads to the other: the one asked for, or the
// best of the provider; between different hosts none that stays within one.
func (o *verbsOptions) between(ctx context.Context, job exchanger) (string, error) {
	p, err := findPlaces(ctx, job)
	if err != nil || o.device != "" {
		return o.device, err
	}
	name := o.provider
	if name == "" {
		best, err := bestDevice()
		if err == nil && p.apart && best.Provider() == providerSHM {
			best, err = p.bestAway()
		}
		if err == nil {
			name = best.Name()
			if p.apart {
				name = best.Provider()
			}
		}
		all, err := share(ctx, job, name, err)
		if err != nil {
			return "", err
		}
		name = all[0]
	}
	if p.apart {
		return p.deviceOf(name), nil
	}
	return name, nil
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

// runs is one table of latency and one of bandwidth for each provider that a layer
// above chooses by itself, best first. One that is not there, at either rank, is a run that says why.
func (o *summaryOptions) runs(ctx context.Context, job exchanger) ([]verbsRun, error) {
	var runs []verbsRun
	places, err := findPlaces(ctx, job)
	if err != nil {
		return nil, err
	}
	for _, p := range verbs.Providers() {
		if p.OnRequest {
			continue
		}
		why := ""
		if _, err := verbs.Find(p.Name); err != nil {
			why = err.Error()
		}
		all, err := share(ctx, job, why, nil)
		if err != nil {
			return nil, err
		}
		why = cmp.Or(all...)
		if why == "" && p.Name == providerSHM && places.apart {
			why = "the ranks are on different hosts"
		}
		if why != "" {
			runs = append(runs, verbsRun{missing: p.Name + ": " + why})
			continue
		}
		for _, c := range []struct{ pattern, op string }{{patternLat, "send"}, {patternBW, "write"}} {
			v := verbsOptions{pattern: c.pattern, provider: p.Name, op: c.op, sizeFlags: sizeFlags{sizes: o.sizes}, window: defaultWindow, inline: -1,
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
