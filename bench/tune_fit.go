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

	"github.com/sluice-hpc/sluice/internal/coll"
)

// measured is what has been measured: a collective, by one algorithm.
type measured struct {
	kind      coll.Kind
	bytes     int
	algorithm coll.Algorithm
	segment   int // of Pipeline; of others that of the defaults
}

// timings are the times of collectives, in ns.
type timings map[measured]float64

// collective is a kind of some bytes.
type collective struct {
	kind  coll.Kind
	bytes int
}

// collectives lists what has been measured, in order.
func (t timings) collectives() []collective {
	var list []collective
	for _, m := range slices.SortedFunc(maps.Keys(t), compareTimings(t)) {
		if c := (collective{m.kind, m.bytes}); !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}

// fastest is the one that takes least.
func (t timings) fastest(c collective) (best measured) {
	least := math.Inf(1)
	for m, v := range t {
		if m.kind == c.kind && m.bytes == c.bytes && v < least {
			best, least = m, v
		}
	}
	return best
}

// chosen is what settings choose. It has not been measured where its algorithm was
// not, or not with that segment: then ok is false.
func (t timings) chosen(s *coll.Settings, c collective, ranks int) (m measured, ok bool) {
	shape := shapeOf(c.kind, ranks, c.bytes)
	m = measured{c.kind, c.bytes, s.Choose(&shape), coll.DefaultSettings().Segment}
	if m.algorithm == coll.Pipeline {
		m.segment = s.Segment
	}
	_, ok = t[m]
	return m, ok
}

// loss says how much worse the choices are than the fastest: the sum of the
// logarithms of the ratios of the times.
func (t timings) loss(s *coll.Settings, list []collective, ranks int) float64 {
	sum := 0.0
	for _, c := range list {
		if m, ok := t.chosen(s, c, ranks); ok {
			sum += math.Log(t[m] / t[t.fastest(c)])
		} else {
			sum++ // nobody knows: as a factor of e
		}
	}
	return sum
}

// worthwhile is by how much settings must be better to be changed: a tenth of one
// collective's time. Measurements differ by that.
const worthwhile = 0.1

// fit finds settings that choose what is fastest: from the defaults on, each is
// changed as long as that makes the loss less.
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

// print shows, of each collective, what the defaults choose, what is fastest, and what
// the settings choose.
func (t timings) print(w io.Writer, provider string, s coll.Settings, ranks int) {
	fmt.Fprintf(w, "\n%s collectives of %d ranks, declared, doubles in alloc memory: by the defaults, the fastest, and by the settings below\n", provider, ranks)
	g := newGrid(w, "", "bytes", "default", "", "fastest", "", "tuned", "")
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
		g.row(row...)
	}
	_ = g.Flush() // as the rest of w, whose user sees it
}

// choice is what settings choose, measured or not.
func (t timings) choice(s *coll.Settings, c collective, ranks int) measured {
	m, _ := t.chosen(s, c, ranks)
	return m
}

// String is the algorithm, with its segment where that matters.
func (m measured) String() string {
	if m.algorithm == coll.Pipeline {
		return fmt.Sprintf("%v (%s)", m.algorithm, formatSize(int64(m.segment)))
	}
	return m.algorithm.String()
}

// tunedSegments are tried beside that of the defaults.
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

// trial is the job that measures them.
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

// collectives measures all algorithms; what it returns is of rank 0.
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

// possible says whether an algorithm can carry out a collective of so many ranks.
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
