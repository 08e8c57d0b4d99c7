package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/verbs"
)

// firstOptions are the flags of bench without a subcommand.
type firstOptions struct {
	all      bool
	time     time.Duration
	sizes    string
	portable bool
}

func (o *firstOptions) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.all, "all", false, "latency and bandwidth of every provider, by size, in tables")
	f.DurationVar(&o.time, "time", 50*time.Millisecond, "measured time of each figure")
	f.StringVar(&o.sizes, "sizes", "", "bytes, as of bench verbs, for --all (default 0:4M)")
	f.BoolVar(&o.portable, "portable", false, "of tcp use only what every operating system has, for --all")
}

func (o *firstOptions) run(cmd *cobra.Command, out *outputOptions) {
	w := newWork(findPattern(layerChannel, patternLat), map[string]string{"time": o.time.String()})
	j := job{outputOptions: *out, given: given(cmd.Flags()), works: []work{w}, more: o.works}
	o.all = o.all || o.sizes != "" || o.portable
	if !o.all {
		j.show = printSummary
	}
	j.run(cmd.Context())
}

// works returns everything to measure: channels, collectives, providers, and the limits of this
// machine; or only providers, with all sizes.
func (o *firstOptions) works(ctx context.Context, s *session) (list []work) {
	add := func(layer, command string, flags ...string) (w *work) {
		given := map[string]string{"time": o.time.String()}
		for i := 0; i < len(flags); i += 2 {
			if flags[i+1] != "" {
				given[flags[i]] = flags[i+1]
			}
		}
		list = append(list, newWork(findPattern(layer, command), given))
		return &list[len(list)-1]
	}
	lat, bw := o.sizes, o.sizes
	if !o.all {
		add(layerChannel, patternLat, "memory", "alloc,heap", "sizes", "8,4k,64k,1M", "batch", "0")
		add(layerChannel, patternBW, "memory", "alloc,heap", "sizes", "4k,64k,1M")
		add(layerChannel, "barrier", "call", callCalled)
		add(layerChannel, "allreduce", "call", callCalled, "memory", "alloc,heap", "sizes", "8,4k,64k,1M")
		lat, bw = "8,4k,64k,1M", "4k,64k,1M"
	}
	portable := ""
	if o.portable {
		portable = "true"
	}
	for _, p := range verbs.Providers() {
		if p.OnRequest {
			continue
		}
		missing := s.cannot(ctx, p.Name)
		add(layerVerbs, patternLat, "provider", p.Name, "sizes", lat, "portable", portable).missing = missing
		if missing == "" {
			add(layerVerbs, patternBW, "provider", p.Name, "sizes", bw, "portable", portable)
		}
	}
	if !o.all {
		add(layerMachine, patternLine)
		add(layerMachine, patternCopy)
		add(layerMachine, patternPeek)
	}
	return list
}

// summaryRow is a line of figures by size.
type summaryRow struct {
	label              string
	layer, pattern, op string
}

var summaryRows = []summaryRow{
	{"channels, latency, Alloc", layerChannel, patternLat, memoryAlloc},
	{"channels, latency, heap", layerChannel, patternLat, memoryHeap},
	{"channels, bandwidth, Alloc", layerChannel, patternBW, memoryAlloc},
	{"channels, bandwidth, heap", layerChannel, patternBW, memoryHeap},
	{"barrier", layerChannel, "barrier", callCalled},
	{"allreduce, Alloc", layerChannel, "allreduce", calledAlloc},
	{"allreduce, heap", layerChannel, "allreduce", callCalled + " " + memoryHeap},
	{"queue pairs, latency", layerVerbs, patternLat, "send"},
	{"queue pairs, bandwidth", layerVerbs, patternBW, "write"},
	{"a bare cache line, one way", layerMachine, patternLine, patternLine},
	{"memcpy, one core", layerMachine, patternCopy, memoryHeap},
	{"process_vm_readv, one copy", layerMachine, patternPeek, memoryHeap},
}

var summarySizes = []int64{8, 4 << 10, 64 << 10, 1 << 20}

// summaryWarnings bounds the number of warnings.
const summaryWarnings = 5

// printSummary shows a newcomer what the library is for, in at most 30 lines.
func printSummary(w io.Writer, r *Report) {
	e := &r.Environment
	fmt.Fprintf(w, "%d ranks on %s, %s\n", len(e.Ranks), e.CPU, e.Kernel)
	more := max(len(r.Warnings)-summaryWarnings, 0)
	for _, s := range r.Warnings[:len(r.Warnings)-more] {
		fmt.Fprintf(w, "warning: %s\n", s)
	}
	if more > 0 {
		fmt.Fprintf(w, "and %d more warnings, which --json prints\n", more)
	}
	fmt.Fprintf(w, "\n%-36s", "")
	for _, n := range summarySizes {
		fmt.Fprintf(w, "%12s", binarySize(n))
	}
	fmt.Fprintln(w)
	for _, row := range summaryRows {
		for _, provider := range row.providers(r) {
			row.print(w, r, provider)
		}
	}
	for _, why := range r.Missing {
		fmt.Fprintf(w, "not available: %s\n", shorten(why, 100))
	}
	fmt.Fprintf(w, "\n%s\n", closing(r))
}

// binarySize writes a size whose prefix is of 1024, as those of bandwidths are not.
func binarySize(n int64) string {
	if s := formatSize(n); s[len(s)-1] > '9' {
		return s[:len(s)-1] + " " + strings.ToUpper(s[len(s)-1:]) + "iB"
	}
	return fmt.Sprint(n, " B")
}

// shorten cuts a text after the last word that fits into n bytes.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:strings.LastIndexByte(s[:n], ' ')] + " …"
}

func (s *summaryRow) is(v *Result) bool {
	return v.Layer == s.layer && v.Pattern == s.pattern && v.Op == s.op
}

// find is the figure of a size; nil: there is none.
func (s *summaryRow) find(r *Report, provider string, bytes int64) *Result {
	for i := range r.Results {
		if v := &r.Results[i]; s.is(v) && (provider == "" || v.Provider == provider) && (v.Bytes == bytes || v.Bytes == 0) {
			return v
		}
	}
	return nil
}

// providers are those that the row has figures of.
func (s *summaryRow) providers(r *Report) (list []string) {
	for _, v := range r.Results {
		if s.is(&v) && !slices.Contains(list, v.Provider) {
			list = append(list, v.Provider)
		}
	}
	return list
}

func (s *summaryRow) print(w io.Writer, r *Report, provider string) {
	label := s.label
	if s.layer != layerMachine {
		label += ", " + provider
	}
	line := fmt.Sprintf("%-36s", label)
	for _, n := range summarySizes {
		cell := ""
		if v := s.find(r, provider, n); v != nil && (v.Bytes > 0 || n == summarySizes[0]) {
			cell = readable(v.P50, v.Unit)
		}
		line += strings.Repeat(" ", max(12-len([]rune(cell)), 0)) + cell
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// closing says what carries the messages, and how far that is from the limits of this machine.
func closing(r *Report) string {
	p50 := func(row int, bytes int64) float64 {
		if v := summaryRows[row].find(r, "", bytes); v != nil {
			return v.P50
		}
		return 0
	}
	last := int64(1 << 20)
	lat, alloc, heap := p50(0, 8), p50(2, last), p50(3, last)
	line, memcpy, peek := p50(9, 8), p50(10, last), p50(11, last)
	var parts, copies []string
	if providers := summaryRows[0].providers(r); len(providers) > 0 {
		parts = append(parts, "Between these ranks channels and collectives go over "+providers[0])
	}
	if lat > 0 && line > 0 {
		parts = append(parts, fmt.Sprintf("8 bytes take %.1f times as long as a bare cache line", lat/line))
	}
	if alloc > 0 && memcpy > 0 {
		copies = append(copies, fmt.Sprintf("1 MiB in Alloc memory moves at %.0f %% of the bandwidth of memcpy", 100*alloc/memcpy))
	}
	if heap > 0 && peek > 0 {
		copies = append(copies, fmt.Sprintf("in heap memory at %.0f %% of that of one copy by the kernel", 100*heap/peek))
	}
	return strings.Join(parts, "; ") + ";\n" + strings.Join(copies, ", ") + ".\nLatency is half a round trip. All sizes: bench --all; beside MPI: bench compare."
}
