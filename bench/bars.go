package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// bar is what this library is held to, against others that do the same.
type bar struct {
	layer    string // of ours
	provider string
	pattern  string
	op       string   // of ours; empty: each
	axes     []string // of halo
	from, to int64    // bytes
	against  string   // a peer; empty: the fastest MPI
	ns       float64  // in place of a peer: so much
	rate     float64  // in place of a peer: so much of the pattern's unit
	limit    float64  // of ours / theirs: at most for latency, at least for bandwidth
	aim      float64  // what we strive for; 0: no more than the limit
	lists    []int64  // of ibv; nil: each
	calls    float64  // in place of a peer: so many calls into C for a message
	anyOp    bool     // the best of our operations counts; else each
	ranks    []int64  // nil: each
	informs  bool     // no bar: the peer is shown
	beside   int64    // in place of a peer: our own allreduce of so many bytes, in the same run
}

var bars = []bar{
	{layer: layerVerbs, provider: "shm", pattern: patternLat, from: 8, to: 8, limit: 1, aim: 0.6, anyOp: true},
	{layer: layerVerbs, provider: "shm", pattern: patternBW, from: 64 << 10, to: math.MaxInt64, limit: 2},
	{layer: layerVerbs, provider: "tcp", pattern: patternLat, from: 8, to: 8, against: "openmpi", limit: 1, anyOp: true},
	{layer: layerVerbs, provider: "tcp", pattern: patternBW, from: 1 << 20, to: math.MaxInt64, against: "openmpi", limit: 1},

	{layer: layerChannel, provider: "shm", pattern: patternLat, op: memoryAlloc, from: 8, to: 8, limit: 0.75, aim: 0.6},
	{layer: layerChannel, provider: "shm", pattern: patternLat, op: memoryAlloc, from: 8, to: 8, against: peerLine, limit: 1.7, aim: 1.4},
	{layer: layerChannel, provider: "shm", pattern: patternLat, op: memoryAlloc, from: 4 << 10, to: 4 << 10, limit: 0.75},
	{layer: layerChannel, provider: "shm", pattern: patternBW, op: memoryAlloc, from: 256 << 10, to: math.MaxInt64, limit: 2},
	{layer: layerChannel, provider: "shm", pattern: patternHalo, op: memoryAlloc, axes: []string{"x"}, to: math.MaxInt64, limit: 2},
	{layer: layerChannel, provider: "shm", pattern: patternHalo, op: memoryAlloc, axes: []string{"z", "t"}, to: math.MaxInt64, limit: 1.5},
	{layer: layerChannel, provider: "shm", pattern: patternRing, from: 8, to: 8, against: "openmpi", limit: 1},
	{layer: layerChannel, provider: providerSelf, pattern: patternLocal, op: memoryAlloc, from: 8, to: 8, ns: 40, limit: 1},
	// Memory that peers cannot reach has to be copied twice, as MPI's is.
	{layer: layerChannel, provider: "shm", pattern: patternLat, op: memoryHeap, from: 8, to: 8, limit: 1},
	{layer: layerChannel, provider: "shm", pattern: patternLat, op: memoryHeap, from: 4 << 10, to: 4 << 10, limit: 1},
	{layer: layerChannel, provider: "shm", pattern: patternBW, op: memoryHeap, from: 256 << 10, to: math.MaxInt64, limit: 1},
	{layer: layerChannel, provider: "shm", pattern: patternHalo, op: memoryHeap, axes: []string{"x", "z", "t"}, to: math.MaxInt64, limit: 1},

	// Collectives: of 2 ranks with a core each, and of more on as many cores.
	{layer: layerChannel, provider: "shm", pattern: "barrier", op: callCalled, ranks: []int64{2}, limit: 0.75},
	{layer: layerChannel, provider: "shm", pattern: "allreduce", op: calledAlloc, ranks: []int64{2}, from: 8, to: 1 << 10, limit: 0.75},
	{layer: layerChannel, provider: "shm", pattern: "allreduce", op: calledAlloc, ranks: []int64{2}, from: 128 << 10, to: 128 << 10, limit: 0.6},
	{layer: layerChannel, provider: "shm", pattern: "allreduce", op: calledAlloc, ranks: []int64{2}, from: 8 << 20, to: 8 << 20, limit: 0.5},
	{layer: layerChannel, provider: "shm", pattern: "barrier", op: callCalled, ranks: []int64{4, 8}, limit: 1},
	{layer: layerChannel, provider: "shm", pattern: "allreduce", op: calledAlloc, ranks: []int64{4, 8}, from: 8, to: 128 << 10, limit: 1},
	{layer: layerChannel, provider: "shm", pattern: patternExact, ranks: []int64{8}, from: exactBytes, to: exactBytes, beside: exactBeside, limit: 4},
	{layer: layerExact, provider: providerSelf, pattern: patternAddSlice, from: 8 << 20, to: 8 << 20, rate: 1000, limit: 1},

	// What QMP programs call: the bars of channels and collectives, and ten per cent.
	{layer: layerQMP, provider: "shm", pattern: "allreduce", ranks: []int64{2}, from: 8, to: 1 << 10, limit: 0.825},
	{layer: layerQMP, provider: "shm", pattern: "allreduce", ranks: []int64{2}, from: 128 << 10, to: 128 << 10, limit: 0.66},
	{layer: layerQMP, provider: "shm", pattern: "allreduce", ranks: []int64{2}, from: 8 << 20, to: 8 << 20, limit: 0.55},
	{layer: layerQMP, provider: "shm", pattern: "allreduce", ranks: []int64{4, 8}, from: 8, to: 128 << 10, limit: 1.1},
	{layer: layerQMP, provider: "shm", pattern: patternHalo, op: memoryAlloc, axes: []string{"x"}, to: math.MaxInt64, limit: 1.8},
	{layer: layerQMP, provider: "shm", pattern: patternHalo, op: memoryAlloc, axes: []string{"z", "t"}, to: math.MaxInt64, limit: 1.35},
	{layer: layerQMP, provider: "shm", pattern: patternHalo, op: memoryAlloc, axes: []string{axisHalf}, to: math.MaxInt64, limit: 1.35},

	// An RDMA device: as libibverbs is used by a C program.
	{layer: layerVerbs, provider: providerIBV, pattern: patternLat, from: 8, to: 8, against: peerPerftest, limit: 1.1},
	{layer: layerVerbs, provider: providerIBV, pattern: patternBW, from: 64 << 10, to: math.MaxInt64, against: peerPerftest, limit: 0.95},
	{layer: layerVerbs, provider: providerIBV, pattern: patternRate, from: 64, to: 64, against: peerPerftest, limit: 0.9},
	{layer: layerVerbs, provider: providerIBV, pattern: patternRate, from: 64, to: 64, lists: []int64{64}, calls: 1. / 16, limit: 1},

	{layer: layerChannel, provider: "tcp", pattern: patternLat, from: 8, to: 8, against: "openmpi", limit: 1},
	{layer: layerChannel, provider: "tcp", pattern: patternBW, from: 1 << 20, to: 1 << 20, against: "openmpi", limit: 1},

	// Messages that are matched: a request for each, as programs of MPI have them most often.
	{layer: layerIMPI, provider: "shm", pattern: patternLat, from: 8, to: 8, against: "mpich", limit: 1.25},
	{layer: layerIMPI, provider: "shm", pattern: patternBW, from: 1 << 20, to: 1 << 20, against: "mpich", limit: 1},
	{layer: layerIMPI, provider: "shm", pattern: patternRate, from: 8, to: 8, limit: 1},
	{layer: layerIMPI, provider: "shm", pattern: patternRate, from: 8, to: 8, rate: 4e6, limit: 1},
	// Chunks to workers that ask for them: the dialect that serves best counts.
	{layer: layerFanout, provider: "shm", pattern: patternFanout, to: math.MaxInt64, against: "openmpi", limit: 1.5, anyOp: true},
	{layer: layerFanout, provider: "shm", pattern: patternFanout, to: math.MaxInt64, against: peerZMQ, limit: 2, anyOp: true},

	{layer: layerIMPI, provider: carrierTCP, pattern: patternLat, from: 8, to: 8, against: "openmpi", limit: 1},
	{layer: layerIMPI, provider: carrierTCP, pattern: patternBW, from: 1 << 20, to: 1 << 20, against: "openmpi", limit: 0.9},
}

// calledAlloc is the operation of collectives that are called, over memory of Alloc.
const calledAlloc = callCalled + " " + memoryAlloc

// mpis are the peers that do what we do: move messages between processes.
var mpis = []string{"openmpi", "mpich"}

// Comparison is one of our figures beside a peer's. Ours and Theirs are medians
// over the rounds; Ratio is the median of the rounds' own ratios, so that a
// machine that is faster in some rounds than in others is so for both.
type Comparison struct {
	Pattern  string   `json:"pattern"`
	Layer    string   `json:"layer"` // ours
	Suite    string   `json:"suite,omitempty"`
	Provider string   `json:"provider"`
	List     int64    `json:"list,omitempty"`
	Ranks    int64    `json:"ranks,omitempty"`
	Window   int64    `json:"window,omitempty"` // of fanout: messages outstanding
	Axis     string   `json:"axis,omitempty"`
	Bytes    int64    `json:"bytes"`
	Unit     string   `json:"unit"`
	Op       string   `json:"op"` // ours
	Ours     float64  `json:"ours"`
	Peer     string   `json:"peer"` // or a time that we are held to
	PeerOp   string   `json:"peer_op,omitempty"`
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

// patternWindow is the window of a result where one pattern has several.
func patternWindow(r *Result) int64 {
	if r.Pattern == patternFanout {
		return r.Window
	}
	return 0
}

// of says whether the comparison is of a result of ours.
func (c *Comparison) of(r *Result) bool {
	return c.Layer == r.Layer && c.Suite == r.Suite && c.Pattern == r.Pattern && c.Provider == r.Provider && c.Ranks == r.Ranks &&
		c.List == r.List && c.Window == patternWindow(r) && c.Axis == r.Axis && c.Bytes == r.Bytes && c.Op == r.Op
}

// String names what is compared, and with whom.
func (c *Comparison) String() string {
	words := []string{c.Provider, c.Suite, c.Pattern, c.Axis, "", c.Op, "", formatSize(c.Bytes), ":", c.Peer}
	if c.Ranks > 0 {
		words[4] = fmt.Sprintf("%d ranks", c.Ranks)
	}
	if c.List > 1 {
		words[6] = fmt.Sprintf("×%d", c.List)
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// findBars returns the bars of one of our figures.
func findBars(r *Result) []*bar {
	var list []*bar
	for i := range bars {
		b := &bars[i]
		if b.layer == r.Layer && b.provider == r.Provider && b.pattern == r.Pattern && b.from <= r.Bytes && r.Bytes <= b.to &&
			(b.op == "" || b.op == r.Op) && (b.axes == nil || slices.Contains(b.axes, r.Axis)) && (b.lists == nil || slices.Contains(b.lists, r.List)) &&
			(b.ranks == nil || slices.Contains(b.ranks, r.Ranks)) {
			list = append(list, b)
		}
	}
	return list
}

// sameDiscipline says whether two results are of the same thing, done by
// different programs or in different ways.
func (r *Result) sameDiscipline(o *Result) bool {
	return r.Pattern == o.Pattern && r.Suite == o.Suite && r.Provider == o.Provider && r.Bytes == o.Bytes &&
		patternWindow(r) == patternWindow(o) && r.Axis == o.Axis && r.Halo == o.Halo && r.Ranks == o.Ranks && (r.Provider != providerIBV || r.Op == o.Op && r.List == o.List)
}

// isFloor says whether o is the cache line that is handed over as often as in r,
// whatever the layer.
func (r *Result) isFloor(o *Result) bool {
	return o.Peer == peerLine && o.Op == lineEachWay && r.Pattern == o.Pattern && r.Provider == o.Provider && r.Bytes == o.Bytes
}

// figure is what one contender did in one discipline: the rounds together.
type figure struct{ Result }

func newFigure(rounds []Result) figure { return figure{mergeRounds(rounds)} }

// ratioTo is the median of the ratios of the rounds that both were in.
func (f *figure) ratioTo(g *figure) float64 {
	var ratios []float64
	for i := range min(len(f.Medians), len(g.Medians)) {
		if g.Medians[i] > 0 {
			ratios = append(ratios, f.Medians[i]/g.Medians[i])
		}
	}
	return median(ratios)
}

// faster orders figures of one pattern: the faster first.
func faster(a, b figure) int {
	if a.Unit == unitLatency {
		return cmp.Compare(a.P50, b.P50)
	}
	return cmp.Compare(b.P50, a.P50)
}

// compareFigures sets each of our figures beside the peers that it is held to.
// Where nobody is installed to compare with there is no comparison.
func compareFigures(figures []figure) []Comparison {
	var list []Comparison
	for i := range figures {
		ours := &figures[i]
		if ours.Peer != peerSluice {
			continue
		}
		held := findBars(&ours.Result)
		if len(held) == 0 {
			held = []*bar{nil} // for information
		}
		for _, b := range held {
			if c := compareTo(b, ours, figures); c != nil {
				list = append(list, *c)
			}
		}
		for _, peer := range toolPeers {
			if c := compareTo(&bar{against: peer, informs: true}, ours, figures); c != nil {
				list = append(list, *c)
			}
		}
	}
	return list
}

// compareTo compares one of our figures with those that its bar is against, of
// none with the fastest MPI.
func compareTo(b *bar, ours *figure, figures []figure) *Comparison {
	c := &Comparison{Pattern: ours.Pattern, Layer: ours.Layer, Suite: ours.Suite, Provider: ours.Provider, List: ours.List, Ranks: ours.Ranks, Window: patternWindow(&ours.Result), Axis: ours.Axis,
		Bytes: ours.Bytes, Unit: ours.Unit, Op: ours.Op, Ours: ours.P50, Better: betterHigher}
	if ours.Unit == unitLatency {
		c.Better = betterLower
	}
	best := true // of our own operations
	var rivals []figure
	for _, f := range figures {
		switch {
		case b != nil && b.beside > 0:
			if f.Peer == peerSluice && f.Pattern == "allreduce" && f.Op == calledAlloc && f.Provider == ours.Provider && f.Ranks == ours.Ranks && f.Bytes == b.beside {
				rivals = append(rivals, f)
			}
		case f.Peer == peerSluice:
			best = best && !(f.sameDiscipline(&ours.Result) && faster(f, *ours) < 0)
		case b != nil && b.against == peerLine:
			if ours.isFloor(&f.Result) {
				rivals = append(rivals, f)
			}
		case b != nil && b.informs:
			if f.Peer == b.against && f.sameDiscipline(&ours.Result) {
				rivals = append(rivals, f)
			}
		case (slices.Contains(mpis, f.Peer) || f.Peer == peerPerftest || f.Peer == peerZMQ) && f.sameDiscipline(&ours.Result) && (b == nil || b.against == "" || b.against == f.Peer):
			rivals = append(rivals, f)
		}
	}
	switch {
	case b != nil && b.calls > 0:
		if ours.CrossingsPerMessage == nil {
			return nil
		}
		c.Unit, c.Better, c.Ours = unitCalls, betterLower, *ours.CrossingsPerMessage
		c.Peer, c.Theirs, c.Ratio = fmt.Sprintf("%g %s", b.calls, unitCalls), b.calls, c.Ours/b.calls
	case b != nil && b.ns > 0:
		c.Peer, c.Theirs, c.Ratio = fmt.Sprintf("%g ns", b.ns), b.ns, ours.P50/b.ns
	case b != nil && b.rate > 0:
		c.Peer, c.Theirs, c.Ratio = formatValue(b.rate)+" "+ours.Unit, b.rate, ours.P50/b.rate
	case len(rivals) == 0:
		return nil
	default:
		theirs := slices.MinFunc(rivals, faster)
		c.Peer, c.PeerOp, c.Theirs, c.Ratio = theirs.Peer, theirs.Op, theirs.P50, ours.ratioTo(&theirs)
		if b != nil && b.beside > 0 {
			c.Peer = fmt.Sprintf("%s of %d doubles", theirs.Pattern, b.beside/doubleBytes)
		}
	}
	if b != nil && !b.informs && (best || !b.anyOp) {
		met := c.Ratio >= b.limit
		if c.Better == betterLower {
			met = c.Ratio <= b.limit
		}
		c.Bar, c.Met = &b.limit, &met
		if b.aim != 0 {
			c.Aim = &b.aim
		}
	}
	return c
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
	r.Medians = over(func(r *Result) float64 { return r.P50 })
	r.Spread = spread(slices.Clone(r.Medians))
	if r.CrossingsPerMessage != nil {
		calls := median(over(func(r *Result) float64 { return *r.CrossingsPerMessage }))
		r.CrossingsPerMessage = &calls
	}
	return r
}
