package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// writeCSV writes what a report has as tables: results, comparisons, changes, estimates.
// Where there are several an empty line is between them.
func writeCSV(w io.Writer, r *Report) error {
	var errs []error
	between := ""
	for _, t := range []struct {
		rows  int
		write func() error
	}{
		{len(r.Results), func() error { return recordsCSV(w, r.Results) }},
		{len(r.Comparisons), func() error { return recordsCSV(w, r.Comparisons) }},
		{len(r.Changes), func() error { return recordsCSV(w, r.Changes) }},
		{len(r.Estimates), func() error { return recordsCSV(w, r.Estimates) }},
	} {
		if t.rows > 0 {
			_, err := io.WriteString(w, between)
			errs = append(errs, err, t.write())
			between = "\n"
		}
	}
	if between == "" {
		errs = append(errs, recordsCSV(w, r.Results))
	}
	return errors.Join(errs...)
}

// recordsCSV writes structs whose fields are text, numbers, truths, or pointers to these,
// with their names of JSON as columns; lists and histograms are in JSON alone. What is
// absent there is empty here.
func recordsCSV[T any](w io.Writer, list []T) (err error) {
	defer catch(&err)
	c := csv.NewWriter(w)
	typ := reflect.TypeFor[T]()
	var names []string
	var fields []int
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "histogram" && typ.Field(i).Type.Kind() != reflect.Slice {
			names, fields = append(names, name), append(fields, i)
		}
	}
	must(c.Write(names))
	for _, record := range list {
		v := reflect.ValueOf(record)
		row := make([]string, len(fields))
		for i, field := range fields {
			switch f := v.Field(field); f.Kind() {
			case reflect.Pointer:
				if !f.IsNil() {
					row[i] = fmt.Sprint(f.Elem().Interface())
				}
			case reflect.Float64:
				row[i] = strconv.FormatFloat(f.Float(), 'f', -1, 64)
			default:
				row[i] = fmt.Sprint(f.Interface())
			}
		}
		must(c.Write(row))
	}
	c.Flush()
	return c.Error()
}
