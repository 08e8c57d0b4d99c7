package boot

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/internal/variable"
)

// KnownVariables returns the names of all variables of Sluice: those of [Variables], and those that
// other packages read.
func KnownVariables() []string {
	var names []string
	for _, v := range Variables() {
		names = append(names, v.Name)
	}
	for _, s := range variable.Sections() {
		for _, v := range s.List {
			names = append(names, v.Name)
		}
	}
	return names
}

// checkValues is the error for a value that no package would take, although none may ask for it.
func checkValues(getenv func(string) string) error {
	name, want := variable.Wrong(getenv)
	if name == "" {
		return nil
	}
	return &EnvError{Name: name, Value: getenv(name), Err: errors.New(want)}
}

// ours begin the names of the variables of Sluice. COLL_ is from IMPI.
var ours = regexp.MustCompile(`^(SLUICE|COLL)_`)

// notOurs are the variables of tests and of the bench, and those that Kubernetes sets for a service, besides
// SLUICE_PORT for one of that name: an address with "://".
var notOurs = regexp.MustCompile(`TEST|BENCH|VM|LAM|INTEROP|_SERVICE_|_PORT_\d+_.*$`)

// warnsFirst says whether this process is one that warns of unknown variables, as far as it knows before it has
// joined: rank 0, which has the same as the others if a launcher has started them, else all.
func warnsFirst(lookup func(string) (string, bool)) bool {
	v := &values{lookup: lookup}
	rank, _, ok := placeFrom(lookup)
	return v.set(EnvRank) && !v.set(EnvLauncher) || ok && rank == 0
}

// warnOfUnknown logs which variables of the environment, a list of NAME=value, nothing reads.
func warnOfUnknown(ctx context.Context, environment []string) {
	known := KnownVariables()
	var names []string
	for _, s := range environment {
		name, value, _ := strings.Cut(s, "=")
		if ours.MatchString(name) && !notOurs.MatchString(name) && !slices.Contains(known, name) && !(strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")) {
			if near := variable.Nearest(name, known); near != "" {
				name += " (is it " + near + "?)"
			}
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		loggerOf(ctx).Warn("the environment has variables that Sluice does not know, and ignores: look for misspelt names", "variables", strings.Join(names, ", "))
	}
}
