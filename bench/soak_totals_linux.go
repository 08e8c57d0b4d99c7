package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// soakTotals is what a soak has done, and met.
type soakTotals struct {
	Seed       uint64           `json:"seed"`
	Seconds    float64          `json:"seconds"`
	Jobs       int64            `json:"jobs"`
	Operations map[string]int64 `json:"operations"` // by layer
	Bytes      int64            `json:"bytes"`
	Faults     map[string]int64 `json:"faults"`  // injected, by kind
	Errors     int64            `json:"errors"`  // that ranks reported of a peer that was killed, as they are to
	Unasked    int64            `json:"unasked"` // others; must be 0
	Hangs      int64            `json:"hangs"`   // must be 0
	Corrupt    int64            `json:"corrupt"` // must be 0
	Leaks      int64            `json:"leaks"`   // must be 0
	Said       []string         `json:"said,omitempty"`
}

func (t *soakTotals) verdict() error {
	if t.Unasked+t.Hangs+t.Corrupt+t.Leaks == 0 {
		return nil
	}
	return &SoakError{t.Unasked, t.Hangs, t.Corrupt, t.Leaks}
}

// write writes them in the form that is asked for.
func (t *soakTotals) write(out *outputOptions) {
	var err error
	switch {
	case out.json:
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		must(e.Encode(t))
		return
	case out.csv:
		err = t.writeCSV(os.Stdout)
	default:
		t.print(os.Stdout)
	}
	for _, s := range t.Said { // what was not as it must be
		fmt.Fprintf(os.Stderr, "\n%s\n", s)
	}
	must(err)
}

// soakFigure is one of the totals, by kind where there are several.
type soakFigure struct {
	name, title string
	count       int64
	kinds       map[string]int64
}

func (t *soakTotals) figures() []soakFigure {
	return []soakFigure{
		{"jobs", "jobs", t.Jobs, nil},
		{"operations", "operations done and checked", 0, t.Operations},
		{"bytes", "bytes received", t.Bytes, nil},
		{"faults", "faults injected", 0, t.Faults},
		{"errors", "errors reported of those killed", t.Errors, nil},
		{"unasked", "errors that nothing explains", t.Unasked, nil},
		{"hangs", "hangs", t.Hangs, nil},
		{"corrupt", "corruptions", t.Corrupt, nil},
		{"leaks", "leaks", t.Leaks, nil},
	}
}

func (t *soakTotals) print(w io.Writer) {
	fmt.Fprintf(w, "%-34s%.0f s, seed %d\n", "soak", t.Seconds, t.Seed)
	for _, f := range t.figures() {
		text := strconv.FormatInt(f.count, 10)
		if f.kinds != nil {
			var parts []string
			for _, kind := range slices.Sorted(maps.Keys(f.kinds)) {
				parts = append(parts, fmt.Sprintf("%s %d", kind, f.kinds[kind]))
			}
			text = strings.Join(parts, ", ")
		}
		fmt.Fprintf(w, "%-34s%s\n", f.title, text)
	}
}

// writeCSV writes a line for each figure: its name, as in JSON, of which kind it is, where
// there are several, and how much.
func (t *soakTotals) writeCSV(w io.Writer) error {
	lines := [][]string{{"figure", "kind", "value"}, {"seed", "", strconv.FormatUint(t.Seed, 10)}, {"seconds", "", fmt.Sprint(t.Seconds)}}
	for _, f := range t.figures() {
		if f.kinds == nil {
			lines = append(lines, []string{f.name, "", strconv.FormatInt(f.count, 10)})
		}
		for _, kind := range slices.Sorted(maps.Keys(f.kinds)) {
			lines = append(lines, []string{f.name, kind, strconv.FormatInt(f.kinds[kind], 10)})
		}
	}
	return csv.NewWriter(w).WriteAll(lines)
}
