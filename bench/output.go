package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
)

// outputOptions say how results are printed.
type outputOptions struct {
	json   bool
	csv    bool
	html   string // file of a page; empty: none
	allocs bool   // a column for them
	meetOptions
}

func (o *outputOptions) check() error {
	if err := o.meetOptions.check(); err != nil {
		return err
	}
	if o.json && o.csv {
		return usagef("--json and --csv: want one of them")
	}
	return checkFolder("html", o.html)
}

// checkFolder says, before minutes of measuring, that a file cannot be made for want of
// its folder. Of a job one rank writes, whose folder others need not have.
func checkFolder(flag, path string) error {
	if path == "" || os.Getenv(boot.EnvRank) != "" {
		return nil
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return usagef("--%s %s: %v", flag, path, err)
	}
	return nil
}

// tables says whether results are printed as tables, as they come.
func (o *outputOptions) tables() bool { return !o.json && !o.csv }

// print writes the whole report, or what tables have not shown yet.
func (o *outputOptions) print(w io.Writer, r *Report) error {
	if o.html != "" {
		if err := writePageFile(o.html, []labelled{{report: r}}); err != nil {
			return err
		}
	}
	switch {
	case o.json:
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case o.csv:
		return writeCSV(w, r)
	}
	for _, s := range r.Warnings {
		fmt.Fprintf(w, "\nwarning: %s\n", s)
	}
	return nil
}

// terminal says whether f is one; envTerminal tells it to a rank whose output
// goes through the process that started it.
func terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// newTable is a table with right-aligned columns: with lines on a terminal, of
// plain spaces elsewhere.
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

// printResults prints results of one pattern and operation as a table.
func printResults(w io.Writer, lines bool, rs []Result, d *DeviceEntry, allocs bool) {
	first := &rs[0]
	fmt.Fprintf(w, "\n%s\n", titleOf(first))
	if d != nil {
		fmt.Fprintf(w, "%s\n", describeEntry(d))
	}
	isLat := first.Unit == unitLatency
	header := []any{"bytes", "min", "p50", "p99", "p99.9", "max", "mean", "samples"}
	if !isLat {
		header = []any{"bytes", first.Unit, "min", "max", "mean", "samples"}
		switch first.Pattern {
		case patternBW, patternBiBW:
			header = append(header, "msg/s")
		case patternHalo:
			header = append([]any{"axis"}, append(header, "µs")...)
		}
	}
	withSpread := first.Rounds > 1
	if withSpread {
		header = append(header, "spread")
	}
	if allocs {
		header = append(header, "allocs/msg")
	}
	crossings := first.CrossingsPerMessage != nil
	if crossings {
		header = append(header, "calls into C/msg")
	}
	t := newTable(w, lines, header...)
	for _, r := range rs {
		row := table.Row{formatSize(r.Bytes)}
		if r.Block > 0 {
			row[0] = fmt.Sprintf("%s of %s", formatSize(r.Bytes), formatSize(r.Block))
		}
		if r.Pattern == patternHalo {
			row = table.Row{r.Axis, formatSize(r.Bytes)}
		}
		if isLat {
			row = append(row, formatValue(r.Min), formatValue(r.P50), formatValue(r.P99), formatValue(r.P999), formatValue(r.Max), formatValue(r.Mean), r.Samples)
		} else {
			row = append(row, formatValue(r.P50), formatValue(r.Min), formatValue(r.Max), formatValue(r.Mean), r.Samples)
			switch r.Pattern {
			case patternBW, patternBiBW:
				row = append(row, formatValue(r.P50*1e6/float64(max(r.Bytes, 1))))
			case patternHalo:
				row = append(row, formatValue(float64(r.Bytes)/r.P50))
			}
		}
		if withSpread {
			row = append(row, fmt.Sprintf("%.1f %%", 100*r.Spread))
		}
		if allocs && r.AllocsPerMessage != nil {
			row = append(row, strconv.FormatFloat(*r.AllocsPerMessage, 'f', 4, 64))
		}
		if crossings && r.CrossingsPerMessage != nil {
			row = append(row, strconv.FormatFloat(*r.CrossingsPerMessage, 'f', 3, 64))
		}
		t.AppendRow(row)
	}
	t.Render()
}

// titleOf says what the figures of a table are.
func titleOf(r *Result) string {
	of := r.Op
	switch r.Layer {
	case layerChannel:
		of = fmt.Sprintf("channels, %s memory", r.Op)
		if r.Receive != "" {
			of += ", received " + strings.ReplaceAll(r.Receive, " ", " and ")
		}
	case layerIMPI:
		of = "impi, " + r.Op
	}
	how := fmt.Sprintf("every iteration timed (reading the clock, %.0f ns, is in each)", r.TimerNS)
	if r.Mode == modeBatch {
		how = "the distribution is that of the means of batches, no clock within"
	}
	if r.Suite == suiteQMP {
		return titleOfQMP(r, how)
	}
	if isCollective(r.Pattern) {
		return titleOfCollective(r, how)
	}
	switch r.Pattern {
	case patternLat:
		what := "half a round trip"
		if op, err := findOperation(r.Op); err == nil && op.fetch {
			what = "the whole operation"
		}
		return fmt.Sprintf("%s latency of %s, ns: %s; %s", r.Provider, of, what, how)
	case patternBW:
		return fmt.Sprintf("%s bandwidth of %s, MB/s (10^6 bytes), one way, up to %d outstanding", r.Provider, of, r.Window)
	case patternBiBW:
		return fmt.Sprintf("%s bandwidth of %s, MB/s (10^6 bytes), both ways together, up to %d outstanding each", r.Provider, of, r.Window)
	case patternHalo:
		return fmt.Sprintf("%s halo exchange of %s, MB/s (10^6 bytes) that each of %d ranks sends, µs of an exchange; received %s", r.Provider, of, r.Ranks, r.Halo)
	case patternRing:
		return fmt.Sprintf("%s ring of %d ranks of %s, ns of a hop; %s", r.Provider, r.Ranks, of, how)
	case patternAddSlice:
		return "terms added to an exact sum on one core, MB/s (10^6 bytes of terms)"
	case patternFanout:
		return fmt.Sprintf("%s fan-out from a supplier to %d workers, %s, chunks/s, window %d", r.Provider, r.Ranks-1, r.Op, r.Window)
	case patternLocal:
		return fmt.Sprintf("message of a thread to itself over %s, ns: a start and a successful test, the mean of both ends; %s", of, how)
	}
	return fmt.Sprintf("%s message rate of %s, up to %d outstanding", r.Provider, of, r.Window)
}

// titleOfCollective says whose time it is, and of what.
func titleOfCollective(r *Result, how string) string {
	what := fmt.Sprintf("%s %s of %d ranks, %s", r.Provider, r.Pattern, r.Ranks, r.Op)
	switch kind, _ := collectiveKind(r.Pattern); {
	case r.Pattern == patternExact:
		what = fmt.Sprintf("%s allreduce of one exact accumulator of %d ranks", r.Provider, r.Ranks)
	case kind == coll.Barrier:
	default:
		what += " memory"
		if src, dst := collectiveBlocks(kind, 2); max(src, dst) > 1 {
			what += ", bytes of each rank's block"
		}
		if kind.Reduces() {
			what += ", sum of doubles"
		}
	}
	return what + ", ns; " + how
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
