package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// printComparison prints all figures side by side, with ratio, bar and verdict.
func printComparison(w io.Writer, lines bool, r *Report) {
	fmt.Fprintln(w)
	peers := peersOf(r)
	header := []any{"", "bytes", "op", peerSluice, "spread"}
	for _, peer := range peers {
		header = append(header, peer)
	}
	t := newTable(w, lines, append(header, "ratio", "to", "bar", "")...)
	section := ""
	for _, ours := range r.Results {
		if ours.Peer != peerSluice {
			continue
		}
		parts := []string{ours.Provider, ours.Suite, ours.Pattern, ours.Unit}
		if ours.Pattern == patternFanout {
			parts[1] = fmt.Sprintf("1 + %d ranks, window %d", ours.Ranks-1, ours.Window)
		}
		if isCollective(ours.Pattern) {
			parts[1] = fmt.Sprintf("%s %d ranks", ours.Suite, ours.Ranks)
		}
		what := strings.Join(strings.Fields(strings.Join(parts, " ")), " ")
		if what != section && section != "" && lines {
			t.AppendSeparator()
		}
		op := strings.TrimSpace(ours.Axis + " " + ours.Op)
		if ours.List > 1 {
			op += fmt.Sprintf(" ×%d", ours.List)
		}
		row := table.Row{"", formatSize(ours.Bytes), op, formatValue(ours.P50), fmt.Sprintf("%.0f %%", 100*ours.Spread)}
		if what != section {
			row[0] = what
		}
		section = what
		for _, peer := range peers {
			row = append(row, cellOf(r.Results, &ours, peer))
		}
		compared := false
		for i := range r.Comparisons {
			c := &r.Comparisons[i]
			if !c.of(&ours) {
				continue
			}
			if compared { // with another peer: a row that adds only that
				row = make(table.Row, len(row))
				for k := range row {
					row[k] = ""
				}
			}
			t.AppendRow(append(row, verdict(c, lines)...))
			compared = true
		}
		if !compared {
			t.AppendRow(row)
		}
	}
	t.Render()
	for _, m := range r.Missing {
		fmt.Fprintf(w, "not compared: %s\n", m)
	}
}

// peersOf are the columns of a comparison: all peers that have figures, and both MPIs
// where neither perftest nor libzmq takes their place.
func peersOf(r *Report) []string {
	has := func(peer string) bool {
		return slices.ContainsFunc(r.Results, func(r Result) bool { return r.Peer == peer })
	}
	var peers []string
	for _, peer := range slices.Concat(mpis, []string{peerLine, peerPerftest, peerZMQ}, toolPeers) {
		if has(peer) || slices.Contains(mpis, peer) && !has(peerPerftest) && !has(peerZMQ) {
			peers = append(peers, peer)
		}
	}
	return peers
}

// The peer program that hands a cache line to and fro, and its usual form.
const (
	peerLine    = "c-line"
	lineEachWay = "each way"
)

// cellOf is the best figure of a peer that corresponds to ours.
func cellOf(rs []Result, ours *Result, peer string) string {
	var found []Result
	for _, r := range rs {
		same := r.sameDiscipline(ours)
		if peer == peerLine {
			same = ours.isFloor(&r)
		}
		if r.Peer == peer && same {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return ""
	}
	p50 := func(a, b Result) int { return cmp.Compare(a.P50, b.P50) }
	if ours.Unit == unitLatency {
		return formatValue(slices.MinFunc(found, p50).P50)
	}
	return formatValue(slices.MaxFunc(found, p50).P50)
}

// verdict is the ratio, to whom, the bar, and whether it is met.
func verdict(c *Comparison, color bool) []any {
	cells := []any{fmt.Sprintf("%.2f×", c.Ratio), c.Peer, "", ""}
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
	cells[2], cells[3] = limit, said
	return cells
}
