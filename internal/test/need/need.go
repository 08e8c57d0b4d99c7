// Package need says what a test needs of its machine, and skips it where that is missing.
//
// Every skip of a test goes through this package, so that a skip names its need in the
// same words everywhere, and so that a run on several machines (the host, a guest with
// RDMA devices, a user without privileges) can tell whether each test has run on one of
// them. With [LogVariable] set, every call appends a line with package, test, need and
// outcome to the file that it names; package [github.com/sluice-hpc/sluice/internal/test/need/needs]
// reads these files.
//
// A test states what decides where it runs, [RDMA] or [Guest], before its other needs: a
// test that is skipped states no more.
package need

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
)

// LogVariable names the file that each call appends a line to: package, test, need, and
// outcome, separated by tabs. Several processes may write to one file.
const LogVariable = "SLUICE_TEST_NEEDS"

// Outcomes in the log: of a need of the machine, and of a capability of a device.
const (
	Met     = "met"
	Missing = "missing"
	Has     = "has"
	Lacks   = "lacks"
)

// LongVariable makes long tests run: those that take many seconds, move gigabytes or
// start dozens of processes. The short form of what they test always runs.
const LongVariable = "SLUICE_TEST_LONG"

// LongTests is the need that [Long] states.
const LongTests = "long tests"

// Long skips a long test unless [LongVariable] is set to something else than 0, or where
// -short is given.
func Long(t testing.TB) {
	t.Helper()
	check(t, LongTests, WantLong(), LongVariable+" is not set")
}

// FullRun is the need that [Full] states.
const FullRun = "a run without -short"

// Full skips a test that -short has no time for.
func Full(t testing.TB) {
	t.Helper()
	check(t, FullRun, !testing.Short(), "-short is given")
}

// WantLong reports whether long tests were asked for: for a test that has more rounds, sizes
// or members in its long form.
func WantLong() bool {
	v := os.Getenv(LongVariable)
	return v != "" && v != "0" && !testing.Short()
}

// ByForm returns what a test takes by the form that it runs in: with -short, as usual, or long
// ([WantLong]). [InShort] and [InLong] are for tests with two forms.
func ByForm[T any](short, usual, long T) T {
	switch {
	case testing.Short():
		return short
	case WantLong():
		return long
	}
	return usual
}

// InShort returns short with -short, else usual.
func InShort[T any](short, usual T) T { return ByForm(short, usual, usual) }

// InLong returns long if long tests were asked for, else usual.
func InLong[T any](usual, long T) T { return ByForm(usual, usual, long) }

// NoRace skips a test that the race detector has no use for, or would fail: it allocates,
// slows everything down, and reports what memory that devices write is for.
func NoRace(t testing.TB, reason string) {
	t.Helper()
	check(t, "no race detector", !Race, reason)
}

// NoASan skips a test that AddressSanitizer would fail, in C or for what its instrumentation
// of Go allocates.
func NoASan(t testing.TB, reason string) {
	t.Helper()
	check(t, "no AddressSanitizer", !ASan, reason)
}

// Probe skips t if err is not nil, which is what a probe for the thing needed has returned.
// It is for what the library itself probes for.
func Probe(t testing.TB, need string, err error) {
	t.Helper()
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	check(t, need, err == nil, reason)
}

// check logs the need and skips t if it is not met.
func check(t testing.TB, need string, met bool, reason string) {
	t.Helper()
	outcome := Met
	if !met {
		outcome = Missing
	}
	record(t, need, outcome)
	if !met {
		t.Skipf("needs %s: %s", need, reason)
	}
}

func record(t testing.TB, need, outcome string) {
	t.Helper()
	path := os.Getenv(LogVariable)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		t.Fatalf("%s: %v", LogVariable, err)
	}
	defer f.Close()
	// One write, so that lines of several processes do not mix.
	if _, err := fmt.Fprintf(f, "%s\t%s\t%s\t%s\n", packageName(), t.Name(), need, outcome); err != nil {
		t.Fatalf("%s: %v", LogVariable, err)
	}
}

// module is the path of the library, beneath which those of its other modules are.
const module = "github.com/sluice-hpc/sluice/"

// packageName is the folder of the tests' package.
func packageName() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "?"
	}
	return strings.TrimPrefix(strings.TrimSuffix(info.Path, ".test"), module)
}
