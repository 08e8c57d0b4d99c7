// Package verbstest is the conformance suite that every provider of package
// verbs passes, in the manner of golang.org/x/net/nettest. A provider's test
// package has
//
//	func TestMain(m *testing.M) { verbstest.Main(m, nil) }
//
//	func TestConformance(t *testing.T) {
//		verbstest.Run(t, verbstest.Suite{Device: "shm0"})
//	}
//
// What is tested is what hardware does, as the InfiniBand architecture and
// libibverbs define it and package verbs repeats it: nothing here knows how a
// provider works. Abilities (atomics, SRQ, inline, load/store) are read off the
// device.
//
// Most tests run three times: with both ends in one context, in two contexts of
// this process, and in two processes. The second process is the test binary
// itself, started again to play an act of [Main]; the two talk over pipes (see child.go).
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
	// Config is how it is opened, on both sides. Its Logger stays in this process.
	Config verbs.Config
	// Near and Far, if they are not nil, run what opens the device in this process as the
	// near and the far end, and Far what starts the process of the far end: in network
	// namespaces of their own, say.
	Near, Far func(open func() error) error
	// Only names the groups of tests to run. None: all.
	Only []string
	// Local: other processes do not reach the device. What is between processes is not tested.
	Local bool
	// Seed of everything random. Zero: taken from the clock. The environment
	// variable SLUICE_VERBSTEST_SEED overrides it, and a failed run says which it was.
	Seed uint64
	// Rounds scales the random parts. Zero: 1, in long tests 20. The
	// environment variable SLUICE_VERBSTEST_ROUNDS overrides it.
	Rounds int
	// Deviations are what the device is known to do otherwise than the InfiniBand
	// architecture says.
	Deviations Deviations
}

// Deviations of a device from the InfiniBand architecture that a provider cannot
// make up for. What they say is not tested.
type Deviations struct {
	// NoResponderEvents: who is accessed against its will gets no event of that
	// (11.6.3.2 of the architecture wants one).
	NoResponderEvents bool
	// NoLastWQE: a queue pair with an SRQ that goes to ERR does not say by an event
	// that it takes no more receives.
	NoLastWQE bool
	// NoReadsAcrossRNR: a queue pair of which a message has met a receiver that was
	// not ready may stand still when there is an RDMA_READ or an atomic behind it.
	NoReadsAcrossRNR bool
	// LateERR: a packet that is being taken in when a queue pair goes to ERR may be
	// written after that. (MR.Close waits for it.)
	LateERR bool
	// NoLengthStatus: a receive that is too short has the statuses of one whose
	// memory is not there.
	NoLengthStatus bool
	// NoMessageLimit: a message that is longer than the device says messages may be is
	// sent all the same.
	NoMessageLimit bool
	// PartialReads: an RDMA_READ that is refused may have read some of it before.
	PartialReads bool
	// NoRetryInSQD: in SQD nothing is sent once more that was sent before.
	NoRetryInSQD bool
}

// Environment variables.
const (
	envSeed   = "SLUICE_VERBSTEST_SEED"
	envRounds = "SLUICE_VERBSTEST_ROUNDS"
)

// groups are the tests, from the plain to the rough: what comes later relies on
// what comes before.
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

// Groups are the names of the groups of tests.
func Groups() (names []string) {
	for _, g := range groups {
		names = append(names, g.name)
	}
	return names
}

// Run tests a device: everything, as subtests of t. They must not run in
// parallel with other tests of the process, which [leak.Check] would blame on
// them.
func Run(t *testing.T, s Suite) {
	r := newSuite(t, s)
	t.Cleanup(func() { require.NoError(t, r.spare.end(), "the process of the far end") })
	for _, g := range groups {
		if s.Local && g.name == "Death" { // of processes alone
			continue
		}
		if len(s.Only) > 0 && !slices.Contains(s.Only, g.name) {
			continue
		}
		t.Run(g.name, func(t *testing.T) { g.test(t, r) })
	}
}

// Main is the TestMain of a package that calls [Run], with the acts of its other processes. In
// the process of the other end it serves the test and ends; else it hands on to the leak check
// of this module, which runs the tests.
func Main(m *testing.M, acts map[string]func(args []string) error) {
	all := map[string]func([]string) error{farAct: func([]string) error { return ranks.Status(serve(os.Stdin, os.Stdout)) }}
	maps.Copy(all, acts)
	ranks.Play(all, ranks.Call)
	leak.Main(m)
}

// suite is a Suite with its gaps filled.
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

// peerTimeout is what the configuration means.
func (s *suite) peerTimeout() time.Duration {
	if s.Config.PeerTimeout != 0 {
		return s.Config.PeerTimeout
	}
	return verbs.DefaultPeerTimeout
}

// Every subtest has bound to get done in what it waits for; what does not
// answer to that is a hang, and after hangs more ends the process with the
// stacks of all goroutines.
const (
	bound = 30 * time.Second
	hangs = 15 * time.Second
)

// within returns a context that ends after bound or with t, and watches for a hang.
func within(t *testing.T) context.Context {
	limit := bound
	if deadline, ok := t.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	dog := time.AfterFunc(limit+hangs, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("verbstest: %s hangs: a call has not returned %v after its context ended", t.Name(), hangs))
	})
	t.Cleanup(func() {
		dog.Stop()
		cancel()
	})
	return ctx
}
