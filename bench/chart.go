package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// chart is figures of one unit against the size of messages: those of one pattern, of
// as many ranks.
type chart struct {
	Pattern string  `json:"pattern"`
	Ranks   int64   `json:"ranks,omitempty"`
	Unit    string  `json:"unit"`
	Lower   bool    `json:"lower"`        // is better
	Of      string  `json:"of,omitempty"` // provider or peer, where it is of one alone
	Curves  []curve `json:"curves"`
}

// curve is one line of a chart, in order of size.
type curve struct {
	Name     string  `json:"name"`
	Provider string  `json:"provider"`
	Peer     string  `json:"peer"`
	Points   []point `json:"points"`
}

// point is a result, as a chart shows it.
type point struct {
	Bytes   int64   `json:"bytes"`
	Min     float64 `json:"min"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p999"`
	Max     float64 `json:"max"`
	Mean    float64 `json:"mean"`
	Samples int64   `json:"samples"`
	Spread  float64 `json:"spread"`
}

// labelled are the results of one report, with a label that tells it from others.
type labelled struct {
	label  string
	report *Report
}

// curveOf says which curve of a chart a result is a point of: all that tells it from
// others but the size.
func curveOf(label string, r *Result) []string {
	many := func(v int64, format string) string {
		if v <= 1 {
			return ""
		}
		return fmt.Sprintf(format, v)
	}
	return []string{label, r.Provider, r.Peer, r.Layer, r.Suite, r.Op, r.Axis, r.Halo, r.Algorithm,
		many(r.Segment, "segments of %d"), many(r.List, "lists of %d"), r.Mode, r.Device, many(r.Block, "blocks of %d"), r.Receive}
}

// Where among the words of curveOf these are. A device is named where there are several
// of its provider.
const (
	providerWord = 1
	peerWord     = 2
	modeWord     = 11
	deviceWord   = 12
)

// Of the words of curveOf, those that are named wherever they are: label, provider,
// peer, layer. Others only where they differ within a chart.
const alwaysNamed = 4

// chartsOf sorts all results into charts.
func chartsOf(reports []labelled) []chart {
	type place struct {
		pattern string
		ranks   int64
	}
	type line struct {
		words  []string
		points []point
	}
	var places []place
	lines := map[place][]*line{}
	for _, l := range reports {
		for i := range l.report.Results {
			r := &l.report.Results[i]
			p := place{r.Pattern, r.Ranks}
			if !slices.Contains(places, p) {
				places = append(places, p)
			}
			words := curveOf(l.label, r)
			k := slices.IndexFunc(lines[p], func(o *line) bool { return slices.Equal(o.words, words) })
			if k < 0 {
				k = len(lines[p])
				lines[p] = append(lines[p], &line{words: words})
			}
			lines[p][k].points = append(lines[p][k].points, point{r.Bytes, r.Min, r.P50, r.P99, r.P999, r.Max, r.Mean, r.Samples, r.Spread})
		}
	}
	var charts []chart
	for _, p := range places {
		unit := unitOf(p.pattern)
		c := chart{Pattern: p.pattern, Ranks: p.ranks, Unit: unit, Lower: unit == unitLatency}
		var all [][]string
		for _, l := range lines[p] {
			all = append(all, l.words)
		}
		for _, l := range lines[p] {
			slices.SortStableFunc(l.points, func(a, b point) int { return cmp.Compare(a.Bytes, b.Bytes) })
			c.Curves = append(c.Curves, curve{Name: nameOf(l.words, all), Provider: l.words[providerWord], Peer: l.words[peerWord], Points: l.points})
		}
		charts = append(charts, c)
	}
	return charts
}

// nameOf names a curve by what tells it from all.
func nameOf(words []string, all [][]string) string {
	var name []string
	for i, w := range words {
		differs := slices.ContainsFunc(all, func(o []string) bool {
			return o[i] != w && (i != deviceWord || o[providerWord] == words[providerWord])
		})
		if w != "" && (i < alwaysNamed || differs) {
			name = append(name, w)
		}
	}
	return strings.Join(name, " ")
}

// Title says what a chart shows.
func (c *chart) Title() string {
	title := patternTitle(c.Pattern)
	if c.Ranks > 2 {
		title += fmt.Sprintf(", %d ranks", c.Ranks)
	}
	if c.Of != "" {
		title += ", " + c.Of
	}
	return title
}

func patternTitle(pattern string) string {
	switch pattern {
	case patternLat:
		return "latency"
	case patternBW:
		return "bandwidth"
	case patternBiBW:
		return "bandwidth, both ways"
	case patternRate:
		return "message rate"
	case patternHalo:
		return "halo exchange"
	case patternRing:
		return "ring, time of a hop"
	case patternLocal:
		return "message to oneself"
	case patternAddSlice:
		return "terms added to an exact sum"
	case patternExact:
		return "exact sum"
	}
	return pattern
}

// by divides a chart into one for each value of a key.
func (c *chart) by(key func(*curve) string) []chart {
	var parts []chart
	var keys []string
	for i := range c.Curves {
		k := key(&c.Curves[i])
		n := slices.Index(keys, k)
		if n < 0 {
			n = len(keys)
			keys = append(keys, k)
			part := *c
			part.Curves, part.Of = nil, k
			parts = append(parts, part)
		}
		parts[n].Curves = append(parts[n].Curves, c.Curves[i])
	}
	return parts
}
