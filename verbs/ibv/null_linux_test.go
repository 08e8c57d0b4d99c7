//go:build cgo

package ibv_test

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/ibv"
)

// The tests below use our own libibverbs (testdata/null.c), in separate processes, because a process
// opens the library once: this binary, started again with the library and its switches in the
// environment.

// nullEnv marks such a process.
const nullEnv = "SLUICE_IBV_NULL"

type nullTest struct {
	name  string
	test  func(*testing.T)
	env   []string // switches of null.c
	lacks string   // a symbol that the library has not
}

func TestNull(t *testing.T) {
	if os.Getenv(nullEnv) != "" {
		for _, n := range nullTests {
			t.Run(n.name, func(t *testing.T) {
				leak.Check(t)
				n.test(t)
			})
		}
		return
	}
	// Tests with the same library and switches share a process.
	var groups [][]nullTest
	for _, n := range nullTests {
		i := slices.IndexFunc(groups, func(g []nullTest) bool { return g[0].lacks == n.lacks && slices.Equal(g[0].env, n.env) })
		if i < 0 {
			i, groups = len(groups), append(groups, nil)
		}
		groups[i] = append(groups[i], n)
	}
	object := compileNull(t)
	libs := map[string]string{}
	for _, g := range groups {
		lacks := g[0].lacks
		if lacks != "" && testing.Short() {
			continue // a library more
		}
		if libs[lacks] == "" {
			libs[lacks] = linkNull(t, object, lacks)
		}
		var names []string
		for _, n := range g {
			names = append(names, n.name)
		}
		out := ranks.Again(t, "^TestNull$/^("+strings.Join(names, "|")+")$", append(g[0].env, nullEnv+"=1", ibv.EnvLibrary+"="+libs[lacks]))
		for _, name := range names {
			t.Run(name, func(t *testing.T) { require.Contains(t, out, "--- PASS: TestNull/"+name+" ") })
		}
	}
}

// nullFlags are those of the compiler for the library.
func nullFlags() []string {
	flags := []string{"-O2", "-Wall", "-Wno-parentheses", "-fPIC"}
	if need.ASan {
		flags = append(flags, "-g", "-fsanitize=address")
	}
	return flags
}

// compileNull compiles the library, and returns the object file for [linkNull]: libraries differ only
// in their symbols.
func compileNull(t testing.TB) string {
	object := filepath.Join(t.TempDir(), "null.o")
	compile(t, append(nullFlags(), "-c", "-o", object, "null.c")...)
	return object
}

// linkNull makes a library, and returns its file.
func linkNull(t testing.TB, object, lacks string) string {
	const symbols = "null.map"
	dir := t.TempDir()
	m, err := os.ReadFile(filepath.Join("testdata", symbols))
	require.NoError(t, err)
	if lacks != "" {
		line := "\t\t" + lacks + ";\n"
		require.Contains(t, string(m), line)
		m = []byte(strings.Replace(string(m), line, "\t\tother;\n", 1))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, symbols), m, 0o600))
	lib := filepath.Join(dir, "libnull.so")
	compile(t, append(nullFlags(), "-shared", "-Wl,--version-script="+filepath.Join(dir, symbols), "-o", lib, object)...)
	return lib
}

// control is struct control of null.c, in the memory of that library.
type control struct {
	PostsLeft, PostErrno, FailIn, FailStatus, RegErrno, DeregErrno, PollErrno, AsyncErrno atomic.Uint32
	RegAccess, RegCall, LastCQ, LastSRQ, AsyncFD, Live, Longest, AskedErr, Late, Polls    atomic.Uint32
}

const unlimited = 1<<32 - 1

// null is an open null device.
type null struct {
	t   testing.TB
	ctx *verbs.Context
	pd  *verbs.PD
	ctl *control
	mem []byte
	mr  *verbs.MR
}

// openNull opens a device. When the test ends, the device is closed, with all objects still open, and
// nothing may be left in the library.
func openNull(t testing.TB, name string, cfg verbs.Config) *null {
	d, err := verbs.Find(name)
	require.NoError(t, err)
	ctx, err := d.Open(cfg)
	require.NoError(t, err)
	a, err := ctx.QueryDevice()
	require.NoError(t, err)
	at, err := strconv.ParseUint(a.FWVer, 0, 64)
	require.NoError(t, err, "not the null device: firmware %q", a.FWVer)
	n := &null{t: t, ctx: ctx, ctl: *(**control)(unsafe.Pointer(&at))}
	t.Cleanup(func() {
		n.close()
		// The next test of the process finds the library in its initial state.
		for _, c := range []*atomic.Uint32{
			&n.ctl.PostErrno, &n.ctl.FailIn, &n.ctl.FailStatus, &n.ctl.RegErrno, &n.ctl.DeregErrno, &n.ctl.PollErrno,
			&n.ctl.AsyncErrno, &n.ctl.Longest, &n.ctl.Late,
		} {
			c.Store(0)
		}
		n.ctl.PostsLeft.Store(unlimited)
	})
	n.pd, err = ctx.AllocPD()
	require.NoError(t, err)
	n.mr, err = n.pd.AllocMR(1<<16, verbs.AccessAll)
	require.NoError(t, err)
	n.mem = n.mr.Bytes()
	return n
}

// close closes the context, unless the test has.
func (n *null) close() {
	if n.ctx == nil {
		return
	}
	before := n.ctl.Live.Load()
	require.NoError(n.t, n.ctx.Close())
	require.Less(n.t, n.ctl.Live.Load(), before)
	n.ctx = nil
}

// raise makes the device send an asynchronous event.
func (n *null) raise(e verbs.EventType, number uint32) {
	rec := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, uint32(e)), number)
	_, err := unix.Write(int(n.ctl.AsyncFD.Load()), rec)
	require.NoError(n.t, err)
}

// event waits for an asynchronous event.
func (n *null) event() verbs.AsyncEvent {
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	e, err := n.ctx.AsyncEvent(ctx)
	require.NoError(n.t, err)
	return e
}

func (n *null) cq(cqe int, ch *verbs.CompChannel) *verbs.CQ {
	q, err := n.ctx.CreateCQ(cqe, ch)
	require.NoError(n.t, err)
	return q
}

var usualCap = verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 64}

// qp creates a queue pair; zero fields of init get defaults.
func (n *null) qp(init verbs.QPInitAttr) *verbs.QP {
	if init.SendCQ == nil {
		init.SendCQ = n.cq(1024, nil)
	}
	if init.RecvCQ == nil {
		init.RecvCQ = init.SendCQ
	}
	if init.Cap == (verbs.QPCap{}) {
		init.Cap = usualCap
	}
	q, err := n.pd.CreateQP(init)
	require.NoError(n.t, err)
	return q
}

func connect(t testing.TB, a, b *verbs.QP) {
	attach(t, a, b)
	attach(t, b, a)
}

// attach connects a queue pair, without involving the other one.
func attach(t testing.TB, q, to *verbs.QP) {
	e, err := to.Endpoint()
	require.NoError(t, err)
	require.NoError(t, q.Connect(e, verbs.ConnectAttr{}))
}

// end is a queue pair and the completion queue of its sends and receives.
type end struct {
	*null
	qp *verbs.QP
	cq *verbs.CQ
}

// pair makes two ends, connected.
func (n *null) pair(init verbs.QPInitAttr) (a, b end) {
	for _, e := range []*end{&a, &b} {
		e.null, e.cq = n, n.cq(1024, nil)
		init.SendCQ, init.RecvCQ = e.cq, e.cq
		e.qp = n.qp(init)
	}
	connect(n.t, a.qp, b.qp)
	return a, b
}

func (e end) post(wrs ...verbs.SendWR) {
	n, err := e.qp.PostSend(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

func (e end) recv(wrs ...verbs.RecvWR) {
	n, err := e.qp.PostRecv(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

// poll takes all completions that there are.
func (e end) poll() []verbs.WC { return pollAll(e.t, e.cq) }

func pollAll(t testing.TB, cq *verbs.CQ) []verbs.WC {
	var all []verbs.WC
	wcs := make([]verbs.WC, 100)
	for {
		n, err := cq.Poll(wcs)
		require.NoError(t, err)
		if n == 0 {
			return all
		}
		all = append(all, wcs[:n]...)
	}
}

// sge returns the element for n bytes of the memory at off.
func (n *null) sge(off, length int) []verbs.SGE { return []verbs.SGE{n.mr.SGE(off, length)} }

// write is a signalled RDMA_WRITE of 8 bytes.
func (n *null) write(id uint64) verbs.SendWR {
	return verbs.SendWR{WRID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: n.sge(0, 8), RemoteAddr: n.mr.Addr() + 4096, RKey: n.mr.RKey()}
}

// series makes n work requests with ids from first.
func series[T any](n int, first uint64, of func(id uint64) T) []T {
	var l []T
	for i := range n {
		l = append(l, of(first+uint64(i)))
	}
	return l
}

// ids returns the WRIDs of completions, all of which must be successful.
func ids(t testing.TB, wcs []verbs.WC) []uint64 {
	var l []uint64
	for _, wc := range wcs {
		require.NoError(t, wc.Err())
		l = append(l, wc.WRID)
	}
	return l
}

func same(id uint64) uint64 { return id }
