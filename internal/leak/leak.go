// Package leak fails a test binary, or tells a program, that leaves something behind: a goroutine,
// an open descriptor, or a mapping that other processes may share.
//
// Every package of this module that has tests hands its TestMain to [Main]:
//
//	func TestMain(m *testing.M) { leak.Main(m) }
//
// Descriptors and mappings are watched on Linux, through /proc/self;
// goroutines everywhere.
package leak

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// bound is how long what is on its way out may take to be gone: a closed
// connection's reader has to be scheduled once more before its goroutine ends,
// on a machine that may have other work.
var bound = 20 * time.Second

// Main runs the tests of m, then verifies that everything that was opened or
// started meanwhile is gone, waiting up to 20 s for what is about to go. It
// ends the process: with the tests' own exit code if that is not 0 (a failed
// test may leave anything behind), with 1 and a listing on standard error if
// something leaked, else with 0.
//
// Call it from TestMain and from nowhere else; it does not return.
func Main(m *testing.M) {
	before := take()
	code := m.Run()
	if code == 0 {
		if err := before.verify(bound); err != nil {
			fmt.Fprintf(os.Stderr, "leak: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Check notes what the process holds now and verifies, when t and its
// subtests are over, that nothing more is held, waiting up to 20 s for what is
// about to go; else it fails t with a listing. Cleanups registered after Check
// run before the verification.
//
// What is held belongs to the process, so a test that calls Check must not run
// in parallel with others.
func Check(t testing.TB) {
	t.Helper()
	before := take()
	t.Cleanup(func() {
		t.Helper()
		if t.Failed() {
			return
		}
		if err := before.verify(bound); err != nil {
			t.Errorf("leak: %v", err)
		}
	})
}

// Watch notes what the process holds now, and returns a function that says what more it
// holds then, waiting up to 20 s for what is about to go: for a program that is told
// to look at itself. It must not run beside something that opens or starts things.
func Watch() func() error {
	before := take()
	return func() error { return before.verify(bound) }
}

// snapshot is what a process held at one moment.
type snapshot struct {
	goroutines goleak.Option
	held       resources
}

func take() snapshot {
	warm()
	held, err := held()
	if err != nil {
		// Without the reading there is nothing to compare with, and a check
		// that cannot check must not pass.
		panic(fmt.Sprintf("leak: cannot list what this process holds: %v", err))
	}
	return snapshot{goroutines: goleak.IgnoreCurrent(), held: held}
}

// verify returns nil as soon as the process holds nothing that is not in s,
// or, when that does not happen within d, an error that lists the rest.
func (s snapshot) verify(d time.Duration) error {
	deadline := time.Now().Add(d)
	pause := time.Millisecond
	for {
		err := s.compare()
		if err == nil || !time.Now().Before(deadline) {
			return err
		}
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond)
	}
}

func (s snapshot) compare() error {
	var errs []error
	// Goroutines first: one that is about to end may hold a descriptor.
	if err := goleak.Find(s.goroutines); err != nil {
		errs = append(errs, err)
	}
	now, err := held()
	if err != nil {
		errs = append(errs, err)
	} else if extra := s.held.extra(now); len(extra) > 0 {
		errs = append(errs, fmt.Errorf("left open:\n\t%s", strings.Join(extra, "\n\t")))
	}
	return errors.Join(errs...)
}
