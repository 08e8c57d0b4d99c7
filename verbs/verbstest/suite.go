// Package verbstest is the conformance suite for providers of package verbs, in the style of
// golang.org/x/net/nettest. A provider's test package has
//
//	func TestMain(m *testing.M) { verbstest.Main(m, nil) }
//
//	func TestConformance(t *testing.T) {
//		verbstest.Run(t, verbstest.Suite{Device: "shm0"})
//	}
//
// The suite tests the behaviour of hardware that the InfiniBand architecture and libibverbs
// define and package verbs repeats. It does not depend on how a provider works. It reads
// capabilities (atomics, SRQ, inline, load/store) from the device.
//
// Most tests run three times: with both ends in one context, in two contexts of this process,
// and in two processes. The second process is the test binary itself, started again in an act
// of [Main]; the two communicate over pipes (see child.go).
package verbstest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// Suite says what to test.
type Suite struct {
	// Device is the name of the device.
	Device string
	// Config is the configuration to open it with, at both ends. Its Logger is used only in
	// this process.
	Config verbs.Config
	// Near and Far, if not nil, call the function that opens the device in this process as
	// the near and the far end; Far also calls the one that starts the process of the far
	// end. They can, for example, run it in a network namespace.
	Near, Far func(open func() error) error
	// Only names the groups of tests to run. None: all.
	Only []string
	// Local: other processes cannot reach the device. Tests between processes are left out.
	Local bool
	// Seed is the seed of everything random. Zero: taken from the clock. The environment
	// variable SLUICE_VERBSTEST_SEED overrides it, and a failed run logs it.
	Seed uint64
	// Rounds scales the random parts. Zero: 1, in long tests 20. The environment variable
	// SLUICE_VERBSTEST_ROUNDS overrides it.
	Rounds int
	// Deviations are the device's known deviations from the InfiniBand architecture.
	Deviations Deviations
}

// Deviations are deviations of a device from the InfiniBand architecture that its provider
// cannot hide. The behaviour they name is not tested.
type Deviations struct {
	// NoResponderEvents: a queue pair whose peer attempts a forbidden access gets no event
	// (11.6.3.2 of the architecture requires one).
	NoResponderEvents bool
	// NoLastWQE: a queue pair with an SRQ that goes to ERR sends no event that it takes no
	// more receives.
	NoLastWQE bool
	// NoReadsAcrossRNR: a queue pair may hang if a message meets a receiver that is not ready
	// and an RDMA_READ or an atomic follows it.
	NoReadsAcrossRNR bool
	// LateERR: a packet that is being processed when a queue pair goes to ERR may be written
	// after that. (MR.Close waits for it.)
	LateERR bool
	// NoLengthStatus: a receive that is too short completes with the statuses of one whose
	// memory is not registered.
	NoLengthStatus bool
	// NoMessageLimit: a message longer than the device's limit is sent nevertheless.
	NoMessageLimit bool
	// PartialReads: a refused RDMA_READ may already have written part of its data.
	PartialReads bool
	// NoRetryInSQD: in SQD nothing is sent again that was sent before.
	NoRetryInSQD bool
}

// Environment variables.
const (
	envSeed   = "SLUICE_VERBSTEST_SEED"
	envRounds = "SLUICE_VERBSTEST_ROUNDS"
)

// groups lists the tests, from basic to demanding: later ones rely on earlier ones.
var groups = []struct {
	name string
	test func(*testing.T, *suite)
}{
	{"Device", testDevice},
	{"Opcodes", testOpcodes},
	{"MessageLimit", testMessageLimit},
	{"SGE", testSGE},
	{"Inline", testInline},
	{"Atomics", testAtomics},
	{"Completion", testCompletion},
	{"Order", testOrder},
	{"Notify", testNotify},
	{"Passive", testPassive},
	{"LoadStore", testLoadStore},
	{"Allocs", testAllocs},
	{"States", testStates},
	{"RNR", testRNR},
	{"SRQ", testSRQ},
	{"Violations", testViolations},
	{"Concurrency", testConcurrency},
	{"Closing", testClosing},
	{"Model", testModel},
	{"Death", testDeath},
}

// Groups returns the names of the groups of tests.
func Groups() (names []string) {
	for _, g := range groups {
		names = append(names, g.name)
	}
	return names
}

// Run runs the suite on a device, as subtests of t. They must not run in parallel with other
// tests of the process, whose objects [leak.Check] would report as leaks.
func Run(t *testing.T, s Suite) {
	r := newSuite(t, s)
	t.Cleanup(func() { require.NoError(t, r.spare.end(), "the process of the far end") })
	for _, g := range groups {
		if s.Local && g.name == "Death" { // needs processes
			continue
		}
		if len(s.Only) > 0 && !slices.Contains(s.Only, g.name) {
			continue
		}
		t.Run(g.name, func(t *testing.T) { g.test(t, r) })
	}
}

// Main is the TestMain of a package that calls [Run]; acts are the package's own roles for other
// processes. In the process of the far end it serves the test and exits; otherwise it calls this
// module's leak check, which runs the tests.
func Main(m *testing.M, acts map[string]func(args []string) error) {
	all := map[string]func([]string) error{farAct: func([]string) error { return ranks.Status(serve(os.Stdin, os.Stdout)) }}
	maps.Copy(all, acts)
	ranks.Play(all, ranks.Call)
	leak.Main(m)
}

// suite is a Suite with its defaults filled in.
type suite struct {
	Suite
	attr  verbs.DeviceAttr
	spare *spare
}

func newSuite(t *testing.T, s Suite) *suite {
	s.Seed = fromEnv(t, envSeed, s.Seed)
	if s.Seed == 0 {
		s.Seed = uint64(time.Now().UnixNano())
	}
	s.Rounds = int(fromEnv(t, envRounds, uint64(s.Rounds)))
	if s.Rounds == 0 {
		s.Rounds = 1
		if need.WantLong() {
			s.Rounds = 20
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat: %s=%d %s=%d", envSeed, s.Seed, envRounds, s.Rounds)
		}
	})
	n, err := openNode(s.Device, s.Config, s.Near)
	require.NoError(t, err)
	attr, err := n.ctx.QueryDevice()
	require.NoError(t, err)
	require.NoError(t, n.close())
	return &suite{Suite: s, attr: attr, spare: &spare{}}
}

func fromEnv(t *testing.T, name string, def uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	v, err := strconv.ParseUint(s, 0, 64)
	require.NoError(t, err, "environment variable %s", name)
	return v
}

// peerTimeout returns the peer timeout of the configuration.
func (s *suite) peerTimeout() time.Duration {
	if s.Config.PeerTimeout != 0 {
		return s.Config.PeerTimeout
	}
	return verbs.DefaultPeerTimeout
}

// Every subtest has the time bound for all that it waits for, and longer if it repeats what it does. A call that
// does not return then hangs: after another hangs, the process ends with the stacks of all goroutines.
const (
	bound = 30 * time.Second
	hangs = 15 * time.Second
)

// within returns a context that ends after bound or with t, and watches for a hang.
func within(t *testing.T) context.Context { return withinRounds(t, 1) }

// withinRounds is within for a subtest that repeats what it does so many times: on a loaded machine 400 batches of
// 16 messages have taken half a minute.
func withinRounds(t *testing.T, rounds int) context.Context {
	limit := bound * time.Duration(max(1, rounds/4))
	if deadline, ok := t.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	dog := time.AfterFunc(limit+hangs, func() {
		debug.SetTraceback("crash") // of goroutines that run on other threads, too
		panic(fmt.Sprintf("verbstest: %s hangs: a call has not returned %v after its context ended", t.Name(), hangs))
	})
	t.Cleanup(func() {
		dog.Stop()
		cancel()
	})
	return ctx
}
