package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// csvColumns are those of --csv, in this order; new ones go to the end.
var csvColumns = []string{"pattern", "layer", "provider", "peer", "op", "device", "mode", "batch", "window", "bytes", "unit",
	"min", "p50", "p99", "p999", "max", "mean", "samples", "rounds", "spread", "suite", "ranks", "axis", "halo",
	"list", "version", "algorithm", "segment", "inline", "verified", "timer_ns", "allocs_per_message", "block", "receive"}

// resultsCSV writes the results as a table.
func resultsCSV(w io.Writer, rs []Result) error {
	c := csv.NewWriter(w)
	if err := c.Write(csvColumns); err != nil {
		return err
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	count := func(v int64) string { return strconv.FormatInt(v, 10) }
	for _, r := range rs {
		allocs := ""
		if r.AllocsPerMessage != nil {
			allocs = number(*r.AllocsPerMessage)
		}
		err := c.Write([]string{r.Pattern, r.Layer, r.Provider, r.Peer, r.Op, r.Device, r.Mode, count(r.Batch), count(r.Window), count(r.Bytes),
			r.Unit, number(r.Min), number(r.P50), number(r.P99), number(r.P999), number(r.Max), number(r.Mean), count(r.Samples),
			count(int64(r.Rounds)), number(r.Spread), r.Suite, count(r.Ranks), r.Axis, r.Halo,
			count(r.List), r.Version, r.Algorithm, count(r.Segment), strconv.FormatBool(r.Inline), strconv.FormatBool(r.Verified), number(r.TimerNS), allocs, count(r.Block), r.Receive})
		if err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

// writeCSV writes what a report has as tables: results, comparisons, changes, estimates.
// Where there are several an empty line is between them.
func writeCSV(w io.Writer, r *Report) error {
	tables := []func() error{}
	if len(r.Results) > 0 || len(r.Changes)+len(r.Estimates) == 0 {
		tables = append(tables, func() error { return resultsCSV(w, r.Results) })
	}
	if len(r.Comparisons) > 0 {
		tables = append(tables, func() error { return recordsCSV(w, r.Comparisons) })
	}
	if len(r.Changes) > 0 {
		tables = append(tables, func() error { return recordsCSV(w, r.Changes) })
	}
	if len(r.Estimates) > 0 {
		tables = append(tables, func() error { return recordsCSV(w, r.Estimates) })
	}
	for i, table := range tables {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := table(); err != nil {
			return err
		}
	}
	return nil
}

// recordsCSV writes structs whose fields are text, numbers, truths, or pointers to these,
// with their names of JSON as columns. What is absent there is empty here.
func recordsCSV[T any](w io.Writer, list []T) error {
	c := csv.NewWriter(w)
	typ := reflect.TypeFor[T]()
	var columns []string
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		columns = append(columns, name)
	}
	if err := c.Write(columns); err != nil {
		return err
	}
	for _, record := range list {
		v := reflect.ValueOf(record)
		row := make([]string, len(columns))
		for i := range row {
			f := v.Field(i)
			if f.Kind() == reflect.Pointer {
				if f.IsNil() {
					continue
				}
				f = f.Elem()
			}
			if f.Kind() == reflect.Float64 {
				row[i] = strconv.FormatFloat(f.Float(), 'f', -1, 64)
			} else {
				row[i] = fmt.Sprint(f.Interface())
			}
		}
		if err := c.Write(row); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}
