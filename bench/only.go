package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// onlyRows picks results by a pattern; nil picks all.
type onlyRows struct{ re *regexp.Regexp }

// parseOnly reads --only: a regular expression, in any case.
func parseOnly(pattern string) (*onlyRows, error) {
	if pattern == "" {
		return &onlyRows{}, nil
	}
	re, err := regexp.Compile("(?i)" + pattern)
	if err != nil {
		return nil, usagef("--only %q: %v", pattern, err)
	}
	return &onlyRows{re}, nil
}

// match says whether a row of this name is wanted.
func (o *onlyRows) match(name string) bool { return o == nil || o.re == nil || o.re.MatchString(name) }

// results are those that are wanted, by provider, suite, pattern, axis, operation,
// bytes and peer, with spaces between.
func (o *onlyRows) results(rs []Result) []Result {
	return slices.DeleteFunc(slices.Clone(rs), func(r Result) bool { return !o.match(rowName(&r)) })
}

// rowName begins with the discipline of a result, as [contender].what has it.
func rowName(r *Result) string {
	suite := r.Suite
	switch {
	case isCollective(r.Pattern):
		suite = fmt.Sprintf("%s %d ranks", r.Suite, r.Ranks)
	case suite == "":
		suite = r.Layer
	}
	return strings.Join(strings.Fields(strings.Join([]string{r.Provider, suite, r.Pattern, r.Axis, r.Op, formatSize(r.Bytes), r.Peer}, " ")), " ")
}
