package main

import (
	"bufio"
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// pageFiles are the page, its style and its script; the written page contains all of them.
//
//go:embed page
var pageFiles embed.FS

// pageOptions are the flags of bench report.
type pageOptions struct{ html, svg, png, by, figure string }

func newReportCommand() *cobra.Command {
	var o pageOptions
	cmd := &cobra.Command{
		Use:   "report FILE...",
		Short: "Plot the reports that --json has written: one HTML file, and SVG or PNG for papers",
		Long: `Reads reports of --json (- is standard input) and writes one self-contained HTML file,
which needs no network. It has charts against the size of messages (one for each provider, one
for each peer, or one for all; values under the pointer; series can be switched on and off), the
ratios of bench compare with their bars, all figures as tables, and where they were measured.
Several files are distinguished by their names; LABEL=FILE gives another name.

--svg and --png write a file for each chart into a directory.`,
		RunE: caught(func(cmd *cobra.Command, args []string) {
			o.check(args)
			o.write(cmd.OutOrStdout(), readReports(cmd.InOrStdin(), args))
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&o.html, "output", "o", "", "the HTML file (- is standard output; default bench.html unless --svg or --png is given)")
	f.StringVar(&o.svg, "svg", "", "directory for an SVG file for each chart")
	f.StringVar(&o.png, "png", "", "directory for a PNG file for each chart")
	f.StringVar(&o.figure, "figure", "p50", "figure to draw: p50, min, mean, p99, p999 or max")
	f.StringVar(&o.by, "by", byProvider, "SVG and PNG: a chart for each provider, for each peer, or all in one")
	return cmd
}

func (o *pageOptions) check(args []string) {
	if len(args) == 0 {
		must(usagef("report: want files that --json has written"))
	}
	if !slices.Contains(divisions, o.by) {
		must(usagef("--by %q: want %s", o.by, strings.Join(divisions, ", ")))
	}
	if plotFigures[o.figure] == nil {
		must(usagef("--figure %q: want p50, min, mean, p99, p999 or max", o.figure))
	}
	if o.html == "" && o.svg == "" && o.png == "" {
		o.html = "bench.html"
	}
}

func (o *pageOptions) write(stdout io.Writer, reports []labelled) {
	page := func(w io.Writer) error { return writePage(w, reports, o.figure) }
	switch o.html {
	case "":
	case "-":
		must(page(stdout))
	default:
		must(writeFile(o.html, page))
	}
	if o.svg != "" {
		o.drawAll(o.svg, ".svg", (*drawing).svg, reports)
	}
	if o.png != "" {
		o.drawAll(o.png, ".png", (*drawing).png, reports)
	}
}

// writeFile writes a temporary file and renames it: no reader sees an incomplete file.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".bench-*")
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	if err = errors.Join(write(w), w.Flush(), f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// ReportError says that a file is not a report of this bench.
type ReportError struct {
	File string
	Why  string
}

func (e *ReportError) Error() string { return fmt.Sprintf("%s: %s", e.File, e.Why) }

// readReports reads the files of a command line, each FILE or LABEL=FILE.
func readReports(stdin io.Reader, args []string) []labelled {
	var list []labelled
	for _, arg := range args {
		label, path, found := strings.Cut(arg, "=")
		if !found {
			label, path = "", arg
			if len(args) > 1 {
				label = strings.TrimSuffix(filepath.Base(arg), filepath.Ext(arg))
			}
		}
		list = append(list, labelled{label, path, readReport(stdin, path)})
	}
	return list
}

// readReport reads one report; of "-" from stdin.
func readReport(stdin io.Reader, path string) *Report {
	from := stdin
	if path != "-" {
		f := must1(os.Open(path))
		defer f.Close()
		from = f
	}
	return must1(parseReport(path, from))
}

// parseReport parses a report of --json. It ignores unknown fields, which are from a later bench.
func parseReport(name string, from io.Reader) (_ *Report, err error) {
	defer catch(&err)
	b := must1(io.ReadAll(io.LimitReader(from, maxReport+1)))
	var r Report
	refuse := func(format string, args ...any) { must(&ReportError{name, fmt.Sprintf(format, args...)}) }
	if len(b) > maxReport {
		refuse("more than %d bytes", maxReport)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		refuse("no JSON of bench: %v", err)
	}
	if r.Schema != schema {
		refuse("its schema is %q, want %q", r.Schema, schema)
	}
	for i := range r.Results {
		if err := r.Results[i].check(); err != nil {
			refuse("result %d: %v", i, err)
		}
	}
	return &r, nil
}

// maxReport bounds the size of a report: a thousand results with histograms take a few MB.
const maxReport = 256 << 20

// pageView is all charts as the page has them, divided by something.
type pageView struct {
	By     string
	Charts []pageChart
}

type pageChart struct {
	Title   string
	Lower   bool // is better
	Picture template.HTML
	Series  []pageSeries
}

type pageSeries struct{ Name, Colour string }

func writePage(w io.Writer, reports []labelled, figure string) error {
	t, err := template.New("page.html").Funcs(template.FuncMap{
		"size": formatSize, "figure": readable,
		"environment": func(e Environment) string {
			var b bytes.Buffer
			printEnvironment(&b, &e)
			return b.String()
		},
		"device":  func(d DeviceEntry) string { return d.Provider + ": " + describeEntry(&d) },
		"percent": func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) },
		"style": func() (template.CSS, error) {
			b, err := pageFiles.ReadFile("page/page.css")
			return template.CSS(b), err
		},
		"script": func() (template.JS, error) { b, err := pageFiles.ReadFile("page/page.js"); return template.JS(b), err },
	}).ParseFS(pageFiles, "page/page.html")
	if err != nil {
		return err
	}
	data := struct {
		Figure            string
		Warnings, Missing []string
		Views             []pageView
		Parts             []labelled
	}{Figure: figure, Parts: reports}
	for i := range reports {
		l := &reports[i]
		data.Warnings = append(data.Warnings, l.named(l.Report.Warnings)...)
		data.Missing = append(data.Missing, l.named(l.Report.Missing)...)
	}
	charts := chartsOf(reports)
	for _, by := range divisions {
		v := pageView{By: by}
		for _, c := range divided(charts, by) {
			var b strings.Builder
			_ = c.draw(figure, false).svg(&b) // a buffer never fails
			p := pageChart{Title: c.title(), Lower: lowerIsBetter(c.figure, c.unit), Picture: template.HTML(b.String())}
			for i, s := range c.curves {
				p.Series = append(p.Series, pageSeries{s.name, cssOf(colourOf(i))})
			}
			v.Charts = append(v.Charts, p)
		}
		data.Views = append(data.Views, v)
	}
	return t.Execute(w, data)
}

// drawAll writes a file for each chart. It numbers names that differ only in characters that a
// file name cannot have.
func (o *pageOptions) drawAll(dir, suffix string, write func(*drawing, io.Writer) error, reports []labelled) {
	must(os.MkdirAll(dir, 0o755))
	taken := map[string]int{}
	for _, c := range divided(chartsOf(reports), o.by) {
		d := c.draw(o.figure, true)
		name := strings.Join(strings.FieldsFunc(strings.ToLower(d.title), func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789", r)
		}), "-")
		if taken[name]++; taken[name] > 1 {
			name = fmt.Sprintf("%s-%d", name, taken[name])
		}
		must(writeFile(filepath.Join(dir, name+suffix), func(w io.Writer) error { return write(d, w) }))
	}
}

// chart is figures of one unit against the size of messages: those of one pattern, of
// as many ranks.
type chart struct {
	subject
	of     string // provider or peer, if the chart has only one
	curves []curve
}

// subject is what all curves of a chart have in common.
type subject struct {
	pattern, figure, load, unit string
	ranks                       int64
}

// curve is one line of a chart, in order of size.
type curve struct {
	name, provider, peer string
	points               []*Result
}

// labelled is one report, with a label that distinguishes it from others.
type labelled struct {
	Label  string
	file   string // empty: of this run
	Report *Report
}

// named prefixes each sentence of the report with its file.
func (l *labelled) named(list []string) (named []string) {
	for _, s := range list {
		if l.file != "" {
			s = l.file + ": " + s
		}
		named = append(named, s)
	}
	return named
}

// curveOf returns the curve of a chart that a result belongs to: everything that identifies it,
// except the size.
func curveOf(label string, r *Result) []string {
	many := func(v int64, format string) string {
		if v <= 1 {
			return ""
		}
		return fmt.Sprintf(format, v)
	}
	window := int64(0)
	if r.Pattern == patternFanout { // in other patterns it depends on the size
		window = r.Window
	}
	return []string{label, r.Provider, r.Peer, r.Layer, r.Suite, r.Op, r.Axis, r.Halo, r.Algorithm,
		many(r.Segment, "segments of %d"), many(r.List, "lists of %d"), r.Mode, r.Device, many(r.Block, "blocks of %d"), r.Receive,
		many(window, "window %d"), r.Figure, r.Load}
}

// The positions of these among the words of curveOf. A device is named if its provider has
// several.
const (
	providerWord = 1
	peerWord     = 2
	modeWord     = 11
	deviceWord   = 12
)

// The words of curveOf that are always named: label, provider, peer, layer. Others are named only
// if they differ within a chart.
const alwaysNamed = 4

func chartsOf(reports []labelled) []chart {
	type line struct {
		words  []string
		points []*Result
	}
	var subjects []subject
	lines := map[subject][]*line{}
	for _, l := range reports {
		for i := range l.Report.Results {
			r := &l.Report.Results[i]
			s := subject{r.Pattern, r.Figure, r.Load, r.Unit, r.Ranks}
			if !slices.Contains(subjects, s) {
				subjects = append(subjects, s)
			}
			words := curveOf(l.Label, r)
			k := slices.IndexFunc(lines[s], func(o *line) bool { return slices.Equal(o.words, words) })
			if k < 0 {
				k = len(lines[s])
				lines[s] = append(lines[s], &line{words: words})
			}
			lines[s][k].points = append(lines[s][k].points, r)
		}
	}
	var charts []chart
	for _, s := range subjects {
		c := chart{subject: s}
		var all [][]string
		for _, l := range lines[s] {
			all = append(all, l.words)
		}
		for _, l := range lines[s] {
			slices.SortStableFunc(l.points, func(a, b *Result) int { return cmp.Compare(a.Bytes, b.Bytes) })
			c.curves = append(c.curves, curve{nameOf(l.words, all), l.words[providerWord], l.words[peerWord], l.points})
		}
		charts = append(charts, c)
	}
	return charts
}

// nameOf names a curve by what distinguishes it from the others.
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

func (c *chart) title() string {
	words := []string{strings.TrimSpace(patternTitle(c.pattern) + " " + c.figure)}
	if c.ranks > 2 {
		words = append(words, fmt.Sprintf("%d ranks", c.ranks))
	}
	if c.load != "" {
		words = append(words, "CPUs "+c.load)
	}
	if c.of != "" {
		words = append(words, c.of)
	}
	return strings.Join(words, ", ")
}

func patternTitle(pattern string) string {
	title := map[string]string{patternLat: "latency", patternBW: "bandwidth", patternBiBW: "bandwidth, both ways", patternRate: "message rate", patternHalo: "halo exchange",
		patternRing: "ring, time of a hop", patternLocal: "message to oneself", patternAddSlice: "terms added to an exact sum", patternExact: "exact sum"}[pattern]
	return cmp.Or(title, pattern)
}

// How charts are divided.
const (
	byProvider = "provider"
	byPeer     = "peer"
	byNothing  = "all"
)

var divisions = []string{byProvider, byPeer, byNothing}

// divided returns all charts, each divided into one for each provider, or peer.
func divided(charts []chart, by string) (parts []chart) {
	for _, c := range charts {
		from := len(parts)
		for _, line := range c.curves {
			of := map[string]string{byProvider: line.provider, byPeer: line.peer}[by]
			n := slices.IndexFunc(parts[from:], func(p chart) bool { return p.of == of })
			if n < 0 {
				n = len(parts) - from
				parts = append(parts, chart{subject: c.subject, of: of})
			}
			parts[from+n].curves = append(parts[from+n].curves, line)
		}
	}
	return parts
}

// plotFigures are the figures of a result that can be drawn.
var plotFigures = map[string]func(*Result) float64{
	"p50": func(r *Result) float64 { return r.P50 }, "min": func(r *Result) float64 { return r.Min }, "mean": func(r *Result) float64 { return r.Mean },
	"p99": func(r *Result) float64 { return r.P99 }, "p999": func(r *Result) float64 { return r.P999 }, "max": func(r *Result) float64 { return r.Max },
}

// Where the axes of a chart are.
const (
	plotWidth, plotHeight  = 1000, 380
	plotLeft, plotRight    = 78, 16
	plotTop, plotBottom    = 12, 42
	legendRow, legendTitle = 18, 26
)

// axis maps values to places, logarithmically.
type axis struct{ lo, hi, from, to float64 }

func (a *axis) of(v float64) float64 {
	return a.from + (a.to-a.from)*math.Log(v/a.lo)/math.Log(a.hi/a.lo)
}

// take extends the axis to a value.
func (a *axis) take(lo, hi float64) { a.lo, a.hi = min(a.lo, lo), max(a.hi, hi) }

// ticks returns powers of the base, at most a dozen, and values between them if these are few.
func (a *axis) ticks(base float64) (list []float64) {
	first, last := math.Floor(math.Log(a.lo)/math.Log(base)), math.Ceil(math.Log(a.hi)/math.Log(base))
	between := []float64{1}
	if base == 10 && last-first <= 3 {
		between = []float64{1, 2, 5}
	}
	step := math.Max(1, math.Ceil((last-first)/12))
	for e := first; e <= last; e += step {
		for _, m := range between {
			if v := m * math.Pow(base, e); v >= a.lo*0.9999 && v <= a.hi*1.0001 {
				list = append(list, v)
			}
		}
	}
	return list
}

// emptySize is the place of an empty message on a logarithmic axis.
const emptySize = 0.5

// draw draws figures against sizes, with a title above and a legend below if that is wanted.
func (c *chart) draw(figure string, legend bool) *drawing {
	d := &drawing{title: c.title(), width: plotWidth, height: plotHeight}
	top := 0.
	if legend {
		top = legendTitle
		d.height += top + float64(len(c.curves)*legendRow)
		d.write(xy{plotWidth / 2, legendTitle - 8}, "middle", c.title())
	}
	value := plotFigures[figure]
	place := func(r *Result) float64 { return math.Max(float64(r.Bytes), emptySize) }
	x := axis{math.Inf(1), math.Inf(-1), plotLeft, plotWidth - plotRight}
	y := axis{math.Inf(1), math.Inf(-1), top + plotHeight - plotBottom, top + plotTop}
	for _, s := range c.curves {
		for _, r := range s.points {
			if v := value(r); v > 0 { // 0 has no logarithm
				x.take(place(r), place(r))
				y.take(v/1.15, v*1.15)
			}
		}
	}
	if y.hi < 0 {
		return d
	}
	if x.lo == x.hi { // a single size
		x.take(x.lo/2, x.hi*2)
	}
	for _, v := range y.ticks(10) {
		d.line("grid", xy{plotLeft, y.of(v)}, xy{plotWidth - plotRight, y.of(v)})
		d.write(xy{plotLeft - 8, y.of(v) + 4}, "end", readable(v, c.unit))
	}
	for _, v := range x.ticks(2) {
		d.line("grid", xy{x.of(v), y.to}, xy{x.of(v), y.from})
		size := "0"
		if v >= 1 {
			size = formatSize(int64(v))
		}
		d.write(xy{x.of(v), y.from + 18}, "middle", size)
	}
	d.line("axis", xy{plotLeft, y.from}, xy{plotWidth - plotRight, y.from})
	d.line("axis", xy{plotLeft, y.from}, xy{plotLeft, y.to})
	d.write(xy{(plotLeft + plotWidth - plotRight) / 2, y.from + plotBottom - 6}, "middle", "bytes")
	for i, s := range c.curves {
		line := shape{kind: "line", series: s.name, colour: colourOf(i), width: 1.8, dash: float64(i / len(colours) * 3)}
		var dots []shape
		for _, r := range s.points {
			if v := value(r); v > 0 {
				at := xy{x.of(place(r)), y.of(v)}
				line.points = append(line.points, at)
				dots = append(dots, shape{kind: "dot", series: s.name, tip: s.name + "\n" + r.tip(), points: []xy{at}, colour: line.colour, width: 3.5})
			}
		}
		if len(dots) > 0 {
			d.shapes = append(append(d.shapes, line), dots...)
		}
		if legend {
			at := top + plotHeight + float64(i*legendRow) + 6
			key := line
			key.points = []xy{{plotLeft, at}, {plotLeft + 30, at}}
			d.shapes = append(d.shapes, key)
			d.write(xy{plotLeft + 40, at + 4}, "start", s.name)
		}
	}
	return d
}

// tip returns the text of a result under the pointer.
func (r *Result) tip() string {
	text := formatSize(r.Bytes) + " bytes"
	for _, q := range []struct {
		name string
		v    float64
	}{{"min", r.Min}, {"p50", r.P50}, {"p99", r.P99}, {"p99.9", r.P999}, {"max", r.Max}, {"mean", r.Mean}} {
		text += fmt.Sprintf("\n%-6s %s", q.name, readable(q.v, r.Unit))
	}
	text += "\n" + plural(int(r.Samples), "sample")
	if r.Spread > 0 {
		text += fmt.Sprintf(", spread %.1f %%", 100*r.Spread)
	}
	return text
}
