package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"

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
func (t timings) print(w io.Writer, lines bool, provider string, s coll.Settings, ranks int) {
	fmt.Fprintf(w, "\n%s collectives of %d ranks, declared, doubles in alloc memory, µs: by the defaults, the fastest, and by the settings below\n", provider, ranks)
	tab := newTable(w, lines, "", "bytes", "default", "µs", "fastest", "µs", "tuned", "µs")
	defaults := coll.DefaultSettings()
	last := ""
	for _, c := range t.collectives() {
		row := table.Row{"", formatSize(int64(c.bytes))}
		if name := c.kind.String(); name != last {
			row[0], last = name, name
		}
		for _, m := range []measured{t.choice(&defaults, c, ranks), t.fastest(c), t.choice(&s, c, ranks)} {
			row = append(row, m.String(), formatValue(t[m]/1000))
		}
		tab.AppendRow(row)
	}
	tab.Render()
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
