package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/sluice-hpc/sluice/channel"
)

// messageVariables are the settings of messages that are tuned.
var messageVariables = []string{channel.EnvEagerTCP, channel.EnvPackTCP, channel.EnvReadTCP, channel.EnvEagerRDMA, channel.EnvPackRDMA, channel.EnvReadRDMA}

// way is a pair of ways that a message can go, and what each took, by size: the first up to
// a crossover, the second above it.
type way struct {
	title    string
	variable string // of the crossover; empty: there is none
	names    [2]string
	includes bool  // the crossover itself is of the first
	higher   bool  // more is better
	sizes    []int // ascending
	figures  [2][]float64
	setting  string // NAME=value that is better than the default; empty: none
}

// fit sets the crossover with which the sum of what is lost against the faster way of each
// size is least, if that is by a tenth of one message's time less than with the default.
func (w *way) fit() {
	if w.variable == "" {
		return
	}
	byDefault := channel.DefaultCrossover(w.variable)
	best, least := byDefault, w.loss(byDefault)-worthwhile
	for _, at := range w.candidates() {
		if l := w.loss(at); l < least {
			best, least = at, l
		}
	}
	if best != byDefault {
		w.setting = w.variable + "=" + strconv.Itoa(best)
	}
}

// candidates are the crossovers below, between and above the sizes.
func (w *way) candidates() []int {
	list := append([]int{0}, w.sizes...)
	if !w.includes { // all of them
		list = append(list, 2*w.sizes[len(w.sizes)-1])
	}
	return list
}

// first says whether a message of so many bytes goes the first way.
func (w *way) first(bytes, crossover int) bool {
	return bytes < crossover || w.includes && bytes == crossover
}

// loss is the sum of the logarithms of what is chosen over what is faster.
func (w *way) loss(crossover int) float64 {
	sum := 0.0
	for i, n := range w.sizes {
		chosen, other := w.figures[1][i], w.figures[0][i]
		if w.first(n, crossover) {
			chosen, other = other, chosen
		}
		if w.higher {
			chosen, other = 1/chosen, 1/other
		}
		sum += math.Max(0, math.Log(chosen/other))
	}
	return sum
}

// print shows both ways, size by size.
func (w *way) print(out io.Writer, lines bool) {
	fmt.Fprintf(out, "\n%s\n", w.title)
	t := newTable(out, lines, "bytes", w.names[0], w.names[1])
	for i, n := range w.sizes {
		t.AppendRow(table.Row{formatSize(int64(n)), formatValue(w.figures[0][i]), formatValue(w.figures[1][i])})
	}
	t.Render()
	switch {
	case w.variable == "":
	case w.setting == "":
		fmt.Fprintf(out, "%s is best left as it is: %s\n", w.variable, formatSize(int64(channel.DefaultCrossover(w.variable))))
	default:
		fmt.Fprintf(out, "by default %s\n", formatSize(int64(channel.DefaultCrossover(w.variable))))
	}
}

// trialOf is a way and the two jobs that measure it.
type trialOf struct {
	way
	jobs [2]trialJob
	of   func(*Result) int // size that a result is of; nil: its bytes
}

// tuneMessages measures the ways of messages between two ranks, and adds at rank 0 what
// is better set otherwise to the report's settings.
func (o *tuneOptions) tuneMessages(ctx context.Context, j *tuneJob, report *Report) ([]way, error) {
	var ways []way
	for _, t := range o.messageTrials(j, report) {
		merged, err := j.measure(ctx, t.jobs[:])
		if err != nil && t.carriers() && ctx.Err() == nil {
			// The device is there, which is not to say that it reaches the other host.
			report.Missing = append(report.Missing, t.names[0]+": "+err.Error())
			continue
		}
		if err != nil {
			return nil, err
		}
		if j.Rank() != 0 {
			continue
		}
		for k, rs := range merged {
			for _, r := range rs {
				n := int(r.Bytes)
				if t.of != nil {
					n = t.of(&r)
				}
				if k == 0 {
					t.sizes = append(t.sizes, n)
				}
				t.figures[k] = append(t.figures[k], r.P50)
				r.Algorithm = t.names[k]
				report.Results = append(report.Results, r)
			}
			if len(t.figures[k]) != len(t.sizes) {
				return nil, fmt.Errorf("%s: %d figures of %d sizes", t.title, len(t.figures[k]), len(t.sizes))
			}
		}
		t.fit()
		if t.setting != "" {
			report.Settings = append(report.Settings, t.setting)
		}
		ways = append(ways, t.way)
	}
	if j.Rank() == 0 {
		report.Settings = append(report.Settings, preferred(ways, func(provider string) bool { return j.lacks(provider) == "" })...)
	}
	return ways, nil
}

// The sizes of messages, and of their blocks, that are tuned.
const (
	tunedEager  = "1k,2k,4k,8k,16k,32k,64k"
	tunedBlocks = "256,512,1k,2k,4k,8k,16k,32k"
	tunedReads  = "1k,2k,4k,8k,16k,32k,64k,128k"
	tunedLong   = "512k" // message of blocks
	tunedCopies = "8k,64k,1M"
	tunedLat    = "8,4k,64k"

	above = 1 << 30 // all blocks
)

// messageTrials are those of the parts that are asked for.
func (o *tuneOptions) messageTrials(j *tuneJob, report *Report) []trialOf {
	members, apart := []int{0, 1}, false
	if other := j.partner(false); other > 0 {
		members[1], apart = other, true
	}
	pingpong := func(provider, sizes string, more ...string) []string {
		return append([]string{"channel", patternLat, "--provider", provider, "--sizes", sizes, "--batch", "--time", o.time.String()}, more...)
	}
	job := func(args []string, settings ...string) trialJob {
		return trialJob{members: members, settings: settings, args: args}
	}
	eager, pack, read := channel.EnvEagerTCP, channel.EnvPackTCP, channel.EnvReadTCP
	if o.provider == providerIBV {
		eager, pack, read = channel.EnvEagerRDMA, channel.EnvPackRDMA, channel.EnvReadRDMA
	}
	block := func(r *Result) int { return int(r.Block) }
	has := func(provider string) bool {
		why := j.lacks(provider)
		if why != "" {
			report.Missing = append(report.Missing, why)
		}
		return why == ""
	}
	var list []trialOf
	for _, part := range o.parts {
		switch part {
		case tuneEager:
			args := pingpong(o.provider, tunedEager)
			list = append(list, trialOf{jobs: [2]trialJob{job(args, eager+"=65536"), job(args, eager+"=0")},
				way: way{title: o.provider + " messages, half a round trip, ns: copied at both ends, or straight after asking", variable: eager, names: [2]string{"copied", "straight"}, includes: true}})
		case tunePack:
			args := pingpong(o.provider, tunedLong, "--blocks", tunedBlocks)
			list = append(list, trialOf{jobs: [2]trialJob{job(args, pack+"="+strconv.Itoa(above)), job(args, pack+"=0")}, of: block,
				way: way{title: o.provider + " messages of " + tunedLong + " in blocks, half a round trip, ns: packed into one piece, or gathered and scattered", variable: pack, names: [2]string{"packed", "blocks"}}})
		case tuneRead:
			args := pingpong(o.provider, tunedLong, "--blocks", tunedReads, "--packed", "--late")
			list = append(list, trialOf{jobs: [2]trialJob{job(args, pack+"=0", read+"="+strconv.Itoa(above)), job(args, pack+"=0", read+"=0")}, of: block,
				way: way{title: o.provider + " messages of " + tunedLong + " in blocks, to a receiver who is second and has one piece, half a round trip, ns: gathered and written by the sender, or fetched by the receiver", variable: read, names: [2]string{"written", "fetched"}}})
		case tuneCopy:
			if !has(providerSHM) {
				continue
			}
			beside := j.partner(true)
			if beside < 0 {
				report.Missing = append(report.Missing, providerSHM+": no other rank is on the host of rank 0")
				continue
			}
			local := func(args ...string) trialJob { return trialJob{members: []int{0, beside}, args: args} }
			list = append(list, trialOf{way: way{title: "memory of the heap within this host, MB/s: through a pipe of shared memory (channels), or read out of the process (verbs)", names: [2]string{"pipe", "read"}, higher: true},
				jobs: [2]trialJob{
					local("channel", patternBW, "--provider", providerSHM, "--memory", memoryHeap, "--sizes", tunedCopies, "--time", o.time.String()),
					local("verbs", patternBW, "--provider", providerSHM, "--mr", "heap", "--sizes", tunedCopies, "--time", o.time.String())}})
		case tuneProvider:
			for _, name := range carriersBeside(apart) {
				if has(name) {
					list = append(list, trialOf{way: way{title: "half a round trip, ns, by provider", names: [2]string{name, carrierTCP}},
						jobs: [2]trialJob{job(pingpong(name, tunedLat)), job(pingpong(carrierTCP, tunedLat))}})
				}
			}
		}
	}
	return list
}
