package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/verbs"
)

// measured is a measurement: a collective with one algorithm.
type measured struct {
	kind      coll.Kind
	bytes     int
	algorithm coll.Algorithm
	segment   int // of Pipeline; of other algorithms the default
}

type timings map[measured]float64

type collective struct {
	kind  coll.Kind
	bytes int
}

// collectives lists the measured collectives, in order.
func (t timings) collectives() []collective {
	var list []collective
	for _, m := range slices.SortedFunc(maps.Keys(t), compareTimings(t)) {
		if c := (collective{m.kind, m.bytes}); !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}

// fastest returns the fastest measurement.
func (t timings) fastest(c collective) (best measured) {
	least := math.Inf(1)
	for m, v := range t {
		if m.kind == c.kind && m.bytes == c.bytes && v < least {
			best, least = m, v
		}
	}
	return best
}

// chosen returns the measurement of what settings choose; ok is false if that algorithm, or that
// segment, was not measured.
func (t timings) chosen(s *coll.Settings, c collective, ranks int) (m measured, ok bool) {
	shape := shapeOf(c.kind, ranks, c.bytes)
	m = measured{c.kind, c.bytes, s.Choose(&shape), coll.DefaultSettings().Segment}
	if m.algorithm == coll.Pipeline {
		m.segment = s.Segment
	}
	_, ok = t[m]
	return m, ok
}

// loss returns how much worse the choices are than the fastest: the sum of the logarithms of the
// ratios of the times.
func (t timings) loss(s *coll.Settings, list []collective, ranks int) float64 {
	sum := 0.0
	for _, c := range list {
		if m, ok := t.chosen(s, c, ranks); ok {
			sum += math.Log(t[m] / t[t.fastest(c)])
		} else {
			sum++ // unknown: counted as a factor of e
		}
	}
	return sum
}

// worthwhile is by how much settings must be better to be changed: a tenth of one
// collective's time. Measurements differ by that.
const worthwhile = 0.1

// fit finds settings that choose the fastest: starting with the defaults, it changes each as long
// as that reduces the loss.
func (t timings) fit(ranks int) coll.Settings {
	s := coll.DefaultSettings()
	list := t.collectives()
	loss := t.loss(&s, list, ranks)
	for changed := true; changed; {
		changed = false
		for i := range thresholds(&s) {
			for _, v := range candidates(i, ranks) {
				with := s
				*thresholds(&with)[i] = v
				if l := t.loss(&with, list, ranks); l < loss-worthwhile {
					s, loss, changed = with, l, true
				}
			}
		}
	}
	return s
}

// thresholds are the numbers that are tuned; the members are the first.
func thresholds(s *coll.Settings) []*int {
	return []*int{&s.MaxLinear, &s.XSize, &s.Block, &s.RingBlock, &s.Pipeline, &s.ScatterBlock, &s.BruckBlock, &s.PairBlock, &s.Segment}
}

// candidates are the values that a threshold may have.
func candidates(threshold, ranks int) []int {
	switch threshold {
	case 0:
		return []int{ranks, ranks - 1}
	case len(thresholds(new(coll.Settings))) - 1:
		return append([]int{coll.DefaultSettings().Segment}, tunedSegments...)
	}
	return append([]int{0}, doubling(8, 1<<30)...)
}

// print shows for each collective what the defaults choose, what is fastest, and what the settings
// choose.
func (t timings) print(w io.Writer, provider string, s coll.Settings, ranks int) {
	fmt.Fprintf(w, "\n%s collectives of %d ranks, declared, doubles in alloc memory: by the defaults, the fastest, and by the settings below\n", provider, ranks)
	g := newTable(w, false, "", "bytes", "default", "", "fastest", "", "tuned", "")
	defaults := coll.DefaultSettings()
	last := ""
	for _, c := range t.collectives() {
		row := []any{"", formatSize(int64(c.bytes))}
		if name := c.kind.String(); name != last {
			row[0], last = name, name
		}
		for _, m := range []measured{t.choice(&defaults, c, ranks), t.fastest(c), t.choice(&s, c, ranks)} {
			row = append(row, m.String(), readable(t[m], unitLatency))
		}
		g.AppendRow(row)
	}
	g.Render()
}

// choice is the choice of settings, measured or not.
func (t timings) choice(s *coll.Settings, c collective, ranks int) measured {
	m, _ := t.chosen(s, c, ranks)
	return m
}

// String returns the algorithm, with its segment if that matters.
func (m measured) String() string {
	if m.algorithm == coll.Pipeline {
		return fmt.Sprintf("%v (%s)", m.algorithm, formatSize(int64(m.segment)))
	}
	return m.algorithm.String()
}

// tunedSegments are tried in addition to the default.
var tunedSegments = []int{8 << 10, 128 << 10}

// algorithms is a trial of one algorithm of each kind.
type algorithms struct {
	settings coll.Settings
	kinds    []string
	sizes    []int
	segment  int // that is tried; 0: that of the defaults
}

// plan lists the trials that measure all algorithms of all kinds.
func (o *tuneOptions) plan(ranks int) (list []algorithms) {
	add := func(a algorithms, choose func(coll.Kind) (coll.Algorithm, bool)) {
		a.settings.Segment = cmp.Or(a.segment, a.settings.Segment)
		for _, name := range o.patterns {
			kind, _ := collectiveKind(name)
			if algorithm, ok := choose(kind); ok {
				a.settings.Force[kind] = algorithm
				a.kinds = append(a.kinds, name)
			}
		}
		if a.kinds != nil && a.sizes != nil {
			list = append(list, a)
		}
	}
	most := 0
	for _, name := range o.patterns {
		kind, _ := collectiveKind(name)
		most = max(most, len(coll.Algorithms(kind)))
	}
	for i := range most {
		add(algorithms{settings: coll.DefaultSettings(), sizes: o.bytes}, func(kind coll.Kind) (a coll.Algorithm, ok bool) {
			if all := coll.Algorithms(kind); i < len(all) {
				return all[i], possible(all[i], kind, ranks)
			}
			return a, false
		})
	}
	long := slices.DeleteFunc(slices.Clone(o.bytes), func(n int) bool { return n < 2*slices.Max(tunedSegments) })
	for _, segment := range tunedSegments {
		add(algorithms{settings: coll.DefaultSettings(), sizes: long[:len(long):len(long)], segment: segment}, func(kind coll.Kind) (coll.Algorithm, bool) {
			return coll.Pipeline, len(long) > 0 && slices.Contains(coll.Algorithms(kind), coll.Pipeline)
		})
	}
	return list
}

func (a *algorithms) trial(t *tuner) (tr trial) {
	var sizes []string
	for _, n := range a.sizes {
		sizes = append(sizes, strconv.Itoa(n))
	}
	tr.settings = a.settings.Environ()
	for rank := range t.Size() {
		tr.members = append(tr.members, rank)
	}
	for _, kind := range a.kinds {
		tr.works = append(tr.works, newWork(findPattern(layerChannel, kind), map[string]string{"provider": t.o.provider, "sizes": strings.Join(sizes, ","), "call": callDeclared, "time": t.o.time.String()}))
	}
	return tr
}

// collectives measures all algorithms; only rank 0 gets the result.
func (t *tuner) collectives(ctx context.Context, report *Report) timings {
	plan := t.o.plan(t.Size())
	trials := make([]trial, len(plan))
	for i := range plan {
		trials[i] = plan[i].trial(t)
	}
	merged := t.measure(ctx, trials)
	if t.Rank() != 0 {
		return nil
	}
	times := timings{}
	for i := range plan {
		for _, r := range merged[i] {
			kind, _ := collectiveKind(r.Pattern)
			key := measured{kind, int(r.Bytes), plan[i].settings.Force[kind], plan[i].settings.Segment}
			times[key] = r.P50
			r.Algorithm, r.Segment = key.algorithm.String(), int64(plan[i].segment)
			report.Results = append(report.Results, r)
		}
	}
	return times
}

// shapeOf is a collective of doubles.
func shapeOf(kind coll.Kind, ranks, bytes int) coll.Shape {
	return coll.Shape{Kind: kind, Size: ranks, Elem: doubleBytes, Count: bytes / doubleBytes}
}

// possible reports whether an algorithm can run a collective of so many ranks.
func possible(a coll.Algorithm, kind coll.Kind, ranks int) bool {
	s := shapeOf(kind, ranks, doubleBytes)
	_, err := coll.Cost(a, &s)
	return err == nil
}

// compareTimings orders by kind, bytes and time.
func compareTimings(t timings) func(a, b measured) int {
	return func(a, b measured) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.bytes, b.bytes), cmp.Compare(t[a], t[b]))
	}
}

// way is a pair of methods for a message, with their times by size: the first is used up to a
// crossover, the second above it.
type way struct {
	title    string
	variable string // of the crossover; empty: there is none
	names    [2]string
	floor    int   // the crossover must not be less
	includes bool  // the first is also used at the crossover itself
	higher   bool  // more is better
	sizes    []int // ascending
	figures  [2][]float64
	setting  string // NAME=value that is better than the default, if any

	trials [2]trial // that measure it
}

// fit sets the crossover that loses least against the faster method of each size, if that is
// better than the default by a tenth of one message's time.
func (w *way) fit() {
	if w.variable == "" {
		return
	}
	byDefault := channel.DefaultCrossover(w.variable)
	best, least := byDefault, w.loss(byDefault)-worthwhile
	candidates := append([]int{w.floor}, w.sizes...)
	if !w.includes { // all of them
		candidates = append(candidates, 2*w.sizes[len(w.sizes)-1])
	}
	for _, at := range candidates {
		if l := w.loss(at); l < least {
			best, least = at, l
		}
	}
	if best != byDefault {
		w.setting = w.variable + "=" + strconv.Itoa(best)
	}
}

// loss returns the sum of the logarithms of the ratios of the chosen to the faster time.
func (w *way) loss(crossover int) float64 {
	sum := 0.0
	for i, n := range w.sizes {
		chosen, other := w.figures[1][i], w.figures[0][i]
		if n < crossover || w.includes && n == crossover {
			chosen, other = other, chosen
		}
		if w.higher {
			chosen, other = other, chosen
		}
		sum += math.Max(0, math.Log(chosen/other))
	}
	return sum
}

func (w *way) print(out io.Writer) {
	unit := unitLatency
	if w.higher {
		unit = unitBandwidth
	}
	fmt.Fprintf(out, "\n%s\n", w.title)
	g := newTable(out, false, "bytes", w.names[0], w.names[1])
	for i, n := range w.sizes {
		g.AppendRow([]any{formatSize(int64(n)), readable(w.figures[0][i], unit), readable(w.figures[1][i], unit)})
	}
	g.Render()
	switch {
	case w.variable == "":
	case w.setting == "":
		fmt.Fprintf(out, "%s is best left as it is: %s\n", w.variable, formatSize(int64(channel.DefaultCrossover(w.variable))))
	default:
		fmt.Fprintf(out, "by default %s\n", formatSize(int64(channel.DefaultCrossover(w.variable))))
	}
}

// carriers reports whether the pair compares a provider with tcp.
func (w *way) carriers() bool {
	return w.names[1] == providerTCP && (w.names[0] == providerRoCE || w.names[0] == providerXDP)
}

// against returns the sum, over all sizes, of the logarithms of the ratios of the first time to
// the second, if less is better.
func (w *way) against() (sum float64) {
	for i := range w.sizes {
		sum += math.Log(w.figures[0][i] / w.figures[1][i])
	}
	return sum
}

// preferred returns the setting of the order of providers, if the default order (RDMA devices,
// then tcp) is not the fastest: providers that were faster than tcp, by the margin of other
// settings over all sizes, come before it, the fastest first. A provider that not all ranks have
// cannot be named.
func preferred(ways []way, has func(provider string) bool) []string {
	faster := slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return !w.carriers() || w.against() > -worthwhile })
	if len(faster) == 0 {
		return nil
	}
	slices.SortStableFunc(faster, func(a, b way) int { return cmp.Compare(a.against(), b.against()) })
	order := []string{providerSHM, providerIBV}
	for _, w := range faster {
		order = append(order, w.names[0])
	}
	order = slices.DeleteFunc(append(order, providerTCP), func(provider string) bool { return !has(provider) })
	return []string{channel.EnvTransport + "=" + strings.Join(order, ",")}
}

// messages measures the methods for messages between two ranks, and adds the better settings to
// the report.
func (t *tuner) messages(ctx context.Context, report *Report) []way {
	lacks := map[string]string{}
	for _, provider := range []string{providerSHM, providerIBV, providerRoCE, providerXDP, providerTCP} {
		lacks[provider] = t.lacks(ctx, provider)
	}
	list := t.ways(lacks, report)
	var ways []way
	for _, w := range list {
		var merged [][]Result
		err := try(func() { merged = t.measure(ctx, w.trials[:]) })
		if err != nil && w.carriers() && ctx.Err() == nil {
			// The device exists, but may not reach the other host.
			report.Missing = append(report.Missing, w.names[0]+": "+err.Error())
			continue
		}
		must(err)
		if t.Rank() != 0 {
			continue
		}
		for k, rs := range merged {
			for _, r := range rs {
				if k == 0 {
					w.sizes = append(w.sizes, int(cmp.Or(r.Block, r.Bytes)))
				}
				w.figures[k] = append(w.figures[k], r.P50)
				r.Algorithm = w.names[k]
				report.Results = append(report.Results, r)
			}
		}
		w.fit()
		if w.setting != "" {
			report.Settings = append(report.Settings, w.setting)
		}
		ways = append(ways, w)
	}
	report.Settings = append(report.Settings, preferred(ways, func(provider string) bool { return lacks[provider] == "" })...)
	return ways
}

// The sizes of messages, and of their blocks, that are tuned.
const (
	tunedEager  = "8k,16k,32k,64k"
	tunedBlocks = "256,512,1k,2k,4k,8k,16k,32k"
	tunedReads  = "1k,2k,4k,8k,16k,32k,64k,128k"
	tunedLong   = "512k" // message of blocks
	tunedCopies = "8k,64k,1M"
	tunedLat    = "8,4k,64k"

	leastEager = 4096          // messages up to this are always copied
	above      = "=1073741824" // all blocks
)

// ways returns the pairs of the requested parts.
func (t *tuner) ways(lacks map[string]string, report *Report) (list []way) {
	members := []int{0, max(1, slices.IndexFunc(t.hosts, func(host int) bool { return host != t.hosts[0] }))}
	trialOf := func(layer, name string, given map[string]string, settings ...string) trial {
		given["time"] = t.o.time.String()
		return trial{members: members, settings: settings, works: []work{newWork(findPattern(layer, name), given)}}
	}
	pingpong := func(provider, sizes string, settings ...string) trial {
		return trialOf(layerChannel, patternLat, map[string]string{"provider": provider, "sizes": sizes, "batch": "0"}, settings...)
	}
	blocks := func(sizes string, late bool, settings ...string) trial {
		given := map[string]string{"provider": t.o.provider, "sizes": tunedLong, "batch": "0", "blocks": sizes}
		if late {
			given["packed"], given["late"] = "true", "true"
		}
		return trialOf(layerChannel, patternLat, given, settings...)
	}
	eager, pack, read := channel.EnvEagerTCP, channel.EnvPackTCP, channel.EnvReadTCP
	if t.o.provider == providerIBV {
		eager, pack, read = channel.EnvEagerRDMA, channel.EnvPackRDMA, channel.EnvReadRDMA
	}
	_, shmErr := verbs.Find(providerSHM)
	for _, part := range t.o.parts {
		switch part {
		case tuneEager:
			list = append(list, way{title: t.o.provider + " messages, half a round trip: copied at both ends, or straight after asking", variable: eager, names: [2]string{"copied", "straight"}, floor: leastEager, includes: true,
				trials: [2]trial{pingpong(t.o.provider, tunedEager, eager+"=65536"), pingpong(t.o.provider, tunedEager, eager+"="+strconv.Itoa(leastEager))}})
		case tunePack:
			list = append(list, way{title: t.o.provider + " messages of " + tunedLong + " in blocks, half a round trip: packed into one piece, or gathered and scattered", variable: pack, names: [2]string{"packed", "blocks"},
				trials: [2]trial{blocks(tunedBlocks, false, pack+above), blocks(tunedBlocks, false, pack+"=0")}})
		case tuneRead:
			list = append(list, way{title: t.o.provider + " messages of " + tunedLong + " in blocks, to a receiver that is second and has one piece, half a round trip: gathered and written by the sender, or fetched by the receiver", variable: read, names: [2]string{"written", "fetched"},
				trials: [2]trial{blocks(tunedReads, true, pack+"=0", read+above), blocks(tunedReads, true, pack+"=0", read+"=0")}})
		case tuneCopy:
			beside := 1 + slices.Index(t.hosts[1:], t.hosts[0])
			if beside == 0 || shmErr != nil {
				report.Missing = append(report.Missing, providerSHM+": no other rank shares memory with rank 0")
				continue
			}
			w := way{title: "memory of the heap within this host: through a pipe of shared memory (channels), or read out of the process (verbs)", names: [2]string{"pipe", "read"}, higher: true}
			for i, layer := range []string{layerChannel, layerVerbs} {
				w.trials[i] = trialOf(layer, patternBW, map[string]string{"provider": providerSHM, "memory": memoryHeap, "sizes": tunedCopies})
				w.trials[i].members = []int{0, beside}
			}
			list = append(list, w)
		case tuneProvider:
			for _, name := range []string{providerRoCE, providerXDP} {
				switch {
				case name == providerXDP && !t.apart(): // it reaches only other hosts
				case lacks[name] != "":
					report.Missing = append(report.Missing, lacks[name])
				default:
					list = append(list, way{title: "half a round trip, by provider", names: [2]string{name, providerTCP},
						trials: [2]trial{pingpong(name, tunedLat), pingpong(providerTCP, tunedLat)}})
				}
			}
		}
	}
	return list
}
