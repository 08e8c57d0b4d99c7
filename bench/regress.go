package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/perf/benchmath"
)

// RegressionError: figures have become worse.
type RegressionError struct{ Worse int }

func (e *RegressionError) Error() string {
	if e.Worse == 1 {
		return "1 figure is worse than before"
	}
	return fmt.Sprintf("%d figures are worse than before", e.Worse)
}

// Change is a figure before and after. Old and New are medians over the rounds; P is the
// probability that rounds of the same distribution differ as these do, by the
// Mann-Whitney U test, as benchstat has it.
type Change struct {
	Pattern  string   `json:"pattern"`
	Name     string   `json:"name"` // provider, peer, layer, and what else tells it from others
	Ranks    int64    `json:"ranks,omitempty"`
	Bytes    int64    `json:"bytes"`
	Unit     string   `json:"unit"`
	Old      float64  `json:"old"`
	New      float64  `json:"new"`
	Ratio    float64  `json:"ratio"` // new / old
	Better   string   `json:"better"`
	RoundsN  int      `json:"rounds_new"`
	RoundsO  int      `json:"rounds_old"`
	P        *float64 `json:"p,omitempty"` // none: too few rounds to tell
	Verdict  string   `json:"verdict"`
	OldRange string   `json:"old_range,omitempty"` // of the median, with 95 % confidence: ± so much of it
	NewRange string   `json:"new_range,omitempty"`
}

// Verdicts of changes.
const (
	verdictSame    = "same"    // or not to be told apart
	verdictBetter  = "better"  // significantly, by more than the threshold
	verdictWorse   = "worse"   // so, too
	verdictUnknown = "unknown" // too few rounds
	verdictOne     = "once"    // is in one of the reports alone
)

// regressOptions are the flags of a comparison of reports.
type regressOptions struct {
	alpha float64
	worse float64 // per cent
}

func (o *regressOptions) check() error {
	if !(o.alpha > 0 && o.alpha < 1) {
		return usagef("--alpha %g: want more than 0, less than 1", o.alpha)
	}
	if !(o.worse >= 0 && o.worse < 1e6) {
		return usagef("--worse %g: want 0 or more per cent", o.worse)
	}
	return nil
}

// identity tells a result from all others of its report.
func (r *Result) identity() string {
	return fmt.Sprintf("%s %d %d %q", r.Pattern, r.Ranks, r.Bytes, curveOf("", r))
}

// roundsOf are the medians of the rounds; of a report without them the one of all.
func (r *Result) roundsOf() []float64 {
	if len(r.Medians) == 0 {
		return []float64{r.P50}
	}
	return slices.Clone(r.Medians)
}

// changes sets the results of two reports beside each other, in the order of the new
// one; what is only in one of them follows.
func (o *regressOptions) changes(before, after *Report) []Change {
	older := map[string]*Result{}
	for i := range before.Results {
		older[before.Results[i].identity()] = &before.Results[i]
	}
	var list, alone []Change
	for i := range after.Results {
		r := &after.Results[i]
		if was := older[r.identity()]; was != nil {
			list = append(list, o.change(was, r))
			delete(older, r.identity())
		} else {
			c := newChange(r)
			c.New, c.RoundsN, c.Verdict = r.P50, len(r.roundsOf()), verdictOne
			alone = append(alone, c)
		}
	}
	for i := range before.Results {
		if r := &before.Results[i]; older[r.identity()] != nil {
			c := newChange(r)
			c.Old, c.RoundsO, c.Verdict = r.P50, len(r.roundsOf()), verdictOne
			alone = append(alone, c)
		}
	}
	return append(list, alone...)
}

func newChange(r *Result) Change {
	words := slices.Delete(curveOf("", r), modeWord, deviceWord+1)
	c := Change{Pattern: r.Pattern, Name: strings.Join(strings.Fields(strings.Join(words, " ")), " "), Ranks: r.Ranks, Bytes: r.Bytes, Unit: r.Unit, Better: betterHigher}
	if r.Unit == unitLatency {
		c.Better = betterLower
	}
	return c
}

func (o *regressOptions) change(was, is *Result) Change {
	c := newChange(is)
	thresholds := benchmath.DefaultThresholds
	thresholds.CompareAlpha = o.alpha
	sample := func(r *Result) *benchmath.Sample { return benchmath.NewSample(r.roundsOf(), &thresholds) }
	a, b := sample(was), sample(is)
	sa, sb := benchmath.AssumeNothing.Summary(a, 0.95), benchmath.AssumeNothing.Summary(b, 0.95)
	c.Old, c.New, c.RoundsO, c.RoundsN = sa.Center, sb.Center, len(a.Values), len(b.Values)
	c.OldRange, c.NewRange = sa.PctRangeString(), sb.PctRangeString()
	if c.Old > 0 {
		c.Ratio = c.New / c.Old
	}
	test := benchmath.AssumeNothing.Compare(a, b)
	switch {
	case len(test.Warnings) > 0 || c.Old <= 0:
		c.Verdict = verdictUnknown
		return c
	default:
		c.P = &test.P
	}
	gain := c.Ratio - 1
	if c.Better == betterLower {
		gain = -gain
	}
	switch {
	case test.P >= o.alpha:
		c.Verdict = verdictSame
	case gain < -o.worse/100:
		c.Verdict = verdictWorse
	case gain > o.worse/100:
		c.Verdict = verdictBetter
	default:
		c.Verdict = verdictSame
	}
	return c
}

// run compares two files; it fails where a figure has become worse.
func (o *regressOptions) run(stdin io.Reader, out *outputOptions, files []string, options map[string]string, only *onlyRows) error {
	reports := make([]*Report, 2)
	for i, f := range files {
		r, err := readReport(stdin, f)
		if err != nil {
			return err
		}
		r.Results = only.results(r.Results)
		reports[i] = r
	}
	report := Report{Schema: schema, Environment: reports[1].Environment, Results: reports[1].Results, Changes: o.changes(reports[0], reports[1])}
	report.Environment.Options = options
	report.Warnings = differentPlaces(&reports[0].Environment, &reports[1].Environment)
	if out.tables() {
		o.print(os.Stdout, terminal(os.Stdout), report.Changes)
	}
	if err := out.print(os.Stdout, &report); err != nil {
		return err
	}
	worse := 0
	for _, c := range report.Changes {
		if c.Verdict == verdictWorse {
			worse++
		}
	}
	if worse > 0 {
		return &RegressionError{worse}
	}
	return nil
}

// differentPlaces says why two reports cannot well be compared.
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

func (o *regressOptions) print(w io.Writer, lines bool, list []Change) {
	t := newTable(w, lines, "", "", "bytes", "unit", "old", "", "new", "", "change", "p", "rounds", "")
	last, lastName := "", ""
	for _, c := range list {
		what := c.Pattern
		if c.Ranks > 0 {
			what += fmt.Sprintf(" of %d ranks", c.Ranks)
		}
		row := []any{what, c.Name, formatSize(c.Bytes), c.Unit, formatValue(c.Old), "±" + c.OldRange, formatValue(c.New), "±" + c.NewRange,
			fmt.Sprintf("%+.1f %%", 100*(c.Ratio-1)), "", fmt.Sprintf("%d, %d", c.RoundsO, c.RoundsN), ""}
		if what == last && c.Name == lastName {
			row[0], row[1] = "", ""
		}
		last, lastName = what, c.Name
		if c.P != nil {
			row[9] = fmt.Sprintf("%.3f", *c.P)
		}
		switch c.Verdict {
		case verdictSame:
			row[8] = "~"
		case verdictUnknown:
			row[11] = "too few rounds"
		case verdictBetter, verdictWorse:
			row[11] = c.Verdict
			if lines {
				paint := map[string]text.Color{verdictBetter: text.FgGreen, verdictWorse: text.FgRed}[c.Verdict]
				row[11] = paint.Sprint(c.Verdict)
			}
		case verdictOne:
			row[8], row[11] = "", "only new"
			empty := 4
			if c.RoundsN == 0 {
				row[11], empty = "only old", 6
			}
			row[empty], row[5], row[7] = "", "", ""
		}
		t.AppendRow(row)
	}
	t.Render()
	fmt.Fprintf(w, "~ is no difference by the Mann-Whitney U test at %g, or one of at most %g %%\n", o.alpha, o.worse)
}
