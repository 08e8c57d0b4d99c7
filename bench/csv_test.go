package main

import (
	"bytes"
	"encoding/csv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each list of a report that is there is a table, with as many columns everywhere.
func TestWriteCSV(t *testing.T) {
	t.Parallel()
	limit, met := 0.75, true
	c := Comparison{Pattern: patternLat, Provider: "shm", Bytes: 8, Ours: 90.5, Peer: "mpich", Ratio: 0.7, Bar: &limit, Met: &met}
	for name, k := range map[string]struct {
		report Report
		first  []string // column of each table
		rows   int      // beside the headers
	}{
		"nothing":    {Report{}, []string{"pattern"}, 0},
		"results":    {Report{Results: []Result{resultOf(patternLat, 8, 1)}}, []string{"pattern"}, 1},
		"comparison": {Report{Results: []Result{resultOf(patternLat, 8, 1)}, Comparisons: []Comparison{c, c}}, []string{"pattern", "row"}, 3},
		"changes":    {Report{Changes: []Change{{Pattern: patternLat, Name: "a, b", P: &limit}}}, []string{"pattern"}, 1},
		"estimates":  {Report{Estimates: []Estimate{{Kind: "bcast", Hosts: 2}}}, []string{"kind"}, 1},
	} {
		var out bytes.Buffer
		require.NoError(t, writeCSV(&out, &k.report), name)
		tables := strings.Split(out.String(), "\n\n")
		require.Len(t, tables, len(k.first), name)
		rows := 0
		for i, table := range tables {
			records, err := csv.NewReader(strings.NewReader(table)).ReadAll()
			require.NoError(t, err, name)
			require.Equal(t, k.first[i], records[0][0], name)
			rows += len(records) - 1
		}
		require.Equal(t, k.rows, rows, name)
	}
	var out bytes.Buffer
	recordsCSV(&out, []Comparison{c})
	rows, err := csv.NewReader(&out).ReadAll()
	require.NoError(t, err)
	cells := map[string]string{}
	for i, name := range rows[0] {
		cells[name] = rows[1][i]
	}
	for name, want := range map[string]string{"bytes": "8", "ours": "90.5", "ratio": "0.7", "bar": "0.75", "met": "true", "aim": "", "peer": "mpich"} {
		require.Equal(t, want, cells[name], name)
	}
}
