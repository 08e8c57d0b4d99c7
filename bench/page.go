package main

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// pageFiles are the page, its style and its script; the page that is written has all of
// them within.
//
//go:embed page
var pageFiles embed.FS

// pageOptions are the flags of bench report.
type pageOptions struct{ html, svg, png, by, figure string }

func newReportCommand() *cobra.Command {
	var o pageOptions
	cmd := &cobra.Command{
		Use:   "report FILE...",
		Short: "Plot what --json has written: one HTML file, and SVG or PNG for papers",
		Long: `Reads reports of --json (- is standard input) and writes one HTML file that needs
nothing else, no network either: charts against the size of messages, a chart for each
provider or for each peer or all in one, values under the pointer, series switched on and
off; the ratios of bench compare with their bars and all figures as tables; and where they
were measured. Several files are told apart by their names, which may be
given as LABEL=FILE.

--svg and --png write a file for each chart into a directory.`,
		RunE: caught(func(cmd *cobra.Command, args []string) {
			o.check(args)
			o.write(cmd.OutOrStdout(), readReports(cmd.InOrStdin(), args))
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&o.html, "output", "o", "", "the HTML file (- is standard output; default bench.html where neither --svg nor --png is given)")
	f.StringVar(&o.svg, "svg", "", "directory for a file of SVG for each chart")
	f.StringVar(&o.png, "png", "", "directory for a file of PNG for each chart")
	f.StringVar(&o.figure, "figure", "p50", "what is drawn: p50, min, mean, p99, p999 or max")
	f.StringVar(&o.by, "by", byProvider, "of SVG and PNG: a chart for each provider, for each peer, or all in one")
	return cmd
}

func (o *pageOptions) check(args []string) {
	if len(args) == 0 {
		must(usagef("report: want the files that --json has written"))
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

// writeFile writes beside the file and moves it into place: no reader sees half of it.
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

// ReportError: a file is no report of this bench.
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

// parseReport reads what --json has printed. Fields that it does not know are those of
// a later bench.
func parseReport(name string, from io.Reader) (*Report, error) {
	b, err := io.ReadAll(io.LimitReader(from, maxReport+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxReport {
		return nil, &ReportError{name, fmt.Sprintf("more than %d bytes", maxReport)}
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, &ReportError{name, "no JSON of bench: " + err.Error()}
	}
	if r.Schema != schema {
		return nil, &ReportError{name, fmt.Sprintf("its schema is %q, want %q", r.Schema, schema)}
	}
	for i := range r.Results {
		if err := r.Results[i].check(); err != nil {
			return nil, &ReportError{name, fmt.Sprintf("result %d: %v", i, err)}
		}
	}
	return &r, nil
}

// maxReport bounds what is read: a thousand results with their histograms are a few MB.
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

// writePage writes the page with everything within.
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
			_ = c.draw(figure, false).svg(&b) // which takes everything
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

// drawAll writes a file for each chart. Names that differ only in what a file's name cannot
// have are numbered.
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
