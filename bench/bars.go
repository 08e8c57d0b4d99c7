package main

import (
	"cmp"
	"math"
	"slices"
)

// bar is what this library is held to, against others that do the same.
type bar struct {
	provider string
	pattern  string
	from, to int64   // bytes
	against  string  // a peer; empty: the fastest MPI
	limit    float64 // of ours / theirs: at most for latency, at least for bandwidth
	aim      float64 // what we strive for; 0: no more than the limit
	anyOp    bool    // the best of our operations counts; else each
}

var bars = []bar{
	{provider: "shm", pattern: patternLat, from: 8, to: 8, limit: 1, aim: 0.6, anyOp: true},
	{provider: "shm", pattern: patternBW, from: 64 << 10, to: math.MaxInt64, limit: 2},
	{provider: "tcp", pattern: patternLat, from: 8, to: 8, against: "openmpi", limit: 1, anyOp: true},
	{provider: "tcp", pattern: patternBW, from: 1 << 20, to: math.MaxInt64, against: "openmpi", limit: 1},
}

// mpis are the peers that do what we do: move messages between processes.
var mpis = []string{"openmpi", "mpich"}

// Comparison is one of our figures beside a peer's. Ours and Theirs are medians
// over the rounds; Ratio is the median of the rounds' own ratios, so that a
// machine that is faster in some rounds than in others is so for both.
type Comparison struct {
	Pattern  string   `json:"pattern"`
	Provider string   `json:"provider"`
	Bytes    int64    `json:"bytes"`
	Unit     string   `json:"unit"`
	Op       string   `json:"op"` // ours
	Ours     float64  `json:"ours"`
	Peer     string   `json:"peer"`
	PeerOp   string   `json:"peer_op"`
	Theirs   float64  `json:"theirs"`
	Ratio    float64  `json:"ratio"` // ours / theirs
	Better   string   `json:"better"`
	Bar      *float64 `json:"bar,omitempty"` // that the ratio is held to; none: for information
	Aim      *float64 `json:"aim,omitempty"`
	Met      *bool    `json:"met,omitempty"` // the bar
}

const (
	betterLower  = "lower"
	betterHigher = "higher"
)

// findBar returns the bar of a figure, or nil.
func findBar(provider, pattern string, bytes int64) *bar {
	i := slices.IndexFunc(bars, func(b bar) bool {
		return b.provider == provider && b.pattern == pattern && b.from <= bytes && bytes <= b.to
	})
	if i < 0 {
		return nil
	}
	return &bars[i]
}

// figure is what one contender did in one discipline: the rounds together, and
// the median of each.
type figure struct {
	Result
	medians []float64
}

func newFigure(rounds []Result) figure {
	f := figure{Result: mergeRounds(rounds)}
	for i := range rounds {
		f.medians = append(f.medians, rounds[i].P50)
	}
	return f
}

// ratioTo is the median of the ratios of the rounds that both were in.
func (f *figure) ratioTo(g *figure) float64 {
	var ratios []float64
	for i := range min(len(f.medians), len(g.medians)) {
		if g.medians[i] > 0 {
			ratios = append(ratios, f.medians[i]/g.medians[i])
		}
	}
	return median(ratios)
}

// faster orders figures of one pattern: the faster first.
func faster(a, b figure) int {
	if a.Pattern == patternLat {
		return cmp.Compare(a.P50, b.P50)
	}
	return cmp.Compare(b.P50, a.P50)
}

// compareFigures sets each of our figures beside the peer that it is held to.
// Where nobody is installed to compare with there is no comparison.
func compareFigures(figures []figure) []Comparison {
	var list []Comparison
	for _, ours := range figures {
		if ours.Peer != peerSluice {
			continue
		}
		b := findBar(ours.Provider, ours.Pattern, ours.Bytes)
		var rivals []figure
		best := true // of our own operations
		for _, f := range figures {
			switch {
			case f.Pattern != ours.Pattern || f.Provider != ours.Provider || f.Bytes != ours.Bytes:
			case f.Peer == peerSluice:
				best = best && faster(f, ours) >= 0
			case slices.Contains(mpis, f.Peer) && (b == nil || b.against == "" || b.against == f.Peer):
				rivals = append(rivals, f)
			}
		}
		if len(rivals) == 0 {
			continue
		}
		theirs := slices.MinFunc(rivals, faster)
		c := Comparison{Pattern: ours.Pattern, Provider: ours.Provider, Bytes: ours.Bytes, Unit: ours.Unit, Op: ours.Op, Ours: ours.P50,
			Peer: theirs.Peer, PeerOp: theirs.Op, Theirs: theirs.P50, Ratio: ours.ratioTo(&theirs), Better: betterHigher}
		if ours.Pattern == patternLat {
			c.Better = betterLower
		}
		if b != nil && (best || !b.anyOp) {
			met := b.met(c.Ratio)
			c.Bar, c.Met = &b.limit, &met
			if b.aim != 0 {
				c.Aim = &b.aim
			}
		}
		list = append(list, c)
	}
	return list
}

func (b *bar) met(ratio float64) bool {
	if b.pattern == patternLat {
		return ratio <= b.limit
	}
	return ratio >= b.limit
}

// mergeRounds makes one result of those of several rounds: medians of the
// quantiles, extremes of the extremes.
func mergeRounds(rounds []Result) Result {
	r := rounds[0]
	r.Samples, r.Rounds = 0, len(rounds)
	over := func(of func(*Result) float64) []float64 {
		var vs []float64
		for i := range rounds {
			vs = append(vs, of(&rounds[i]))
		}
		return vs
	}
	for i := range rounds {
		r.Samples += rounds[i].Samples
	}
	r.Min = slices.Min(over(func(r *Result) float64 { return r.Min }))
	r.Max = slices.Max(over(func(r *Result) float64 { return r.Max }))
	r.P50 = median(over(func(r *Result) float64 { return r.P50 }))
	r.P99 = median(over(func(r *Result) float64 { return r.P99 }))
	r.P999 = median(over(func(r *Result) float64 { return r.P999 }))
	r.Mean = median(over(func(r *Result) float64 { return r.Mean }))
	r.Spread = spread(over(func(r *Result) float64 { return r.P50 }))
	return r
}
