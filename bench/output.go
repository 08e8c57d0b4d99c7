package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// outputOptions say how results are printed.
type outputOptions struct {
	json   bool
	csv    bool
	html   string                         // file of a page; empty: none
	allocs bool                           // a column for them
	show   func(io.Writer, *Report) // in place of tables; may be nil
	meetOptions
}

func (o *outputOptions) check() {
	o.meetOptions.check()
	if o.json && o.csv {
		must(usagef("--json and --csv: want one of them"))
	}
	checkFolder("html", o.html)
}

// checkFolder says, before minutes of measuring, that a file cannot be made for want of
// its folder. Of a job one rank writes, whose folder others need not have.
func checkFolder(flag, path string) {
	if path != "" && os.Getenv(boot.EnvRank) == "" {
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			must(usagef("--%s %s: %v", flag, path, err))
		}
	}
}

// tables says whether results are printed as tables.
func (o *outputOptions) tables() bool { return !o.json && !o.csv }

// print writes the whole report, in the form that is asked for.
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
	for rest := r.Results; len(rest) > 0; {
		if inFigures(&rest[0]) {
			several, rest = append(several, rest[0]), rest[1:]
			continue
		}
		n := slices.IndexFunc(rest, func(v Result) bool { return titleOf(&v) != titleOf(&rest[0]) })
		if n < 0 {
			n = len(rest)
		}
		printResults(w, rest[:n], o.allocs)
		rest = rest[n:]
	}
	printFigures(w, several)
	for _, why := range r.Missing {
		fmt.Fprintf(w, "\nnot available: %s\n", why)
	}
	if r.Model != nil {
		must(printScale(w, r))
	}
}

func printJSON(w io.Writer, v any) {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	must(e.Encode(v))
}

// printWarnings says what makes the figures doubtful, before them.
func printWarnings(w io.Writer, r *Report) {
	for _, s := range r.Warnings {
		fmt.Fprintf(w, "warning: %s\n", s)
	}
}

// terminal says whether f is one; a rank's output goes through the process that started it.
func terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// grid is a table with right-aligned columns.
type grid struct{ *tabwriter.Writer }

func newGrid(w io.Writer, header ...any) grid {
	g := grid{tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)}
	g.row(header...)
	return g
}

func (g grid) row(cells ...any) {
	for _, c := range cells {
		fmt.Fprintf(g, "%v\t", c)
	}
	fmt.Fprintln(g)
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
		line("options", "%s", formatOptions(e.Options))
	}
}

func formatOptions(options map[string]string) string {
	return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(options), "map["), "]")
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
	var cells []any
	for _, c := range columns {
		cells = append(cells, c.name)
	}
	g := newGrid(w, cells...)
	for i := range rs {
		cells = cells[:0]
		for _, c := range columns {
			cells = append(cells, c.cell(&rs[i]))
		}
		g.row(cells...)
	}
	must(g.Flush())
}

// titleOf says what the figures of a table are.
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
