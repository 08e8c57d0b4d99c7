package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// mpis are the peers that do what we do: move messages between processes.
var mpis = []string{"openmpi", "mpich"}

// Other peers, and what bars name of them.
const (
	peerLimit   = "limit"             // the machine: peers/limit.c
	limitLine   = peerLimit + " line" // by cache lines that carry the payload
	besideExact = "sluice allreduce"  // of exact: what else our own command measures
	calledAlloc = callCalled + " " + memoryAlloc
)

// Comparison is one of our figures beside a peer's. Ours and Theirs are medians
// over the rounds; Ratio is the median of the rounds' own ratios, so that a
// machine that is faster in some rounds than in others is so for both.
type Comparison struct {
	Row      string   `json:"row"`
	Pattern  string   `json:"pattern"`
	Layer    string   `json:"layer"` // ours
	Suite    string   `json:"suite,omitempty"`
	Provider string   `json:"provider"`
	List     int64    `json:"list,omitempty"`
	Ranks    int64    `json:"ranks,omitempty"`
	Window   int64    `json:"window,omitempty"` // messages outstanding
	Axis     string   `json:"axis,omitempty"`
	Figure   string   `json:"figure,omitempty"`
	Load     string   `json:"load,omitempty"`
	Bytes    int64    `json:"bytes"`
	Unit     string   `json:"unit"`
	Op       string   `json:"op"` // ours
	Ours     float64  `json:"ours"`
	Peer     string   `json:"peer"` // or a figure that we are held to
	PeerOp   string   `json:"peer_op,omitempty"`
	Theirs   float64  `json:"theirs"`
	Ratio    float64  `json:"ratio"` // ours / theirs
	Better   string   `json:"better"`
	Bar      *float64 `json:"bar,omitempty"` // that the ratio is held to; none: for information
	Aim      *float64 `json:"aim,omitempty"`
	Met      *bool    `json:"met,omitempty"`    // the bar
	Crawls   []string `json:"crawls,omitempty"` // peers with more ranks than CPUs that are not quoted
}

const (
	betterLower  = "lower"
	betterHigher = "higher"
)

// lowerIsBetter says so of a figure in a unit.
func lowerIsBetter(figure, unit string) bool {
	return !slices.Contains([]string{unitBandwidth, unitRate, unitFanout}, unit) && !slices.Contains([]string{figureNeighbour, "osu", "fairness"}, figure)
}

func betterOf(figure, unit string) string {
	if lowerIsBetter(figure, unit) {
		return betterLower
	}
	return betterHigher
}

// String names what is compared, and with what.
func (c *Comparison) String() string {
	words := []string{c.Row, c.Axis, c.Op, c.Figure, formatSize(c.Bytes), ":", c.Peer}
	if c.Axis != "" {
		words[4] = ""
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// behind says by how many times we are slower; 1 and less: we are not.
func (c *Comparison) behind() float64 {
	if c.Better == betterLower {
		return c.Ratio
	}
	return 1 / c.Ratio
}

// figure is what one program measured of a point of a row: the rounds together.
type figure struct {
	Result
	row *row
}

// figureKey tells figures apart.
type figureKey struct {
	row                             *row
	peer, pattern, op, axis, figure string
	bytes                           int64
}

func keyOf(r *row, v *Result) figureKey {
	return figureKey{r, v.Peer, v.Pattern, v.Op, v.Axis, v.Figure, v.Bytes}
}

// rival is how bars name it.
func (f *figure) rival() string {
	switch f.Peer {
	case peerLimit:
		return f.Peer + " " + f.Op
	case peerSluice:
		return f.Peer + " " + f.Pattern
	}
	return f.Peer
}

// ratioTo is the median of the ratios of the rounds that both were in.
func (f *figure) ratioTo(g *figure) float64 { return median(ratios(f.Medians, g.Medians)) }

// ratios are those of the rounds that both were in.
func ratios(a, b []float64) (list []float64) {
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			list = append(list, a[i]/b[i])
		}
	}
	return list
}

// faster orders figures of one unit: the faster first.
func faster(a, b *figure) int {
	if lowerIsBetter(a.Figure, a.Unit) {
		return cmp.Compare(a.P50, b.P50)
	}
	return cmp.Compare(b.P50, a.P50)
}

// compareFigures sets each of our figures beside the best MPI, what else it is held to, and
// other peers. Where there is nothing to compare with there is no comparison.
func compareFigures(figures []figure, crawls map[*row][]string) (list []Comparison) {
	for i := range figures {
		if ours := &figures[i]; ours.Peer == peerSluice && ours.Pattern == ours.row.pattern {
			list = append(list, compareOne(ours, figures, crawls[ours.row])...)
		}
	}
	return list
}

func compareOne(ours *figure, figures []figure, crawls []string) (list []Comparison) {
	r := ours.row
	first := true // of our own operations
	found := map[string]*figure{}
	var rivals []string // in their order
	for i := range figures {
		f := &figures[i]
		own := f.Peer == peerSluice && f.Pattern == r.pattern
		if f.row != r || f.Axis != ours.Axis || f.Figure != ours.Figure || f.Bytes != ours.Bytes && f.Pattern == r.pattern {
			continue
		}
		if own {
			first = first && faster(f, ours) >= 0
			continue
		}
		names := []string{f.rival()}
		if isMPI(f.Peer) {
			names = []string{""}
		} else if f.Peer == peerLimit {
			names = append(names, peerLimit)
		}
		for _, name := range names {
			if found[name] == nil {
				rivals = append(rivals, name)
			}
			if found[name] == nil || faster(f, found[name]) < 0 {
				found[name] = f
			}
		}
	}
	bars := r.barsOf(ours)
	slices.SortStableFunc(bars, func(a, b *bar) int { return strings.Compare(a.against, b.against) }) // the best MPI first
	for _, name := range rivals {
		if !strings.HasPrefix(name, peerLimit+" ") && !slices.ContainsFunc(bars, func(b *bar) bool { return b.fixed == 0 && b.calls == 0 && b.against == name }) {
			bars = append(bars, &bar{against: name}) // for information
		}
	}
	for _, b := range bars {
		var c *Comparison
		switch theirs := found[b.against]; {
		case b.calls > 0 && ours.CrossingsPerMessage == nil:
			continue
		case b.calls > 0:
			c = ours.beside(fmt.Sprintf("%g %s", b.calls, unitCalls), b.calls, *ours.CrossingsPerMessage/b.calls)
			c.Unit, c.Better, c.Ours = unitCalls, betterLower, *ours.CrossingsPerMessage
		case b.fixed > 0:
			c = ours.beside(readable(b.fixed, ours.Unit), b.fixed, ours.P50/b.fixed)
		case theirs == nil:
			continue
		default:
			c = ours.beside(theirs.Peer, theirs.P50, ours.ratioTo(theirs))
			if c.PeerOp = theirs.Op; theirs.Peer == peerSluice {
				c.Peer = fmt.Sprintf("%s of %s", theirs.Pattern, formatSize(theirs.Bytes))
			}
		}
		c.Crawls = crawls
		if b.limit > 0 && (first || !b.best) { // where the best of our operations counts it is another's
			c.hold(b)
		}
		list = append(list, *c)
	}
	return list
}

// barsOf are the bars that one of our figures is held to.
func (r *row) barsOf(f *figure) (list []*bar) {
	for i := range r.bars {
		b := &r.bars[i]
		if b.covers(r.point(&f.Result)) && (b.op == "" || b.op == f.Op) && b.figure == f.Figure {
			list = append(list, b)
		}
	}
	return list
}

// beside is a comparison with a peer's figure.
func (f *figure) beside(peer string, theirs, ratio float64) *Comparison {
	return &Comparison{Row: f.row.String(), Pattern: f.Pattern, Layer: f.Layer, Suite: f.Suite, Provider: f.Provider, List: f.List, Ranks: f.Ranks, Window: f.Window,
		Axis: f.Axis, Figure: f.Figure, Load: f.Load, Bytes: f.Bytes, Unit: f.Unit, Op: f.Op, Ours: f.P50, Better: betterOf(f.Figure, f.Unit), Peer: peer, Theirs: theirs, Ratio: ratio}
}

// hold holds it to a bar.
func (c *Comparison) hold(b *bar) {
	met := c.Ratio >= b.limit
	if c.Better == betterLower {
		met = c.Ratio <= b.limit
	}
	c.Bar, c.Met = &b.limit, &met
	if b.aim != 0 {
		c.Aim = &b.aim
	}
}

// mergeRounds makes one result of those of several rounds: medians of the
// quantiles, extremes of the extremes.
func mergeRounds(rounds []Result) Result {
	r := rounds[0]
	r.Rounds = len(rounds)
	over := func(of func(*Result) float64) (vs []float64) {
		for i := range rounds {
			vs = append(vs, of(&rounds[i]))
		}
		return vs
	}
	r.Samples = 0
	for i := range rounds {
		r.Samples += rounds[i].Samples
	}
	r.Min = slices.Min(over(func(r *Result) float64 { return r.Min }))
	r.Max = slices.Max(over(func(r *Result) float64 { return r.Max }))
	for _, of := range []func(*Result) *float64{func(r *Result) *float64 { return &r.P50 }, func(r *Result) *float64 { return &r.P99 },
		func(r *Result) *float64 { return &r.P999 }, func(r *Result) *float64 { return &r.Mean }} {
		*of(&r) = median(over(func(r *Result) float64 { return *of(r) }))
	}
	r.Medians = over(func(r *Result) float64 { return r.P50 })
	r.Spread = spread(slices.Clone(r.Medians))
	if r.CrossingsPerMessage != nil {
		calls := median(over(func(r *Result) float64 { return *r.CrossingsPerMessage }))
		r.CrossingsPerMessage = &calls
	}
	return r
}
