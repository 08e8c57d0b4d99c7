package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Units of figures that are no times and no rates.
const (
	unitShare = "%"
	unitCount = "1"
	unitKiB   = "KiB"
)

// further is one of the further figures of a measurement.
type further struct {
	name    string
	all     *distribution
	medians []float64 // of the rounds
}

// figure adds samples of the current round to one of the further figures of the pattern.
func (m *measurement) figure(name string, samples ...float64) {
	if len(samples) == 0 {
		return
	}
	i := slices.IndexFunc(m.others, func(f further) bool { return f.name == name })
	if i < 0 {
		i = len(m.others)
		m.others = append(m.others, further{name: name, all: newDistribution()})
	}
	round := newDistribution()
	for _, v := range samples {
		round.add(v)
	}
	m.others[i].all.merge(round)
	m.others[i].medians = append(m.others[i].medians, round.quantile(50))
}

// addAll adds samples of the figure of the pattern itself.
func (m *measurement) addAll(samples []float64) {
	for _, v := range samples {
		m.add(v)
	}
}

// results are all its figures.
func (m *measurement) results(b *bed) (list []Result) {
	r := m.result(b)
	if r.Samples > 0 {
		list = append(list, r)
	}
	r.Mode, r.Batch, r.TimerNS, r.AllocsPerMessage, r.CrossingsPerMessage, r.Histogram = "", 0, 0, nil, nil, ""
	for _, f := range m.others {
		r.Figure, r.Unit = f.name, unitOfFigure(m.name, f.name)
		r.Medians, r.Rounds, r.Spread = f.medians, len(f.medians), spread(slices.Clone(f.medians))
		f.all.fill(&r)
		list = append(list, r)
	}
	return list
}

// inFigures says whether a result is shown beside the other figures of its measurement.
func inFigures(r *Result) bool {
	p := firstPattern(func(p *pattern) bool { return p.name == r.Pattern && p.layer == r.Layer })
	return r.Figure != "" || r.Failed != "" || r.Load != "" || p != nil && p.figures != nil
}

// printFigures prints results of several figures: a row for each measurement, a column for each
// figure, with the mean and the 99th percentile where there are several samples.
func printFigures(w io.Writer, rs []Result) {
	for len(rs) > 0 {
		n := slices.IndexFunc(rs, func(r Result) bool { return r.Pattern != rs[0].Pattern })
		if n < 0 {
			n = len(rs)
		}
		printPattern(w, rs[:n])
		rs = rs[n:]
	}
}

func printPattern(w io.Writer, rs []Result) {
	header, column := []any{"provider", ""}, map[string]int{}
	for _, r := range rs {
		if _, ok := column[r.Figure]; !ok {
			column[r.Figure] = len(header)
			header = append(header, cmp.Or(r.Figure, r.Pattern))
		}
	}
	fmt.Fprintf(w, "\n%s: medians; mean and 99th percentile where there are several samples\n", rs[0].Pattern)
	t := newGrid(w, header...)
	var row []any
	for i, r := range rs {
		if row == nil {
			row = slices.Repeat([]any{""}, len(header))
			row[0], row[1] = r.Provider, describeMeasured(&r)
		}
		value := func(v float64) string { return strings.TrimSuffix(readable(v, r.Unit), " "+unitCount) }
		cell := value(r.P50)
		switch {
		case r.Failed != "":
			cell = "failed"
		case r.Samples > 1:
			cell += fmt.Sprintf(" (%s; %s)", value(r.Mean), value(r.P99))
		}
		row[column[r.Figure]] = cell
		if i+1 == len(rs) || describeMeasured(&rs[i+1]) != describeMeasured(&r) {
			t.row(row...)
			row = nil
		}
	}
	must(t.Flush())
	for _, r := range rs {
		if r.Failed != "" {
			fmt.Fprintf(w, "%s, %s: failed: %s\n", r.Provider, describeMeasured(&r), r.Failed)
		}
	}
}

// describeMeasured says what tells a measurement from others of its pattern.
func describeMeasured(r *Result) string {
	words := []string{r.Axis}
	if r.Op != r.Pattern {
		words = append(words, r.Op)
	}
	words = append(words, r.Load)
	add := func(v int64, format string) {
		if v > 0 {
			words = append(words, fmt.Sprintf(format, formatSize(v)))
		}
	}
	add(r.Bytes, "%s bytes")
	add(r.Count, "×%s")
	add(r.Window, "window %s")
	add(r.Ranks, "%s ranks")
	if r.Loss > 0 {
		words = append(words, fmt.Sprintf("%g %% lost", r.Loss))
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}
