package verbstest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// place says where the two ends of a test are.
type place string

const (
	loopback  place = "loopback"  // both in one context
	contexts  place = "contexts"  // in two contexts of this process
	processes place = "processes" // the far end in another process
)

var everywhere = []place{loopback, contexts, processes}

// world is the environment of a test: two peers, near (always in this process) and far. Objects that
// the test makes are closed when it is over.
type world struct {
	t         *testing.T
	ctx       context.Context // ends in time, and with the test
	suite     *suite
	place     place
	near, far *peer
	beacon    *end // of near, connected with one of far: for roundTrips alone
	*notes
}

// notes are what a test keeps about itself.
type notes struct {
	mems  []*mem // allocated
	doing string // the current operation, for failure messages
}

// peer is a node, here or in another process.
type peer struct {
	name  string
	node  *node  // nil in another process
	child *child // nil here
}

// in runs test in each of the places, as subtests that leave nothing behind. If two processes are
// tested, two contexts of one process are left to long tests; for a local device, one context is left
// to them if two are tested. With -short it tests only processes.
func (s *suite) in(t *testing.T, places []place, test func(w *world)) {
	between := contexts
	if s.Local {
		between = loopback
	}
	for _, p := range places {
		if p == processes && s.Local || p == between && !need.WantLong() && (!s.Local || len(places) == len(everywhere)) {
			continue
		}
		if p != processes && testing.Short() && !s.Local && slices.Contains(places, processes) {
			continue
		}
		t.Run(string(p), func(t *testing.T) {
			if p == processes {
				require.NoError(t, s.spare.ready(s)) // it outlives the test
			}
			leak.Check(t)
			test(newWorld(t, s, p))
		})
	}
}

func newWorld(t *testing.T, s *suite, p place) *world {
	w := &world{t: t, ctx: t.Context(), suite: s, place: p, notes: &notes{}}
	near, err := openNode(s.Device, s.Config, s.Near)
	require.NoError(t, err)
	w.near = &peer{name: "near", node: near}
	t.Cleanup(func() { require.NoError(t, near.close(), "close near end") })
	w.far = w.another("far")
	w.beacon, _ = w.pair(qpSpec{SendWR: 1, RecvWR: 1}, usual)
	return w
}

// roundTrips makes the far end reply after everything sent to it before, and the near end receive the
// reply after everything sent by the far end: then every effect of the test has arrived. (It uses a
// separate connection, since that of the test is stalled or broken. An engine that serves both takes
// turns, so it makes three round trips.)
func (w *world) roundTrips() {
	w.t.Helper()
	b := *w.beacon
	b.w = w
	for id := range uint64(3) {
		b.post(signalled(id, verbs.OpRDMAWrite))
		b.want(sends, sent(id, verbs.OpRDMAWrite))
	}
}

// another makes one more peer in the place of the far one; the first other process is the spare one.
func (w *world) another(name string) *peer {
	p := &peer{name: name}
	spare := w.suite.spare
	kept := false
	var err error
	switch w.place {
	case loopback:
		p.node, err = w.near.node.beside()
	case contexts:
		p.node, err = openNode(w.suite.Device, w.suite.Config, w.suite.Far)
	case processes:
		if p.child, spare.idle = spare.idle, nil; p.child != nil {
			kept = true
		} else {
			p.child, err = startChild(w.suite)
		}
		if err == nil {
			err = p.child.open(w.ctx, w.suite)
		}
	}
	require.NoError(w.t, err, "open %s end", name)
	w.t.Cleanup(func() {
		if p.node != nil {
			require.NoError(w.t, p.node.close(), "close %s end", name)
			return
		}
		select {
		case <-p.child.ended: // killed by the test
		default:
			ctx, cancel := context.WithTimeout(context.Background(), bound)
			defer cancel()
			if !kept {
				require.NoError(w.t, p.child.close(ctx), "close %s end", name)
				return
			}
			if err := p.child.leave(ctx); err != nil {
				p.child.kill()
				require.NoError(w.t, err, "close %s end", name)
			}
			spare.idle = p.child
		}
	})
	return p
}

// needElements skips a test if the device does not support n elements in a request.
func (w *world) needElements(n int) {
	w.t.Helper()
	need.Capability(w.t, fmt.Sprintf("%d elements of a request", n), w.suite.attr.MaxSGE >= n)
}

// run runs a subtest with the same peers. Objects that it makes are closed at its end.
func (w *world) run(name string, test func(w *world)) {
	w.t.Run(name, func(t *testing.T) {
		sub := *w
		sub.t, sub.ctx, sub.notes = t, withinRounds(t, w.suite.Rounds), &notes{}
		for _, p := range []*peer{w.near, w.far} {
			mark := call[int](&sub, p, markCmd(0))
			t.Cleanup(func() {
				if !p.gone() {
					sub.ctx = context.Background()
					do(&sub, p, releaseCmd{mark})
				}
			})
		}
		test(&sub)
	})
}

func (p *peer) gone() bool {
	if p.child == nil {
		return false
	}
	select {
	case <-p.child.ended:
		return true
	default:
		return false
	}
}

// begin starts a command; the function it returns waits for its end.
func (p *peer) begin(ctx context.Context, c command) func() (any, error) {
	if p.child != nil {
		return p.child.begin(ctx, c)
	}
	type result struct {
		v   any
		err error
	}
	ch := make(chan result, 1)
	go func() {
		v, err := c.run(ctx, p.node)
		ch <- result{v, err}
	}()
	return func() (any, error) {
		r := <-ch
		return r.v, r.err
	}
}

func (p *peer) do(ctx context.Context, c command) (any, error) {
	if p.child != nil {
		return p.child.begin(ctx, c)()
	}
	return c.run(ctx, p.node)
}

// do executes a command that has no result; it must succeed.
func do(w *world, p *peer, c command) {
	w.t.Helper()
	_, err := p.do(w.ctx, c)
	require.NoError(w.t, err, "%s end: %T%+v", p.name, c, c)
}

// try executes a command.
func try[R any](w *world, p *peer, c command) (R, error) {
	v, err := p.do(w.ctx, c)
	r, _ := v.(R) // nil with most errors
	return r, err
}

// call executes a command that must succeed.
func call[R any](w *world, p *peer, c command) R {
	w.t.Helper()
	r, err := try[R](w, p, c)
	require.NoError(w.t, err, "%s end: %T%+v", p.name, c, c)
	return r
}

// mem is a region of a peer, and the image of what must be in it.
type mem struct {
	memInfo
	w      *world
	p      *peer
	image  []byte
	closed bool
}

// kind is how memory was registered.
type kind bool

const (
	own  kind = false // by AllocMR
	heap kind = true  // by RegMR, from the Go heap
)

func (k kind) String() string {
	if k == heap {
		return "heap"
	}
	return "own"
}

// alloc registers size zero bytes of a peer.
func (w *world) alloc(p *peer, size int, access verbs.AccessFlags, k kind) *mem {
	w.t.Helper()
	return w.allocate(p, allocCmd{Size: size, Access: access, Heap: bool(k)})
}

func (w *world) allocate(p *peer, c allocCmd) *mem {
	w.t.Helper()
	m := &mem{memInfo: call[memInfo](w, p, c), w: w, p: p, image: make([]byte, c.Size)}
	w.mems = append(w.mems, m)
	return m
}

// verify compares all regions of the test that are open with their images.
func (w *world) verify(format string, args ...any) {
	w.t.Helper()
	w.compare(slices.DeleteFunc(slices.Clone(w.mems), func(m *mem) bool { return m.closed }), format, args...)
}

// compare compares regions with their images, every byte of them. Another process is
// asked once for all of its regions.
func (w *world) compare(ms []*mem, format string, args ...any) {
	w.t.Helper()
	same := func(m *mem, got []byte) {
		w.t.Helper()
		if !bytes.Equal(m.image, got) {
			require.Fail(w.t, m.p.name+" memory: "+difference(m.image, got), "%s", fmt.Sprintf(format, args...))
		}
	}
	there := map[*peer][]*mem{}
	for _, m := range ms {
		if m.p.node == nil {
			there[m.p] = append(there[m.p], m)
			continue
		}
		same(m, m.p.node.objs[m.ID].mr.Bytes())
	}
	for p, ms := range there {
		var c digestCmd
		for _, m := range ms {
			c.IDs = append(c.IDs, m.ID)
		}
		for i, got := range call[[]sum](w, p, c) {
			if got != sha256.Sum256(ms[i].image) {
				same(ms[i], call[[]byte](w, p, dumpCmd{ms[i].ID}))
				require.Fail(w.t, p.name+" memory changes while it is compared", "%s", fmt.Sprintf(format, args...))
			}
		}
	}
}

// fill writes a pattern over the whole region.
func (m *mem) fill(seed uint64) *mem {
	m.w.t.Helper()
	do(m.w, m.p, fillCmd{m.ID, seed})
	pattern(m.image, seed)
	return m
}

// poke writes data at off.
func (m *mem) poke(off int, data []byte) {
	m.w.t.Helper()
	do(m.w, m.p, pokeCmd{m.ID, off, data})
	copy(m.image[off:], data)
}

// expect says that data will be found at off.
func (m *mem) expect(off int, data []byte) { copy(m.image[off:], data) }

// adopt accepts n bytes at off as they are: a failed operation may have written any part of them.
func (m *mem) adopt(off, n int) {
	m.w.t.Helper()
	copy(m.image[off:off+n], call[[]byte](m.w, m.p, dumpCmd{m.ID})[off:])
}

// verify compares the memory with the image, every byte of it.
func (m *mem) verify(format string, args ...any) {
	m.w.t.Helper()
	m.w.compare([]*mem{m}, format, args...)
}

// sge is the element for n bytes at off.
func (m *mem) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: m.Addr + uint64(off), Length: uint32(n), LKey: m.LKey}
}

// at is the remote address of off.
func (m *mem) at(off int) uint64 { return m.Addr + uint64(off) }

// close deregisters the region.
func (m *mem) close() {
	m.w.t.Helper()
	do(m.w, m.p, closeCmd{m.ID})
	m.closed = true
}

// end is a queue pair of a peer.
type end struct {
	qpInfo
	w    *world
	p    *peer
	spec qpSpec
	to   *end // that it is connected with
}

// open makes a queue pair.
func (w *world) open(p *peer, spec qpSpec) *end {
	w.t.Helper()
	return &end{qpInfo: call[qpInfo](w, p, openCmd{spec}), w: w, p: p, spec: spec}
}

// pair makes a queue pair of each peer, and connects the two.
func (w *world) pair(spec qpSpec, conn connSpec) (near, far *end) {
	w.t.Helper()
	near, far = w.open(w.near, spec), w.open(w.far, spec)
	near.connect(far, conn)
	far.connect(near, conn)
	return near, far
}

func (e *end) connect(to *end, conn connSpec) {
	e.w.t.Helper()
	e.to = to
	do(e.w, e.p, connectCmd{e.ID, to.Endpoint, conn})
}

// qp is the queue pair itself, of a peer in this process.
func (e *end) qp() *verbs.QP { return e.p.node.objs[e.ID].qp }

// cq is one of its completion queues.
func (e *end) cq(w which) *verbs.CQ { return e.p.node.objs[e.ID].cqOf(w) }

// tryPost posts sends, tryRecv receives; they return how many were taken.
func (e *end) tryPost(wrs ...verbs.SendWR) (int, error) {
	return try[int](e.w, e.p, postCmd{e.ID, wrs})
}
func (e *end) tryRecv(wrs ...verbs.RecvWR) (int, error) {
	return try[int](e.w, e.p, recvCmd{e.ID, wrs})
}

// post posts sends, all of which must be taken.
func (e *end) post(wrs ...verbs.SendWR) {
	e.w.t.Helper()
	n, err := e.tryPost(wrs...)
	require.NoError(e.w.t, err, "%s end: post %d sends", e.p.name, len(wrs))
	require.Equal(e.w.t, len(wrs), n, "%s end: sends taken", e.p.name)
}

// recv posts receives, all of which must be taken.
func (e *end) recv(wrs ...verbs.RecvWR) {
	e.w.t.Helper()
	n, err := e.tryRecv(wrs...)
	require.NoError(e.w.t, err, "%s end: post %d receives", e.p.name, len(wrs))
	require.Equal(e.w.t, len(wrs), n, "%s end: receives taken", e.p.name)
}

// take waits for count completions.
func (e *end) take(which which, count int) []verbs.WC {
	e.w.t.Helper()
	wcs, err := try[[]verbs.WC](e.w, e.p, awaitCmd{e.ID, which, count})
	require.NoError(e.w.t, err, "%s end, %s CQ, %s: got %+v", e.p.name, which, e.w.doing, wcs)
	return wcs
}

// want waits for exactly these completions, in this order. QPNum, and on
// receives SrcQP, are filled in. Of a failed operation WRID, Status and QPNum
// count, and the opcode of a send.
func (e *end) want(which which, want ...verbs.WC) {
	e.w.t.Helper()
	got := e.take(which, len(want))
	for i := range want {
		e.same(which, want[i], got[i], fmt.Sprintf("%s end, %s completion %d %s", e.p.name, which, i, e.w.doing))
	}
}

func (e *end) same(which which, want, got verbs.WC, what string) {
	e.w.t.Helper()
	want.QPNum = e.QPNum
	if want.Status != verbs.WCSuccess {
		if which == recvs {
			want.Opcode = got.Opcode
		}
		want = verbs.WC{WRID: want.WRID, Status: want.Status, Opcode: want.Opcode, QPNum: want.QPNum}
		got = verbs.WC{WRID: got.WRID, Status: got.Status, Opcode: got.Opcode, QPNum: got.QPNum}
	} else if which == recvs {
		want.SrcQP = e.to.QPNum
	} else {
		got.SrcQP = 0 // says nothing new about a send
	}
	require.Equal(e.w.t, want, got, what)
}

// quiet requires that nothing completes of what the test has caused so far.
func (e *end) quiet(which which) {
	e.w.t.Helper()
	e.w.roundTrips()
	wcs := call[[]verbs.WC](e.w, e.p, pollCmd{e.ID, which})
	require.Empty(e.w.t, wcs, "%s end, %s CQ: completions that should not be there", e.p.name, which)
}

// query returns the attributes.
func (e *end) query() verbs.QPAttr {
	e.w.t.Helper()
	return call[verbs.QPAttr](e.w, e.p, queryCmd{e.ID})
}

// wantState requires a state now.
func (e *end) wantState(want verbs.QPState) {
	e.w.t.Helper()
	got := e.query().QPState
	require.Equal(e.w.t, want, got, "%s end: state %v, want %v", e.p.name, got, want)
}

// unharmed requires that the queue pair, whose peer is in ERR for a reason of its own, either does not
// know (hardware has no message for that) or has gone to ERR as well, flushing its posted receives.
func (e *end) unharmed(posted ...uint64) {
	e.w.t.Helper()
	e.w.roundTrips()
	require.Contains(e.w.t, []verbs.QPState{verbs.QPRTS, verbs.QPErr}, e.query().QPState)
	e.setState(verbs.QPErr) // as it may be
	const last = 1 << 32
	e.recv(receive(last))
	for _, id := range append(posted, last) {
		e.want(recvs, failedRecv(id, verbs.WCWRFlushErr))
	}
}

// modify changes attributes.
func (e *end) modify(attr verbs.QPAttr, mask verbs.QPAttrMask) {
	e.w.t.Helper()
	do(e.w, e.p, modifyCmd{e.ID, attr, mask})
}

// setState changes the state alone.
func (e *end) setState(s verbs.QPState) {
	e.w.t.Helper()
	e.modify(verbs.QPAttr{QPState: s}, verbs.MaskState)
}

// event waits for an asynchronous event of the queue pair.
func (e *end) event(t verbs.EventType) {
	e.w.t.Helper()
	do(e.w, e.p, eventCmd{e.ID, t})
}

// Work requests and completions that many tests use.

// signalled is a send work request that makes a completion.
func signalled(id uint64, op verbs.Opcode, sges ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{WRID: id, Opcode: op, Flags: verbs.SendSignaled, SGList: sges}
}

// onto aims a work request at off of a region.
func onto(wr verbs.SendWR, m *mem, off int) verbs.SendWR {
	wr.RKey, wr.RemoteAddr = m.RKey, m.at(off)
	return wr
}

// receive is a receive work request.
func receive(id uint64, sges ...verbs.SGE) verbs.RecvWR { return verbs.RecvWR{WRID: id, SGList: sges} }

// sent is the completion of a send work request that carries no length.
func sent(id uint64, op verbs.Opcode) verbs.WC { return verbs.WC{WRID: id, Opcode: op.WCOpcode()} }

// failed is the completion of a send work request that failed.
func failed(id uint64, op verbs.Opcode, s verbs.WCStatus) verbs.WC {
	return verbs.WC{WRID: id, Opcode: op.WCOpcode(), Status: s}
}

// failedRecv is the completion of a receive that failed.
func failedRecv(id uint64, s verbs.WCStatus) verbs.WC { return verbs.WC{WRID: id, Status: s} }

// received is the completion of a receive of n bytes.
func received(id uint64, n int) verbs.WC {
	return verbs.WC{WRID: id, Opcode: verbs.WCRecv, ByteLen: uint32(n)}
}
