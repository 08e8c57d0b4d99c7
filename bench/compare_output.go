package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
)

// printComparison prints what is slower than the best MPI, and then all figures of ours with
// the peers beside them, ratio, bar and verdict.
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
			if k > 0 { // with another peer: a row that adds only that
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

// slowerThanMPI are the figures that are slower than the best MPI's, with or without a bar:
// those that are furthest behind come first; of so many that have an MPI beside them.
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

// at is the size or the axis.
func (c *Comparison) at() string {
	if c.Axis != "" {
		return c.Axis
	}
	return formatSize(c.Bytes)
}

// how is our operation, or the figure of several.
func (c *Comparison) how() string { return strings.TrimSpace(c.Op + " " + c.Figure) }

// whose is the peer, with its operation where that has several.
func (c *Comparison) whose() string {
	if c.Peer == peerLimit {
		return c.Peer + " " + c.PeerOp
	}
	return c.Peer
}

// of says whether the comparison is of a result of ours.
func (c *Comparison) of(r *Result) bool {
	return c.Layer == r.Layer && c.Suite == r.Suite && c.Pattern == r.Pattern && c.Provider == r.Provider && c.Ranks == r.Ranks && c.List == r.List &&
		c.Window == r.Window && c.Axis == r.Axis && c.Bytes == r.Bytes && c.Op == r.Op && c.Figure == r.Figure && c.Load == r.Load
}

// verdict is the peer, its figure, the ratio, the bar, and whether it is met.
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
