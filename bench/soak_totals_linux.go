package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// soakTotals is what a soak has done, and met.
type soakTotals struct {
	Seed       uint64           `json:"seed"`
	Seconds    float64          `json:"seconds"`
	Jobs       int              `json:"jobs"`
	Operations map[string]int64 `json:"operations"` // by layer
	Bytes      int64            `json:"bytes"`
	Faults     map[string]int   `json:"faults"`  // injected, by kind
	Errors     int              `json:"errors"`  // that ranks reported of a peer that was killed, as they are to
	Unasked    int              `json:"unasked"` // others; must be 0
	Hangs      int              `json:"hangs"`   // must be 0
	Corrupt    int              `json:"corrupt"` // must be 0
	Leaks      int              `json:"leaks"`   // must be 0
	Said       []string         `json:"said,omitempty"`
}

func (t *soakTotals) verdict() error {
	if t.Unasked+t.Hangs+t.Corrupt+t.Leaks == 0 {
		return nil
	}
	return &SoakError{t.Unasked, t.Hangs, t.Corrupt, t.Leaks}
}

// write writes them in the form that is asked for.
func (t *soakTotals) write(out *outputOptions) error {
	switch {
	case out.json:
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(t)
	case out.csv:
		t.say(os.Stderr)
		return t.writeCSV(os.Stdout)
	}
	t.print(os.Stdout)
	t.say(os.Stdout)
	return nil
}

func (t *soakTotals) print(w io.Writer) {
	counts := func(m map[string]int64) string {
		var parts []string
		total := int64(0)
		for k, v := range m {
			parts = append(parts, fmt.Sprintf("%s %d", k, v))
			total += v
		}
		slices.Sort(parts)
		return fmt.Sprintf("%d (%s)", total, strings.Join(parts, ", "))
	}
	faults := map[string]int64{}
	for k, v := range t.Faults {
		faults[k] = int64(v)
	}
	for _, l := range [][2]string{
		{"jobs", fmt.Sprintf("%d in %.0f s, seed %d", t.Jobs, t.Seconds, t.Seed)},
		{"operations done and checked", counts(t.Operations)},
		{"bytes received", formatValue(float64(t.Bytes))},
		{"faults injected", counts(faults)},
		{"errors reported of those killed", fmt.Sprint(t.Errors)},
		{"errors that nothing explains", fmt.Sprint(t.Unasked)},
		{"hangs", fmt.Sprint(t.Hangs)},
		{"corruptions", fmt.Sprint(t.Corrupt)},
		{"leaks", fmt.Sprint(t.Leaks)},
	} {
		fmt.Fprintf(w, "%-34s%s\n", l[0], l[1])
	}
}

// writeCSV writes a line for each figure: its name, as in JSON, of which kind it is, where
// there are several, and how much.
func (t *soakTotals) writeCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	line := func(figure, kind string, v any) { _ = c.Write([]string{figure, kind, fmt.Sprint(v)}) } // c.Error has it
	line("figure", "kind", "value")
	line("seed", "", t.Seed)
	line("seconds", "", t.Seconds)
	line("jobs", "", t.Jobs)
	for _, layer := range slices.Sorted(maps.Keys(t.Operations)) {
		line("operations", layer, t.Operations[layer])
	}
	line("bytes", "", t.Bytes)
	for _, fault := range slices.Sorted(maps.Keys(t.Faults)) {
		line("faults", fault, t.Faults[fault])
	}
	line("errors", "", t.Errors)
	line("unasked", "", t.Unasked)
	line("hangs", "", t.Hangs)
	line("corrupt", "", t.Corrupt)
	line("leaks", "", t.Leaks)
	c.Flush()
	return c.Error()
}

// say tells what was not as it must be.
func (t *soakTotals) say(w io.Writer) {
	for _, s := range t.Said {
		fmt.Fprintf(w, "\n%s\n", s)
	}
}
