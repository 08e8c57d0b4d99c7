package main

import (
	"time"

	"github.com/spf13/pflag"
)

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

	histogram bool
}

func (o *timing) addFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.time, "time", defaultTime, "measured time of each size and round")
	f.IntVar(&o.iters, "iters", 0, "measure so many iterations (messages, of bandwidth and rate) instead of by time")
	f.DurationVar(&o.warmup, "warmup", defaultWarmup, "warm up by ever more iterations until that many take this long and no less than before")
	f.BoolVar(&o.verify, "verify", true, "check every byte, both ways, before timing")
	f.IntVar(&o.rounds, "rounds", 1, "measure all sizes so many times over, and give the spread of the medians")
	f.BoolVar(&o.mean, "mean", false, "take one sample, the mean of all that is measured, as perftest's bandwidth is")
	f.BoolVar(&o.allocs, "allocs", false, "show the heap allocations of a message")
	f.BoolVar(&o.histogram, "histogram", false, "with --json: all samples, as an HdrHistogram")
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
		time: o.time, iters: o.iters, batch: max(o.batch, 0), warmup: o.warmup, verify: o.verify, histogram: o.histogram}
}
