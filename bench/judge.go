package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/pflag"
	"golang.org/x/perf/benchmath"
)

// mpis are the peers that move messages between processes, as sluice does.
var mpis = []string{"openmpi", "mpich"}

// Other peers, and what bars name of them.
const (
	peerLimit    = "limit"                   // the machine: peers/limit.c
	limitLine    = peerLimit + " line"       // by cache lines that carry the payload
	eightDoubles = "sluice allreduce of 64"  // for exact: measured by the same command
	manyDoubles  = "sluice allreduce of 512" // likewise
	loopRounded  = "sluice " + addRounded    // likewise, for addslice
	calledAlloc  = callCalled + " " + memoryAlloc
	calledHeap   = callCalled + " " + memoryHeap
)

// Comparison compares one of sluice's figures with a peer's. Ours and Theirs are medians over
// the rounds; Ratio is the median of the rounds' ratios, so that a machine whose speed varies
// between rounds affects both alike.
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
	Peer     string   `json:"peer"` // or a figure that sluice is compared with
	PeerOp   string   `json:"peer_op,omitempty"`
	Theirs   float64  `json:"theirs"`
	Ratio    float64  `json:"ratio"` // ours / theirs
	Better   string   `json:"better"`
	Bar      *float64 `json:"bar,omitempty"` // bound of the ratio; none: for information
	Aim      *float64 `json:"aim,omitempty"`
	Met      *bool    `json:"met,omitempty"`    // the bar
	Crawls   []string `json:"crawls,omitempty"` // peers that crawl with more ranks than CPUs, and are not quoted
}

const (
	betterLower  = "lower"
	betterHigher = "higher"
)

func lowerIsBetter(figure, unit string) bool {
	return !slices.Contains([]string{unitBandwidth, unitRate, unitFanout}, unit) && !slices.Contains([]string{figureNeighbour, "osu", "fairness"}, figure)
}

func betterOf(figure, unit string) string {
	if lowerIsBetter(figure, unit) {
		return betterLower
	}
	return betterHigher
}

// String names the two sides of the comparison.
func (c *Comparison) String() string {
	words := []string{c.Row, c.Axis, c.Op, c.Figure, formatSize(c.Bytes), ":", c.Peer}
	if c.Axis != "" {
		words[4] = ""
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// behind returns by which factor sluice is slower; at most 1 if it is not.
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

// figureKey identifies a figure.
type figureKey struct {
	row                             *row
	peer, pattern, op, axis, figure string
	bytes                           int64
}

// rival is how bars name it.
func (f *figure) rival() string {
	switch f.Peer {
	case peerLimit:
		return f.Peer + " " + f.Op
	case peerSluice:
		if f.Pattern == f.row.pattern {
			return f.Peer + " " + f.Op
		}
		return f.Peer + " " + f.Pattern + " of " + formatSize(f.Bytes)
	}
	return f.Peer
}

// own reports whether the row is about the figure: the others are what it is compared with.
func (f *figure) own() bool {
	return f.Peer == peerSluice && f.Pattern == f.row.pattern && f.Op != addRounded
}

// ratios returns the ratios of the rounds in which both took part.
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

// compareFigures compares each of sluice's figures with the best MPI, with its other bars, and
// with the other peers. If there is nothing to compare with, there is no comparison.
func compareFigures(figures []figure, crawls map[*row][]string) (list []Comparison) {
	for i := range figures {
		if ours := &figures[i]; ours.own() {
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
		if f.row != r || f.Axis != ours.Axis || f.Figure != ours.Figure || f.Bytes != ours.Bytes && f.Pattern == r.pattern {
			continue
		}
		if f.own() {
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
			c = ours.beside(theirs.Peer, theirs.P50, median(ratios(ours.Medians, theirs.Medians)))
			if c.PeerOp = theirs.Op; theirs.Peer == peerSluice {
				c.Peer = fmt.Sprintf("%s of %s", theirs.Pattern, formatSize(theirs.Bytes))
			}
		}
		c.Crawls = crawls
		if b.limit > 0 && (first || !b.best) { // if only the best operation counts, the others have no bar
			c.hold(b)
		}
		list = append(list, *c)
	}
	return list
}

// barsOf returns the bars of one of sluice's figures.
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

// mergeRounds merges the results of several rounds: medians of the quantiles, extremes of the
// extremes.
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

// RegressionError says that figures have become worse.
type RegressionError struct{ Worse int }

func (e *RegressionError) Error() string { return plural(e.Worse, "figure") + " worse than before" }

// TooFewRoundsError says that sluice's figures have too few rounds to be distinguished.
type TooFewRoundsError struct {
	Figures int
	Rounds  int // the smaller number of rounds of the two reports
}

func (e *TooFewRoundsError) Error() string {
	return fmt.Sprintf("%s cannot be judged: %s are too few; measure with --rounds %d or more", plural(e.Figures, "figure"), plural(e.Rounds, "round"), enoughRounds)
}

// enoughRounds distinguish figures that differ by more than their spread.
const enoughRounds = 10

// Change is a figure before and after. Old and New are medians over the rounds. Of two
// reports P is the probability that rounds of the same distribution differ as these do, by
// the Mann-Whitney U test, as in benchstat. Of two versions that were measured alternately the
// ratio of each round counts, and Low and High are the 95 % interval of its median.
type Change struct {
	Pattern  string   `json:"pattern"`
	Name     string   `json:"name"` // provider, peer, layer, and whatever else identifies it
	Ranks    int64    `json:"ranks,omitempty"`
	Bytes    int64    `json:"bytes"`
	Unit     string   `json:"unit"`
	Old      float64  `json:"old"`
	New      float64  `json:"new"`
	Ratio    float64  `json:"ratio"` // new / old
	Low      float64  `json:"low,omitempty"`
	High     float64  `json:"high,omitempty"`
	Better   string   `json:"better"`
	RoundsN  int      `json:"rounds_new"`
	RoundsO  int      `json:"rounds_old"`
	P        *float64 `json:"p,omitempty"` // none: too few rounds to tell
	Verdict  string   `json:"verdict"`
	OldRange string   `json:"old_range,omitempty"` // of the median, with 95 % confidence, as ± a share of it
	NewRange string   `json:"new_range,omitempty"`

	ours bool
}

// Verdicts of changes.
const (
	verdictSame    = "same"    // or indistinguishable
	verdictBetter  = "better"  // significantly, by more than the threshold
	verdictWorse   = "worse"   // likewise
	verdictUnknown = "unknown" // too few rounds
	verdictOne     = "once"    // in only one of the reports
)

// changeOptions are the flags of a comparison of reports.
type changeOptions struct {
	alpha float64
	worse float64 // per cent
}

func (o *changeOptions) addFlags(f *pflag.FlagSet) {
	f.Float64Var(&o.alpha, "alpha", 0.05, "of OLD and NEW: probability of chance from which on two figures count as the same")
	f.Float64Var(&o.worse, "worse", 3, "of OLD and NEW: per cent up to which a difference does not count")
}

func (o *changeOptions) check() error {
	if !(o.alpha > 0 && o.alpha < 1) {
		return usagef("--alpha %g: want more than 0, less than 1", o.alpha)
	}
	if !(o.worse >= 0 && o.worse < 1e6) {
		return usagef("--worse %g: want 0 or more per cent", o.worse)
	}
	return nil
}

// identity identifies a result within its report.
func (r *Result) identity() string {
	return fmt.Sprintf("%s %d %d %q", r.Pattern, r.Ranks, r.Bytes, curveOf("", r))
}

// roundsOf returns the medians of the rounds; of a report without them, the overall median.
func (r *Result) roundsOf() []float64 {
	if len(r.Medians) == 0 {
		return []float64{r.P50}
	}
	return slices.Clone(r.Medians)
}

// changes compares the results of two reports, in the order of the new one; results that only one
// of them has follow.
func changes(before, after []Result, change func(c *Change, was, is *Result)) []Change {
	older := map[string]*Result{}
	for i := range before {
		older[before[i].identity()] = &before[i]
	}
	var list, alone []Change
	for i := range after {
		is := &after[i]
		was := older[is.identity()]
		c := newChange(is)
		if was == nil {
			c.New, c.RoundsN, c.Verdict = is.P50, len(is.roundsOf()), verdictOne
			alone = append(alone, c)
			continue
		}
		delete(older, is.identity())
		c.Verdict, c.RoundsO, c.RoundsN = verdictUnknown, len(was.roundsOf()), len(is.roundsOf())
		change(&c, was, is)
		list = append(list, c)
	}
	for i := range before {
		if was := &before[i]; older[was.identity()] != nil {
			c := newChange(was)
			c.Old, c.RoundsO, c.Verdict = was.P50, len(was.roundsOf()), verdictOne
			alone = append(alone, c)
		}
	}
	return append(list, alone...)
}

func newChange(r *Result) Change {
	words := slices.Delete(curveOf("", r), modeWord, deviceWord+1)
	return Change{Pattern: r.Pattern, Name: strings.Join(strings.Fields(strings.Join(words, " ")), " "), Ranks: r.Ranks, Bytes: r.Bytes, Unit: r.Unit,
		Better: betterOf(r.Figure, r.Unit), ours: r.Peer == peerSluice}
}

// judge sets the verdict for a ratio that is certain.
func (c *Change) judge(sure float64, threshold float64) {
	gain := sure - 1
	if c.Better == betterLower {
		gain = -gain
	}
	c.Verdict = verdictSame
	if gain < -threshold {
		c.Verdict = verdictWorse
	} else if gain > threshold {
		c.Verdict = verdictBetter
	}
}

// summary is the median of rounds with its 95 % interval.
func summary(rounds []float64, thresholds *benchmath.Thresholds) (*benchmath.Sample, benchmath.Summary) {
	s := benchmath.NewSample(rounds, thresholds)
	return s, benchmath.AssumeNothing.Summary(s, 0.95)
}

// independent compares figures of two reports, each with rounds of its own.
func (o *changeOptions) independent(c *Change, was, is *Result) {
	thresholds := benchmath.DefaultThresholds
	thresholds.CompareAlpha = o.alpha
	a, sa := summary(was.roundsOf(), &thresholds)
	b, sb := summary(is.roundsOf(), &thresholds)
	c.Old, c.New, c.OldRange, c.NewRange = sa.Center, sb.Center, sa.PctRangeString(), sb.PctRangeString()
	if c.Old <= 0 {
		return
	}
	c.Ratio = c.New / c.Old
	test := benchmath.AssumeNothing.Compare(a, b)
	if len(test.Warnings) > 0 {
		return
	}
	c.P, c.Verdict = &test.P, verdictSame
	if test.P < o.alpha {
		c.judge(c.Ratio, o.worse/100)
	}
}

// paired compares figures that were measured in the same rounds: by the ratios of these.
func paired(c *Change, was, is *Result) {
	_, s := summary(ratios(is.roundsOf(), was.roundsOf()), &benchmath.DefaultThresholds)
	c.Old, c.New, c.Ratio = was.P50, is.P50, s.Center
	if len(s.Warnings) == 0 { // otherwise there is no such interval
		c.Low, c.High = s.Lo, s.Hi
		c.judge(max(s.Lo, min(1, s.Hi)), baseWorse) // the end that is nearer to 1, or 1
	}
}

// verdictError returns an error if a figure has become worse, or if sluice's figures, or all,
// cannot be judged.
func verdictError(list []Change) error {
	worse, judged, few := 0, false, TooFewRoundsError{}
	for i := range list {
		c := &list[i]
		judged = judged || c.P != nil || c.High > 0
		if c.Verdict == verdictWorse {
			worse++
		}
		if c.Verdict == verdictUnknown && c.ours {
			few.Figures++
			few.Rounds = max(few.Rounds, min(c.RoundsN, c.RoundsO))
		}
	}
	switch {
	case worse > 0:
		return &RegressionError{worse}
	case few.Figures > 0:
		return &few
	case !judged && len(list) > 0:
		return &TooFewRoundsError{Figures: len(list)}
	}
	return nil
}

// compareFiles compares two files; it fails if a figure has become worse.
func (o *changeOptions) compareFiles(stdin io.Reader, out *outputOptions, files []string, options map[string]string, only *regexp.Regexp) {
	reports := make([]*Report, 2)
	var warnings []string
	for i, f := range files {
		r := readReport(stdin, f)
		r.Results = slices.DeleteFunc(r.Results, func(r Result) bool { return !only.MatchString(rowName(&r)) })
		reports[i] = r
		warnings = append(warnings, (&labelled{file: f}).named(r.Warnings)...)
	}
	before, after := reports[0], reports[1]
	report := Report{Schema: schema, Environment: after.Environment, Results: after.Results, Changes: changes(before.Results, after.Results, o.independent)}
	report.Environment.Options = options
	report.Warnings = append(differentPlaces(&before.Environment, &after.Environment), warnings...)
	if out.tables() {
		printChanges(os.Stdout, terminal(os.Stdout), report.Changes)
		fmt.Printf("~ is no difference by the Mann-Whitney U test at %g, or one of at most %g %%\n", o.alpha, o.worse)
	}
	out.print(os.Stdout, &report)
	must(verdictError(report.Changes))
}

// rowName returns the name of a result for --only: provider, suite, pattern, axis, operation,
// bytes and peer, with spaces between.
func rowName(r *Result) string {
	suite := r.Suite
	switch {
	case isCollective(r.Pattern):
		suite = fmt.Sprintf("%s %d ranks", r.Suite, r.Ranks)
	case suite == "":
		suite = r.Layer
	}
	return strings.Join(strings.Fields(strings.Join([]string{r.Provider, suite, r.Pattern, r.Axis, r.Op, formatSize(r.Bytes), r.Peer}, " ")), " ")
}

// differentPlaces returns why two reports are hard to compare.
func differentPlaces(a, b *Environment) []string {
	var list []string
	for _, v := range []struct{ what, old, new string }{
		{"CPU", a.CPU, b.CPU}, {"kernel", a.Kernel, b.Kernel}, {"Go", a.Go, b.Go}, {"architecture", a.Arch, b.Arch}, {"governor", a.Governor, b.Governor},
	} {
		if v.old != v.new {
			list = append(list, fmt.Sprintf("%s was %q and is %q", v.what, v.old, v.new))
		}
	}
	return list
}

func printChanges(w io.Writer, lines bool, list []Change) {
	t := newTable(w, lines, "", "", "bytes", "old", "", "new", "", "change", "", "rounds", "")
	last, lastName := "", ""
	for _, c := range list {
		what := c.Pattern
		if c.Ranks > 0 {
			what += fmt.Sprintf(" of %d ranks", c.Ranks)
		}
		row := []any{what, c.Name, formatSize(c.Bytes), readable(c.Old, c.Unit), "", readable(c.New, c.Unit), "",
			fmt.Sprintf("%+.1f %%", 100*(c.Ratio-1)), "", fmt.Sprintf("%d, %d", c.RoundsO, c.RoundsN), ""}
		if what == last && c.Name == lastName {
			row[0], row[1] = "", ""
		}
		last, lastName = what, c.Name
		switch {
		case c.P != nil:
			row[4], row[6], row[8] = "±"+c.OldRange, "±"+c.NewRange, fmt.Sprintf("p %.3f", *c.P)
		case c.High > 0:
			row[8] = fmt.Sprintf("%+.1f to %+.1f %%", 100*(c.Low-1), 100*(c.High-1))
		}
		switch c.Verdict {
		case verdictSame:
			row[10] = "~"
		case verdictUnknown:
			row[10] = "too few rounds"
		case verdictBetter, verdictWorse:
			row[10] = c.Verdict
			if lines {
				paint := map[string]text.Color{verdictBetter: text.FgGreen, verdictWorse: text.FgRed}[c.Verdict]
				row[10] = paint.Sprint(c.Verdict)
			}
		case verdictOne:
			row[7], row[10] = "", "only new"
			empty := 3
			if c.RoundsN == 0 {
				row[10], empty = "only old", 5
			}
			row[empty] = ""
		}
		t.AppendRow(row)
	}
	t.Render()
}
