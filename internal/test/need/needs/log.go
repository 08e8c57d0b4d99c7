package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// test is a test of a package, which is known by its folder.
type test struct{ folder, name string }

// part is what one log says: of tests that one user has run on one machine.
type part struct {
	stated     map[test]bool     // tests that have stated a need
	missing    map[test][]string // needs that were not met; none: the test has run
	capability map[string]bool   // whether some device has it
}

func readLogs(paths []string) ([]part, error) {
	if len(paths) == 0 {
		return nil, fmt.Errorf("no logs")
	}
	var parts []part
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		p, err := parse(string(b))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

func parse(log string) (part, error) {
	p := part{stated: map[test]bool{}, missing: map[test][]string{}, capability: map[string]bool{}}
	for line := range strings.Lines(log) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 4 {
			return part{}, fmt.Errorf("%q: want four fields", line)
		}
		t, what := test{fields[0], fields[1]}, fields[2]
		switch fields[3] {
		case need.Met:
			p.stated[t] = true
		case need.Missing:
			p.stated[t] = true
			p.missing[t] = append(p.missing[t], what)
		case need.Has:
			p.capability[what] = true
		case need.Lacks:
			if _, known := p.capability[what]; !known {
				p.capability[what] = false
			}
		default:
			return part{}, fmt.Errorf("%q: unknown outcome", line)
		}
	}
	return p, nil
}

// lacks are the needs of a test that were not met, and those of the tests that it is part of.
func (p *part) lacks(t test) (list []string) {
	for at := len(t.name); at >= 0; at = strings.LastIndexByte(t.name[:at], '/') {
		list = append(list, p.missing[test{t.folder, t.name[:at]}]...)
	}
	return list
}

// ran reports whether a test has run in some part.
func ran(parts []part, t test) bool {
	for _, p := range parts {
		if p.stated[t] && len(p.missing[t]) == 0 {
			return true
		}
	}
	return false
}

// tests are all that have stated a need, by package and name.
func tests(parts []part) []test {
	all := map[test]bool{}
	for _, p := range parts {
		for t := range p.stated {
			all[t] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b test) int {
		return cmp.Or(strings.Compare(a.folder, b.folder), strings.Compare(a.name, b.name))
	})
}
