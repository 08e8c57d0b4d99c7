package channel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

// limit bounds every test: what takes longer hangs.
const limit = ranks.Limit

// ringing is how long a ringer may take to ring before a sleep counts as late: it may lack a CPU.
const ringing = 10 * time.Second

// setting is where the ends of a test's channels are.
type setting struct {
	name string // of the provider
	size int    // ranks; 1: messages to oneself
}

var places = []setting{{"self", 1}, {"shm", 2}, {"tcp", 2}, {"roce", 2}, {"ibv", 2}}

// queueProviders are those whose messages go through a queue.
var queueProviders = []string{"tcp", "roce", "ibv"}

// lengthy are the tests that take long over a provider; over ibv, where the devices are of a
// guest that is emulated, with two CPUs.
var lengthy = map[string][]string{
	"roce": {"TestAway", "TestHostile", "TestWorldFailed", "TestLayoutsProcesses", "TestPipeSenderAway", "TestWeight", "TestSiege", "TestWhoMoves", "TestStop", "TestDeath", "TestLayouts", "TestRevived", "TestMemberDeath", "TestCloseUnderUse", "TestBothConnect", "TestReport",
		"TestCrossovers", "TestHeapToWaiting", "TestAhead", "TestAllocs", "TestCloseBlocked", "TestDeclareWhileClosing", "TestDirect", "TestFailedGroupsMemory", "TestHostileReady", "TestIdlePeers", "TestManyHandles",
		"TestMultiple", "TestNoSendBuffers", "TestOrder", "TestPipeRefused", "TestPriority", "TestQueueWays", "TestRace", "TestReadActive", "TestReadClose", "TestStaging", "TestStorm", "TestStreamsEnd", "TestStreamsEndEarly"},
	"ibv": {"TestBothConnect", "TestHostile"},
}

// unhurried are the tests that -short has no time for. Between networks they run with -short, too.
var unhurried = []string{
	"TestAhead", "TestAway", "TestBothConnect", "TestCloseBlocked", "TestCloseUnderUse", "TestDeadlineOfMultiple", "TestDeadlinesMemory", "TestDeclareWhileClosing", "TestDirect",
	"TestFailedGroupsMemory", "TestHeapToWaiting", "TestHostile", "TestHostileReady", "TestLateLength", "TestLayoutsProcesses", "TestLengthMismatchWaitsInAnyOrder",
	"TestManyHandles", "TestMemberDeath", "TestNoSendBuffers", "TestPipeRefused", "TestPipeSenderAway", "TestPriority", "TestRace",
	"TestReadActive", "TestReadClose", "TestReadDeath", "TestReport", "TestRevived", "TestSetLayout", "TestSiege", "TestStaging", "TestStop",
	"TestStorm", "TestStreamsEnd", "TestStreamsEndEarly", "TestWeight", "TestWhoMoves", "TestWorldFailed",
}

// onHost are those that are not run between networks: they weigh, or take long.
var onHost = []string{"TestWeight", "TestRevived"}

// runs says whether a test of several places runs in p.
func runs(t *testing.T, p setting) bool {
	if _, networks := nettest.Wire(p.name); networks {
		return !slices.Contains(onHost, t.Name())
	}
	return true
}

// needs states what a test at this place needs.
func (p setting) needs(t testing.TB) {
	t.Helper()
	if p.name != "self" {
		need.Provider(t, p.name)
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	if slices.Contains(lengthy[p.name], name) {
		need.Long(t)
	}
	switch p.name {
	case "self", "shm", "tcp", "ibv":
		if slices.Contains(unhurried, name) {
			need.Full(t)
		}
	case "roce": // queues, as over tcp
		if name != "TestSizes" {
			need.Full(t)
		}
	}
}

func init() {
	for _, provider := range nettest.Providers() {
		places = append(places, setting{provider, 2})
		queueProviders = append(queueProviders, provider)
	}
}

// everywhere runs a test for each place: with two nodes, or twice the same.
func everywhere(t *testing.T, test func(t *testing.T, a, b *Node)) {
	for _, p := range places {
		if !runs(t, p) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			p.needs(t)
			nodes := join(t, p.size, WithProviders(p.name))
			test(t, nodes[0], nodes[len(nodes)-1])
		})
	}
}

// apart runs a test for each provider.
func apart(t *testing.T, test func(t *testing.T, provider string)) {
	for _, p := range places[1:] {
		if runs(t, p) {
			t.Run(p.name, func(t *testing.T) {
				p.needs(t)
				test(t, p.name)
			})
		}
	}
}

// join makes a job of several nodes in this process.
func join(t testing.TB, size int, opts ...Option) []*Node {
	t.Helper()
	nodes, errs := tryJoin(t, size, opts...)
	for _, err := range errs {
		require.NoError(t, err)
	}
	t.Cleanup(func() { closeAll(t, nodes) })
	return nodes
}

// closeAll closes all nodes of a job at the same time.
func closeAll(t testing.TB, nodes []*Node) {
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			if err := n.Close(); !errors.Is(err, ErrActive) { // many tests leave sends behind
				require.NoError(t, err)
			}
		})
	}
	wg.Wait()
}

// closeEarly closes a node with so many active sends, the first of which is to that rank.
func closeEarly(t testing.TB, n *Node, sends, rank int) {
	t.Helper()
	err := n.Close()
	require.ErrorIs(t, err, ErrActive)
	require.ErrorContains(t, err, fmt.Sprintf("close: sends not complete, and cancelled: %d; wait for sends before Close; the first: channel: close send to rank %d, ", sends, rank))
}

// joinErrors makes a job whose nodes must not come to be, and returns why.
func joinErrors(t testing.TB, size int, opts ...Option) []error {
	t.Helper()
	nodes, errs := tryJoin(t, size, opts...)
	for i, n := range nodes {
		require.Nil(t, n)
		require.Error(t, errs[i])
	}
	return errs
}

func tryJoin(t testing.TB, size int, opts ...Option) ([]*Node, []error) {
	t.Helper()
	return tryJoinEach(t, size, func(int) []Option { return opts })
}

// tryJoinEach makes a job whose ranks have options of their own.
func tryJoinEach(t testing.TB, size int, opts func(rank int) []Option) ([]*Node, []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ln := ranks.Listen(t)
	env := boot.Environment{Launched: true, Size: size, LocalSize: size, Server: ln.Addr().String(), Job: "test", Secret: []byte("the secret of a job of a test...")}
	s, err := boot.Serve(context.Background(), ln, boot.ServerOptions{Size: size, Job: env.Job, Secret: env.Secret})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	nodes := make([]*Node, size)
	errs := make([]error, size)
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			e := env
			e.Rank, e.LocalRank = i, i
			var job *boot.Job
			if job, errs[i] = e.Join(ctx); errs[i] == nil {
				nodes[i], errs[i] = joinJob(ctx, job, opts(i)...)
			}
			if n := nodes[i]; n != nil {
				n.sleepers.RingWithin(ringing)
			}
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, n := range nodes {
			if n != nil {
				assert.Zero(t, n.Stats().Late, "rank %d: sleeps that no ring has ended", n.rank)
			}
		}
	})
	return nodes, errs
}

// What tests of several ranks share.
var (
	each, within, eventually = ranks.Each, ranks.Within, ranks.Eventually
	closes, open             = ranks.Closes, ranks.Open
)

// lockedBuffer collects what several write.
type lockedBuffer = logbuf.Buffer

// exchanged and joined are calls that all ranks have to make.
func exchanged(n *Node) error {
	_, err := n.Exchange(context.Background(), nil)
	return err
}

func joined(n *Node) error {
	_, err := n.World(context.Background())
	return err
}
