package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// found is what all parts of CI together say.
type found struct {
	tests int      // that have stated a need
	wrong []string // those that have run nowhere, and capabilities that no device has
}

// check finds the tests that have run in no part.
func check(parts []part) (f found) {
	all := tests(parts)
	f.tests = len(all)
	for _, t := range all {
		if ran(parts, t) {
			continue
		}
		needs := map[string]bool{}
		for _, p := range parts {
			for _, what := range p.lacks(t) {
				needs[what] = true
			}
		}
		f.wrong = append(f.wrong, fmt.Sprintf("%s: %s has run nowhere: it needs %s", t.folder, t.name, strings.Join(slices.Sorted(maps.Keys(needs)), "; ")))
	}
	has := map[string]bool{}
	for _, p := range parts {
		for what, yes := range p.capability {
			has[what] = has[what] || yes
		}
	}
	for _, what := range slices.Sorted(maps.Keys(has)) {
		if !has[what] {
			f.wrong = append(f.wrong, fmt.Sprintf("no device that was tested has %s", what))
		}
	}
	return f
}
