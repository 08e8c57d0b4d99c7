package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// machines are where tests run that find a need missing in the ordinary run: each with
// the needs that it meets.
var machines = map[string]func(what string) bool{
	"guest": func(what string) bool {
		return what == need.RDMADevice || what == need.SoftRoCEAdded || what == need.GuestOfVM
	},
	"user": func(what string) bool { return what == need.LimitedUser },
	"networks": func(what string) bool {
		return slices.ContainsFunc(nettest.Providers(), func(p string) bool { return what == need.DeviceOf(p) })
	},
}

// planned are tests of a package, as a pattern for go test -run.
type planned struct{ folder, pattern string }

// plan lists the tests, by package, of which a wanted need was missing, and that have run
// in no part.
func plan(parts []part, wanted func(what string) bool) (list []planned) {
	for _, t := range tests(parts) {
		if ran(parts, t) || !slices.ContainsFunc(parts, func(p part) bool { return slices.ContainsFunc(p.missing[t], wanted) }) {
			continue
		}
		if len(list) == 0 || list[len(list)-1].folder != t.folder {
			list = append(list, planned{t.folder, pattern(t.name)})
		} else {
			list[len(list)-1].pattern += "|" + pattern(t.name)
		}
	}
	return list
}

// pattern matches one test, or subtest, and what is beneath it.
func pattern(name string) string {
	elements := strings.Split(name, "/")
	for i, e := range elements {
		elements[i] = "^" + regexp.QuoteMeta(e) + "$"
	}
	return strings.Join(elements, "/")
}
