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
	"strings"

	"github.com/spf13/cobra"
)

// pageFiles are the page, its style and its script; the page that is written has all of
// them within.
//
//go:embed page
var pageFiles embed.FS

// pageOptions are the flags of bench report.
type pageOptions struct {
	html string
	svg  string
	png  string
	by   string
}

func newReportCommand() *cobra.Command {
	var o pageOptions
	cmd := &cobra.Command{
		Use:   "report FILE...",
		Short: "Plot what --json has written: one HTML file, and SVG or PNG for papers",
		Long: `Reads reports of --json (- is standard input) and writes one HTML file that needs
nothing else, no network either: charts against the size of messages, a chart for each
provider or for each peer or all in one, values under the pointer, series switched on and off, axes linear or
logarithmic; the ratios of bench compare with their bars; all figures as a table; and
where they were measured. Several files are told apart by their names, which may be
given as LABEL=FILE.

--svg and --png write a file for each chart into a directory.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(args); err != nil {
				return err
			}
			reports, err := readReports(cmd.InOrStdin(), args)
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), reports)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.html, "output", "o", "", "the HTML file (- is standard output; default bench.html where neither --svg nor --png is given)")
	f.StringVar(&o.svg, "svg", "", "directory for a file of SVG for each chart")
	f.StringVar(&o.png, "png", "", "directory for a file of PNG for each chart")
	f.StringVar(&o.by, "by", byProvider, "of SVG and PNG: a chart for each provider, for each peer, or all in one")
	return cmd
}

// What charts are divided by.
const (
	byProvider = "provider"
	byPeer     = "peer"
	byNothing  = "all"
)

func (o *pageOptions) check(args []string) error {
	if len(args) == 0 {
		return usagef("report: want the files that --json has written")
	}
	if o.by != byProvider && o.by != byPeer && o.by != byNothing {
		return usagef("--by %q: want %s, %s or %s", o.by, byProvider, byPeer, byNothing)
	}
	if o.html == "" && o.svg == "" && o.png == "" {
		o.html = "bench.html"
	}
	return nil
}

func (o *pageOptions) write(stdout io.Writer, reports []labelled) error {
	switch o.html {
	case "":
	case "-":
		if err := writePage(stdout, reports); err != nil {
			return err
		}
	default:
		if err := writePageFile(o.html, reports); err != nil {
			return err
		}
	}
	for _, d := range []struct{ format, dir string }{{"svg", o.svg}, {"png", o.png}} {
		if d.dir == "" {
			continue
		}
		if err := plotAll(d.dir, d.format, o.by, reports); err != nil {
			return err
		}
	}
	return nil
}

// writePageFile writes the page beside the file and moves it into place: nobody sees half.
func writePageFile(path string, reports []labelled) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".bench-*.html")
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	err = writePage(w, reports)
	err = errors.Join(err, w.Flush(), f.Chmod(0o644), f.Close())
	if err == nil {
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
func readReports(stdin io.Reader, args []string) ([]labelled, error) {
	var list []labelled
	for _, arg := range args {
		label, path, found := strings.Cut(arg, "=")
		if !found {
			label, path = "", arg
			if len(args) > 1 {
				label = strings.TrimSuffix(filepath.Base(arg), filepath.Ext(arg))
			}
		}
		r, err := readReport(stdin, path)
		if err != nil {
			return nil, err
		}
		list = append(list, labelled{label, r})
	}
	return list, nil
}

// readReport reads one report; of "-" from stdin.
func readReport(stdin io.Reader, path string) (_ *Report, err error) {
	from := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		from = f
	}
	return parseReport(path, from)
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

// pageData is what the script of the page works on.
type pageData struct {
	Charts      []chart      `json:"charts"`
	Comparisons []Comparison `json:"comparisons"`
}

// writePage writes the page with everything within.
func writePage(w io.Writer, reports []labelled) error {
	data := pageData{Charts: chartsOf(reports), Comparisons: []Comparison{}}
	for _, l := range reports {
		data.Comparisons = append(data.Comparisons, l.report.Comparisons...)
	}
	text := func(name string) (string, error) {
		b, err := pageFiles.ReadFile("page/" + name)
		return string(b), err
	}
	page, err := text("page.html")
	if err != nil {
		return err
	}
	style, err := text("page.css")
	if err != nil {
		return err
	}
	script, err := text("page.js")
	if err != nil {
		return err
	}
	t, err := template.New("page").Funcs(template.FuncMap{
		"size": formatSize, "value": formatValue, "options": formatOptions,
		"environment": func(e Environment) string {
			var b bytes.Buffer
			printEnvironment(&b, &e)
			return b.String()
		},
		"device":  func(d DeviceEntry) string { return d.Provider + ": " + describeEntry(&d) },
		"percent": func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) },
	}).Parse(page)
	if err != nil {
		return err
	}
	type part struct {
		Label  string
		Report *Report
	}
	var parts []part
	for _, l := range reports {
		parts = append(parts, part{l.label, l.report})
	}
	return t.Execute(w, struct {
		Style  template.CSS
		Script template.JS
		Data   pageData
		Parts  []part
	}{template.CSS(style), template.JS(script), data, parts})
}
