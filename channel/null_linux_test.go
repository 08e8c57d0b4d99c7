//go:build cgo

package channel

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/ibv"
)

// Channels over the RDMA provider on a machine without RDMA: over a libibverbs of our
// own (testdata/faults.c), whose devices reach each other within a process. Each test
// has a process of its own, for a process opens the library once: this binary, started
// again.

// nullEnv is where such a process finds the sysfs of its devices.
const nullEnv = "SLUICE_CHANNEL_NULL"

func init() {
	if root := os.Getenv(nullEnv); root != "" {
		rdmadev.Sysfs = root
	}
}

type nullTest struct {
	name string
	test func(*testing.T)
	two  int      // 1: the devices have two ports
	env  []string // switches of the library
}

// nullSuite is which of the tests for all providers are run as well: those in which
// receives do not run out, for the library does not try again.
const nullSuite = "^Test(Transport|Refused|Sizes|Order|Streams|LengthMismatch|Leaving|Rebase|RegisteredOnce|DeviceFatal|Crossovers|IdlePeers|NoSendBuffers|Signalled|Forgotten|Multiple|Read|Staging)$/ibv"

func TestNull(t *testing.T) {
	if os.Getenv(nullEnv) != "" {
		for _, n := range nullTests {
			t.Run(n.name, n.test)
		}
		return
	}
	t.Parallel() // it waits most of the time
	need.Compiler(t)
	need.Full(t)
	lib := buildNull(t)
	sysfs := [2]string{t.TempDir(), t.TempDir()} // of devices with one port, and with two
	for _, device := range []string{"null0", "null1"} {
		require.NoError(t, os.MkdirAll(filepath.Join(sysfs[0], "class/infiniband", device, "ports/1"), 0o755))
		require.NoError(t, os.MkdirAll(filepath.Join(sysfs[1], "class/infiniband", device, "ports/1"), 0o755))
		require.NoError(t, os.MkdirAll(filepath.Join(sysfs[1], "class/infiniband", device, "ports/2"), 0o755))
	}
	for _, n := range nullTests {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			if n.name == "Ready1" {
				need.Long(t) // Ready0 has each side be slow
			}
			again(t, "^TestNull$/^"+n.name+"$", "--- PASS: TestNull/"+n.name+" ", append(n.env, ibv.EnvLibrary+"="+lib, nullEnv+"="+sysfs[n.two])...)
		})
	}
	t.Run("Suite", func(t *testing.T) {
		t.Parallel()
		again(t, nullSuite, "--- PASS: TestSizes/ibv ", "NULL_DEVICES=2", "NULL_INLINE=256", ibv.EnvLibrary+"="+lib, nullEnv+"="+sysfs[0])
	})
}

// buildNull compiles the library, and returns its file.
func buildNull(t testing.TB) string {
	cc := need.Compiler(t)
	lib := filepath.Join(t.TempDir(), "libnull.so")
	cc = append(cc, "-O2", "-g", "-Wall", "-Wno-parentheses", "-shared", "-fPIC", "-Wl,--version-script=../verbs/ibv/testdata/null.map", "-o", lib, "testdata/faults.c")
	out, err := exec.Command(cc[0], cc[1:]...).CombinedOutput()
	require.NoError(t, err, "%q: %s", cc, out)
	return lib
}

// again runs tests with the null device in another process, which must say so.
func again(t *testing.T, run, says string, env ...string) {
	t.Helper()
	out := ranks.Again(t, run, append(env, need.LogVariable+"="), "-test.short") // this library meets no need of the machine
	require.Contains(t, out, says)
}

// control is the beginning of struct control of null.c, in the memory of that library.
type control struct {
	PostsLeft, PostErrno, FailIn, FailStatus, RegErrno, DeregErrno, PollErrno, AsyncErrno atomic.Uint32
	RegAccess, RegCall, LastCQ, LastSRQ, AsyncFD, Live                                    atomic.Uint32
}

// controlOf returns the library's, and checks that nothing is left in it when the
// test is over.
func controlOf(t *testing.T) *control {
	d, err := verbs.Find("null0")
	require.NoError(t, err)
	ctx, err := d.Open(verbs.Config{})
	require.NoError(t, err)
	a, err := ctx.QueryDevice()
	require.NoError(t, err)
	require.NoError(t, ctx.Close())
	at, err := strconv.ParseUint(a.FWVer, 0, 64)
	require.NoError(t, err, "firmware %q", a.FWVer)
	c := *(**control)(unsafe.Pointer(&at))
	t.Cleanup(func() { require.Zero(t, c.Live.Load(), "objects are left") })
	return c
}

var nullTests = []nullTest{
	{"Ready0", testReady, 0, []string{"NULL_DEVICES=2", "FAULT_SLOW=null0"}},
	{"Ready1", testReady, 0, []string{"NULL_DEVICES=2", "FAULT_SLOW=null1"}},
	{"LowerWithoutQP", testWithoutQP(0), 0, []string{"NULL_DEVICES=2", "FAULT_CREATE_QP=null0"}},
	{"HigherWithoutQP", testWithoutQP(1), 0, []string{"NULL_DEVICES=2", "FAULT_CREATE_QP=null0"}},
	{"NoQP", testNoQP, 0, []string{"FAULT_CREATE_QP=null0"}},
	{"NoMemory", testNoMemory, 0, nil},
	{"MemoryRunsOut", testMemoryRunsOut, 0, nil},
	{"OtherPair", testOtherPair, 0, []string{"NULL_DEVICES=2", "FAULT_APART=1"}},
	{"NoPair", testNoPair, 0, []string{"NULL_DEVICES=2", "FAULT_APART=1"}},
	{"Subnets", testSubnets, 1, []string{"NULL_DEVICES=2", "NULL_IB=7"}},
	{"OneContext", testOneContext, 0, nil},
	{"AddedAgain", testAddedAgain, 0, nil},
}

// joinNull makes two ranks that may use these RDMA devices, and has them talk.
func joinNull(t *testing.T, first, second []string, providers ...string) (nodes []*Node, ofB, ofA PeerStats) {
	nodes, errs := tryJoinEach(t, 2, func(rank int) []Option {
		return []Option{WithProviders(providers...), WithDevices([][]string{first, second}[rank]...)}
	})
	require.NoError(t, errors.Join(errs...))
	t.Cleanup(func() { closeAll(t, nodes) })
	ofB, ofA = talk(t, nodes[0], nodes[1])
	return nodes, ofB, ofA
}

// testReady: whichever side takes its time to connect, no write is too early: the
// library loses what comes to a queue pair that is not ready.
func testReady(t *testing.T) {
	controlOf(t)
	for _, devices := range [][]string{{"null0", "null1"}, {"null1", "null0"}} {
		_, ofB, ofA := joinNull(t, devices[:1], devices[1:], "ibv")
		require.Equal(t, devices[0], ofB.Device, "of this side")
		require.Equal(t, devices[1], ofA.Device, "of this side")
		require.Empty(t, ofB.Refused)
		require.Empty(t, ofA.Refused)
	}
}

// testWithoutQP: a device of one rank makes no queue pair: the next is taken.
func testWithoutQP(rank int) func(*testing.T) {
	return func(t *testing.T) {
		controlOf(t)
		devices := [][]string{{"null1"}, {"null1"}}
		devices[rank] = []string{"null0", "null1"}
		_, ofB, ofA := joinNull(t, devices[0], devices[1], "ibv", "tcp")
		for i, p := range []PeerStats{ofB, ofA} {
			require.Equal(t, "ibv", p.Provider)
			require.Equal(t, "null1", p.Device)
			if i != rank {
				require.Empty(t, p.Refused)
				continue
			}
			require.Len(t, p.Refused, 1)
			require.Equal(t, "null0", p.Refused[0].Device)
			require.Contains(t, p.Refused[0].Reason, "cannot allocate memory")
		}
	}
}

// testNoQP: no device makes one: both take tcp, and know why.
func testNoQP(t *testing.T) {
	controlOf(t)
	_, ofB, ofA := joinNull(t, nil, nil, "ibv", "tcp")
	for _, p := range []PeerStats{ofB, ofA} {
		require.Equal(t, "tcp", p.Provider)
	}
	require.Len(t, ofB.Refused, 1)
	require.Equal(t, "ibv", ofB.Refused[0].Provider)
	require.Contains(t, ofB.Refused[0].Reason, "cannot allocate memory")
	require.Empty(t, ofA.Refused, "nothing was proposed to it")
}

// testNoMemory: a device that no memory can be registered with is not used; it leaves
// nothing behind, and is when there is memory.
func testNoMemory(t *testing.T) {
	c := controlOf(t)
	c.RegErrno.Store(uint32(syscall.ENOMEM))
	nodes, ofB, ofA := joinNull(t, nil, nil, "ibv", "tcp")
	require.Equal(t, "tcp", ofB.Provider)
	require.Equal(t, "tcp", ofA.Provider)
	require.Contains(t, ofB.Refused[0].Reason, "cannot allocate memory")
	require.Zero(t, c.Live.Load())
	require.Len(t, nodes[0].networks, 1)
	c.RegErrno.Store(0)
	_, ofB, _ = joinNull(t, nil, nil, "ibv", "tcp")
	require.Equal(t, "ibv", ofB.Provider)
}

// testMemoryRunsOut: where no more memory can be registered in the middle of a job, what needs that fails, and says
// why; all else goes on, and so does this when there is room.
func testMemoryRunsOut(t *testing.T) {
	c := controlOf(t)
	nodes, ofB, _ := joinNull(t, nil, nil, "ibv")
	require.Equal(t, "ibv", ofB.Provider)
	const size = 100_000
	s, _ := send(t, nodes[0], 1, size)
	r, _ := receive(t, nodes[1], 0, size)
	pass(t, s, r, r)
	once := func() error { return nodes[0].Send(t.Context(), make([]byte, size), 1, OnStream(3)) }
	refused := func(err error) {
		t.Helper()
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 1, e.Rank)
		require.ErrorIs(t, err, verbs.ErrNoMemory)
		require.ErrorContains(t, err, "RLIMIT_MEMLOCK")
	}
	c.RegErrno.Store(uint32(syscall.ENOMEM))
	_, err := nodes[0].DeclareSend(Contiguous(make([]byte, size)), 1, OnStream(2))
	refused(err)
	refused(once())
	pass(t, s, r, r)
	c.RegErrno.Store(0)
	again := Must(nodes[0].DeclareSend(Contiguous(make([]byte, size)), 1, OnStream(2)))
	second, _ := receive(t, nodes[1], 0, size, OnStream(2))
	pass(t, again, second, second)
	third, _ := receive(t, nodes[1], 0, size, OnStream(3))
	require.NoError(t, third.Start())
	require.NoError(t, once())
	require.NoError(t, WaitAllContext(ranks.Within(t), third))
	require.NoError(t, again.Close())
}

// testOtherPair: what a pair of ports loses another brings: both sides know of the
// first.
func testOtherPair(t *testing.T) {
	controlOf(t)
	for _, devices := range [][2][]string{
		{{"null0"}, {"null1", "null0"}},
		{{"null1", "null0"}, {"null0"}},
	} {
		_, ofB, ofA := joinNull(t, devices[0], devices[1], "ibv", "tcp")
		for i, p := range []PeerStats{ofB, ofA} {
			require.Equal(t, "ibv", p.Provider)
			require.Equal(t, "null0", p.Device)
			require.Len(t, p.Refused, 1)
			require.Equal(t, devices[i][0], p.Refused[0].Device)
			require.Contains(t, p.Refused[0].Reason, "no write with immediate has come through: context deadline exceeded, with 10.0.0.1")
		}
	}
}

// testNoPair: where no pair works tcp is taken, after each has been tried once.
func testNoPair(t *testing.T) {
	controlOf(t)
	nodes, ofB, ofA := joinNull(t, []string{"null0"}, []string{"null1"}, "ibv", "tcp")
	for _, p := range []PeerStats{ofB, ofA} {
		require.Equal(t, "tcp", p.Provider)
		require.Len(t, p.Refused, 1)
	}
	require.Len(t, nodes[0].networks, 2)
	for _, d := range nodes[0].networks {
		require.Empty(t, d.registered.list)
	}
}

// testSubnets: a pair of ports of one subnet is tried before one that needs a router;
// the first port of each device is down.
func testSubnets(t *testing.T) {
	controlOf(t)
	_, ofB, ofA := joinNull(t, []string{"null0", "null1"}, []string{"null1", "null0"}, "ibv", "tcp")
	require.Equal(t, "null0", ofB.Device)
	require.Equal(t, "null0", ofA.Device)
	// There is no other: the router is asked for.
	_, ofB, ofA = joinNull(t, []string{"null0"}, []string{"null1"}, "ibv", "tcp")
	require.Equal(t, "null0", ofB.Device)
	require.Equal(t, "null1", ofA.Device)
	require.True(t, strings.Contains(fmt.Sprint(ofB.Refused), "rank 1: port 1 of null1 is DOWN\nport 2 of null1 is not in the subnet of fe80::"), ofB.Refused)
}

// testOneContext: a device is opened once, whatever addresses of it are asked for and
// in which order; links have the address that is asked for.
func testOneContext(t *testing.T) {
	controlOf(t)
	v, err := verbs.Find("null0")
	require.NoError(t, err)
	const own = "10.0.0.1" // that of the best GID
	for i, addresses := range [][]string{{own, "", own, "10.0.0.2", "fe80::1"}, {"", "10.0.0.2", own, "", "fe80::1"}, {"10.0.0.2", own, ""}} {
		nodes := join(t, 2, WithProviders("ibv"))
		n := nodes[i%2]
		first, err := n.device(port{Device: v, address: addresses[0], rdma: true})
		require.NoError(t, err)
		for _, address := range addresses {
			d, err := n.device(port{Device: v, address: address, rdma: true})
			require.NoError(t, err)
			require.True(t, d == first || address == "fe80::1", address) // of index 0, which cannot be asked for
			l, err := d.newLink(address)
			require.NoError(t, err)
			e, err := l.endpoint()
			require.NoError(t, err)
			require.Equal(t, cmp.Or(address, addresses[0], own), e.GID.Addr().String())
			require.NoError(t, l.close())
		}
	}
}

// testAddedAgain: a device that was unplugged, and is back, is opened anew.
func testAddedAgain(t *testing.T) {
	controlOf(t)
	nodes, _, _ := joinNull(t, nil, nil, "ibv")
	n := nodes[0]
	old := n.networks[0]
	old.fatal(verbs.EventDeviceFatal)
	p := old.port
	d, err := n.device(p)
	require.NoError(t, err)
	require.NotSame(t, old, d)
	again, err := n.device(p)
	require.NoError(t, err)
	require.Same(t, d, again)
}
