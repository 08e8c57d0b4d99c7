package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// outputOptions say how results are printed.
type outputOptions struct {
	json   bool
	csv    bool
	html   string                   // file of a page; empty: none
	allocs bool                     // show a column of allocations
	show   func(io.Writer, *Report) // in place of tables; may be nil
	meetOptions
}

func (o *outputOptions) check() {
	o.meetOptions.check()
	if o.json && o.csv {
		must(usagef("--json and --csv exclude each other"))
	}
	checkFolder("html", o.html)
}

// checkFolder fails, before minutes of measuring, if the folder of an output file does not exist.
// In a job only one rank writes, and other ranks need not have that folder.
func checkFolder(flag, path string) {
	if path != "" && os.Getenv(boot.EnvRank) == "" {
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			must(usagef("--%s %s: %v", flag, path, err))
		}
	}
}

func (o *outputOptions) tables() bool { return !o.json && !o.csv }

// print writes the whole report in the requested form.
func (o *outputOptions) print(w io.Writer, r *Report) {
	if o.html != "" {
		must(writeFile(o.html, func(w io.Writer) error { return writePage(w, []labelled{{Report: r}}, "p50") }))
	}
	switch {
	case o.json:
		printJSON(w, r)
		return
	case o.csv:
		must(writeCSV(w, r))
		return
	case o.show != nil:
		o.show(w, r)
		return
	}
	printEnvironment(w, &r.Environment)
	printWarnings(w, r)
	var several []Result
	for list := range runs(r.Results, titleOf) {
		if inFigures(&list[0]) {
			several = append(several, list...)
		} else {
			printResults(w, list, o.allocs)
		}
	}
	for list := range runs(several, func(r *Result) string { return r.Pattern }) {
		printFigures(w, list)
	}
	for _, why := range r.Missing {
		fmt.Fprintf(w, "\nnot available: %s\n", why)
	}
	if r.Model != nil {
		printScale(w, r)
	}
}

func printJSON(w io.Writer, v any) {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	must(e.Encode(v))
}

// printWarnings prints, before the figures, why they are doubtful.
func printWarnings(w io.Writer, r *Report) {
	for _, s := range r.Warnings {
		fmt.Fprintf(w, "warning: %s\n", s)
	}
}

// terminal reports whether f is a terminal; a rank's output goes through the process that started
// it.
func terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// runs are the parts of a list whose elements have the same key.
func runs[T any, K comparable](list []T, key func(*T) K) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for len(list) > 0 {
			n := 1
			for n < len(list) && key(&list[n]) == key(&list[0]) {
				n++
			}
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}

func printEnvironment(w io.Writer, e *Environment) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-8s %s\n", name, fmt.Sprintf(format, args...))
	}
	cpu := e.CPU
	if e.Virtual {
		cpu += ", virtual"
	}
	if e.Governor != "" {
		cpu += ", governor " + e.Governor
	}
	line("CPU", "%s", cpu)
	line("system", "%s, %s/%s", e.Kernel, e.OS, e.Arch)
	line("Go", "%s, bench %s", e.Go, e.Bench)
	for _, r := range e.Ranks {
		on := "any CPU"
		if len(r.CPUs) > 0 {
			on = "CPU " + strings.Trim(fmt.Sprint(r.CPUs), "[]")
		}
		line(fmt.Sprintf("rank %d", r.Rank), "%s, %s, GOMAXPROCS %d", r.Host, on, r.GOMAXPROCS)
	}
	for i := range e.Devices {
		line("device", "%s", strings.TrimPrefix(describeEntry(&e.Devices[i]), "device "))
	}
	if len(e.Options) > 0 {
		line("options", "%s", strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(e.Options), "map["), "]"))
	}
}

func describeEntry(d *DeviceEntry) string {
	parts := []string{"device " + d.Device}
	if d.Netdev != "" {
		parts = append(parts, "on "+d.Netdev)
	}
	if d.GID != "" {
		parts = append(parts, "GID "+d.GID)
	}
	parts = append(parts, fmt.Sprintf("MTU %d", d.MTU), fmt.Sprintf("inline up to %d", d.MaxInlineData))
	if d.Portable {
		parts = append(parts, "portable path")
	}
	return strings.Join(parts, ", ")
}

// printResults prints results of one title as a table.
func printResults(w io.Writer, rs []Result, allocs bool) {
	first := &rs[0]
	fmt.Fprintf(w, "\n%s\n", titleOf(first))
	var columns []column
	if slices.ContainsFunc(rs, func(r Result) bool { return r.Axis != "" }) {
		columns = append(columns, column{"axis", func(r *Result) string { return r.Axis }})
	}
	figure := func(name string, of func(*Result) float64) column {
		return column{name, func(r *Result) string { return readable(of(r), r.Unit) }}
	}
	columns = append(columns, column{"bytes", func(r *Result) string {
		if r.Block > 0 {
			return formatSize(r.Bytes) + " of " + formatSize(r.Block)
		}
		return formatSize(r.Bytes)
	}}, figure("median", func(r *Result) float64 { return r.P50 }), figure("min", func(r *Result) float64 { return r.Min }))
	if first.Unit == unitLatency {
		columns = append(columns, figure("p99", func(r *Result) float64 { return r.P99 }), figure("p99.9", func(r *Result) float64 { return r.P999 }))
	}
	columns = append(columns, figure("max", func(r *Result) float64 { return r.Max }), figure("mean", func(r *Result) float64 { return r.Mean }))
	if first.Unit == unitBandwidth {
		columns = append(columns, column{"each", func(r *Result) string { return readable(float64(r.Bytes)*1e3/r.P50, unitLatency) }})
	}
	columns = append(columns, column{"samples", func(r *Result) string { return strconv.FormatInt(r.Samples, 10) }})
	if first.Rounds > 1 {
		columns = append(columns, column{"spread", func(r *Result) string { return fmt.Sprintf("%.1f %%", 100*r.Spread) }})
	}
	if allocs && first.AllocsPerMessage != nil {
		columns = append(columns, column{"allocs/msg", func(r *Result) string { return strconv.FormatFloat(*r.AllocsPerMessage, 'f', 4, 64) }})
	}
	if first.CrossingsPerMessage != nil {
		columns = append(columns, column{"calls into C/msg", func(r *Result) string { return strconv.FormatFloat(*r.CrossingsPerMessage, 'f', 3, 64) }})
	}
	printColumns(w, columns, rs)
}

// column is one of a table of results.
type column struct {
	name string
	cell func(*Result) string
}

func printColumns(w io.Writer, columns []column, rs []Result) {
	var header []any
	for _, c := range columns {
		header = append(header, c.name)
	}
	t := newTable(w, false, header...)
	for i := range rs {
		var row []any
		for _, c := range columns {
			row = append(row, c.cell(&rs[i]))
		}
		t.AppendRow(row)
	}
	t.Render()
}

func titleOf(r *Result) string {
	parts := []string{strings.Join(strings.Fields(strings.Join([]string{r.Provider, r.Layer, r.Pattern, r.Figure}, " ")), " ")}
	if r.Op != r.Pattern {
		parts = append(parts, r.Op)
	}
	if r.Ranks > 0 {
		parts = append(parts, fmt.Sprintf("%d ranks", r.Ranks))
	}
	if r.Window > 0 {
		parts = append(parts, fmt.Sprintf("up to %d outstanding", r.Window))
	}
	if received := strings.TrimSpace(r.Halo + " " + r.Receive); received != "" {
		parts = append(parts, "received "+strings.ReplaceAll(received, " ", " and "))
	}
	if r.Device != "" {
		parts = append(parts, "device "+r.Device)
	}
	title := strings.Join(parts, ", ")
	if p := firstPattern(func(p *pattern) bool { return p.name == r.Pattern && p.layer == r.Layer }); p != nil {
		title += ": " + p.what
	}
	switch {
	case r.Unit != unitLatency:
	case r.Mode == modeEach:
		title += fmt.Sprintf("; every iteration timed (reading the clock, %.0f ns, is in each)", r.TimerNS)
	default:
		title += "; the distribution is that of the means of batches, no clock within"
	}
	return title
}

// Units of figures other than times and rates.
const (
	unitShare = "%"
	unitCount = "1"
	unitKiB   = "KiB"
)

// inFigures reports whether a result is shown next to the other figures of its measurement.
func inFigures(r *Result) bool {
	p := firstPattern(func(p *pattern) bool { return p.name == r.Pattern && p.layer == r.Layer })
	return r.Figure != "" || r.Failed != "" || r.Load != "" || p != nil && p.figures != nil
}

// printFigures prints results of several figures of a pattern: a row for each measurement, a
// column for each figure, with the mean and the 99th percentile where there are several samples.
func printFigures(w io.Writer, rs []Result) {
	header, column := []any{"provider", ""}, map[string]int{}
	for _, r := range rs {
		if _, ok := column[r.Figure]; !ok {
			column[r.Figure] = len(header)
			header = append(header, cmp.Or(r.Figure, r.Pattern))
		}
	}
	fmt.Fprintf(w, "\n%s: medians; mean and 99th percentile where there are several samples\n", rs[0].Pattern)
	t := newTable(w, false, header...)
	for of := range runs(rs, describeMeasured) {
		row := slices.Repeat([]any{""}, len(header))
		row[0], row[1] = of[0].Provider, describeMeasured(&of[0])
		for _, r := range of {
			value := func(v float64) string { return strings.TrimSuffix(readable(v, r.Unit), " "+unitCount) }
			cell := value(r.P50)
			switch {
			case r.Failed != "":
				cell = "failed"
			case r.Samples > 1:
				cell += fmt.Sprintf(" (%s; %s)", value(r.Mean), value(r.P99))
			}
			row[column[r.Figure]] = cell
		}
		t.AppendRow(row)
	}
	t.Render()
	for _, r := range rs {
		if r.Failed != "" {
			fmt.Fprintf(w, "%s, %s: failed: %s\n", r.Provider, describeMeasured(&r), r.Failed)
		}
	}
}

// describeMeasured returns what distinguishes a measurement from others of its pattern.
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

// newTable returns a table with right-aligned columns: with lines on a terminal, with plain
// spaces elsewhere.
func newTable(w io.Writer, lines bool, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	style := table.StyleLight
	if !lines {
		style.Options = table.OptionsNoBordersAndSeparators
	}
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.AppendHeader(table.Row(header))
	var columns []table.ColumnConfig
	for i := range header {
		columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	t.SuppressTrailingSpaces()
	return t
}

// progress is one line on a terminal: a bar, and the current measurement. It is written only
// between measurements: a bar that a timer redraws would use the measured CPUs.
type progress struct {
	w     io.Writer // nil: there is no terminal
	shown bool
}

// newProgress shows the progress on standard error, if that is a terminal.
func newProgress(active bool) *progress {
	if !active || !terminal(os.Stderr) {
		return &progress{}
	}
	return &progress{w: os.Stderr}
}

func (p *progress) show(done, of int, what string) {
	if p.w == nil {
		return
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s %d/%d %s", progressBar(done, of), done+1, of, what)
	p.shown = true
}

// barWidth is that of the bar, in characters.
const barWidth = 24

// progressBar is full for so many of all.
func progressBar(done, of int) string {
	full := barWidth * done / max(of, 1)
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", barWidth-full) + "]"
}

// clear removes the line, for other output.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// printComparison prints the figures that are slower than the best MPI, and then all figures of
// sluice with the peers', ratio, bar and verdict.
func printComparison(w io.Writer, lines bool, r *Report) {
	slower, of := slowerThanMPI(r.Comparisons)
	if of > 0 {
		fmt.Fprintf(w, "\nslower than the best MPI: %d of %d\n", len(slower), of)
	}
	if len(slower) > 0 {
		t := newTable(w, lines, "", "", "", peerSluice, "best MPI", "", "ratio", "bar", "")
		for _, c := range slower {
			t.AppendRow(append([]any{c.Row, c.at(), c.how(), readable(c.Ours, c.Unit)}, verdict(&c, lines)...))
		}
		t.Render()
	}
	fmt.Fprintln(w)
	t := newTable(w, lines, "", "", "", peerSluice, "spread", "peer", "", "ratio", "bar", "", "beside")
	section := ""
	notes := map[string]bool{}
	for i := range r.Results {
		ours := &r.Results[i]
		if ours.Peer != peerSluice {
			continue
		}
		var held, shown []*Comparison
		for k := range r.Comparisons {
			c := &r.Comparisons[k]
			if !c.of(ours) {
				continue
			}
			notes[c.Peer] = true
			if c.Bar != nil || len(held) == 0 && isMPI(c.Peer) {
				held = append(held, c)
			} else {
				shown = append(shown, c)
			}
		}
		if len(held)+len(shown) == 0 {
			continue
		}
		one := append(held, shown...)[0]
		row := []any{"", one.at(), one.how(), readable(ours.P50, ours.Unit), fmt.Sprintf("%.0f %%", 100*ours.Spread)}
		if one.Row != section {
			if section != "" && lines {
				t.AppendSeparator()
			}
			row[0], section = one.Row, one.Row
		}
		var beside []string
		for _, c := range shown {
			beside = append(beside, c.whose()+" "+readable(c.Theirs, c.Unit))
		}
		for _, peer := range one.Crawls {
			beside = append(beside, peer+" crawls")
		}
		if len(held) == 0 {
			t.AppendRow(append(row, "", "", "", "", "", strings.Join(beside, ", ")))
		}
		for k, c := range held {
			if k > 0 { // a further peer: a row with only that
				row, beside = []any{"", "", "", "", ""}, nil
			}
			t.AppendRow(append(append(row, verdict(c, lines)...), strings.Join(beside, ", ")))
		}
	}
	t.Render()
	for _, peer := range slices.Sorted(maps.Keys(toolNotes)) {
		if notes[peer] {
			fmt.Fprintf(w, "%s: %s\n", peer, toolNotes[peer])
		}
	}
	for _, m := range r.Missing {
		fmt.Fprintf(w, "not compared: %s\n", strings.TrimSpace(m))
	}
}

// slowerThanMPI returns the figures that are slower than the best MPI's, with or without a bar,
// the slowest first, and the number of figures that have an MPI to compare with.
func slowerThanMPI(list []Comparison) (slower []Comparison, of int) {
	for _, c := range list {
		if isMPI(c.Peer) {
			of++
			if c.behind() > 1 {
				slower = append(slower, c)
			}
		}
	}
	slices.SortStableFunc(slower, func(a, b Comparison) int { return cmp.Compare(b.behind(), a.behind()) })
	return slower, of
}

func (c *Comparison) at() string {
	if c.Axis != "" {
		return c.Axis
	}
	return formatSize(c.Bytes)
}

// how returns sluice's operation, or the figure if there are several.
func (c *Comparison) how() string { return strings.TrimSpace(c.Op + " " + c.Figure) }

// whose returns the peer, with its operation if it has several.
func (c *Comparison) whose() string {
	if c.Peer == peerLimit {
		return c.Peer + " " + c.PeerOp
	}
	return c.Peer
}

// of reports whether the comparison is of this result of sluice.
func (c *Comparison) of(r *Result) bool {
	return c.Layer == r.Layer && c.Suite == r.Suite && c.Pattern == r.Pattern && c.Provider == r.Provider && c.Ranks == r.Ranks && c.List == r.List &&
		c.Window == r.Window && c.Axis == r.Axis && c.Bytes == r.Bytes && c.Op == r.Op && c.Figure == r.Figure && c.Load == r.Load
}

// verdict returns the peer, its figure, the ratio, the bar, and whether it is met.
func verdict(c *Comparison, color bool) []any {
	theirs := readable(c.Theirs, c.Unit)
	if theirs == c.Peer { // a fixed one
		theirs = ""
	}
	cells := []any{c.whose(), theirs, fmt.Sprintf("%.2f×", c.Ratio), "", ""}
	if c.Bar == nil {
		return cells
	}
	sign := "≥"
	if c.Better == betterLower {
		sign = "≤"
	}
	limit := fmt.Sprintf("%s %g×", sign, *c.Bar)
	if c.Aim != nil {
		limit += fmt.Sprintf(" (aim %g×)", *c.Aim)
	}
	said, paint := "met", text.FgGreen
	if !*c.Met {
		said, paint = "missed", text.FgRed
	}
	if color {
		said = paint.Sprint(said)
	}
	cells[3], cells[4] = limit, said
	return cells
}
