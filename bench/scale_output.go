package main

import (
	"fmt"
	"io"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// printScale prints the parameters, and a table for each kind of some bytes: a row for
// a number of hosts, a column for each algorithm.
func printScale(w io.Writer, r *Report) (err error) {
	defer catch(&err)
	from := "given"
	if r.Model.Measured {
		from = "measured over " + r.Results[0].Provider
	}
	m := r.Model
	fmt.Fprintf(w, "\nLogGP, %s: L %s ns, o %s ns, g %s ns, G %s ns/byte; adding %s ns/byte, copying %s ns/byte\n", from,
		formatValue(m.Latency), formatValue(m.Overhead), formatValue(m.Gap), formatValue(m.PerByte), formatValue(m.Combine), formatValue(m.Copy))
	for rest := r.Estimates; len(rest) > 0; {
		first, n := rest[0], 0
		for n < len(rest) && rest[n].Kind == first.Kind && rest[n].Bytes == first.Bytes {
			n++
		}
		printEstimates(w, rest[:n])
		rest = rest[n:]
	}
	return nil
}

// printEstimates prints those of one kind of some bytes.
func printEstimates(w io.Writer, list []Estimate) {
	kind, _ := collectiveKind(list[0].Kind)
	what := list[0].Kind
	if kind != coll.Barrier {
		what += " of " + formatSize(list[0].Bytes) + " bytes"
	}
	fmt.Fprintf(w, "\n%s, estimated\n", what)
	header := []any{"hosts"}
	column := map[string]int{}
	for _, a := range coll.Algorithms(kind) {
		column[a.String()] = len(header)
		header = append(header, a.String())
	}
	t := newGrid(w, header...)
	var row []any
	for i, e := range list {
		if i == 0 || list[i-1].Hosts != e.Hosts {
			row = []any{e.Hosts}
			for range column {
				row = append(row, "-")
			}
		}
		cell := readable(e.NS, unitLatency)
		if e.Chosen {
			cell = "*" + cell
		}
		row[column[e.Algorithm]] = cell
		if i+1 == len(list) || list[i+1].Hosts != e.Hosts {
			t.row(row...)
		}
	}
	must(t.Flush())
}
