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
	left  int      // of them have run nowhere, for want of needs that are left to another run
	wrong []string // the others that have run nowhere, and capabilities that no device has
}

// check finds the tests that have run in no part.
func check(parts []part, leave []string) (f found) {
	all := tests(parts)
	f.tests = len(all)
	for _, t := range all {
		if ran(parts, t) {
			continue
		}
		needs := map[string]bool{}
		left := false
		for _, p := range parts {
			lacks := p.lacks(t)
			for _, what := range lacks {
				needs[what] = true
			}
			left = left || len(lacks) > 0 && !slices.ContainsFunc(lacks, func(what string) bool { return !slices.Contains(leave, what) })
		}
		if left {
			f.left++
		} else {
			f.wrong = append(f.wrong, fmt.Sprintf("%s: %s has run nowhere: it needs %s", t.folder, t.name, strings.Join(slices.Sorted(maps.Keys(needs)), "; ")))
		}
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
