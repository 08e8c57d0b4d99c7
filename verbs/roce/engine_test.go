package roce

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// side is one end of a connection in a network.
type side struct {
	a      *adapter
	pd     *pd
	cq     *cq
	qp     *qp
	mem    *mr // what the peer reaches, and sends are received into
	local  *mr // what is sent from, read into, and atomics return to
	done   []verbs.WC
	posted int
}

// sideSize is enough for what most tests move, and for the random operations of most MTUs.
const sideSize = 1 << 20

// spare holds the memory of closed sides: new memory is faulted in page by page, which takes longer
// than most tests.
var spare struct {
	sync.Mutex
	list [][]byte
}

// memoryOf returns n zero bytes until the test ends.
func memoryOf(t testing.TB, n int) (b []byte) {
	spare.Lock()
	defer spare.Unlock()
	if i := slices.IndexFunc(spare.list, func(b []byte) bool { return len(b) == n }); i >= 0 {
		b = spare.list[i]
		spare.list = slices.Delete(spare.list, i, i+1)
		clear(b)
	} else {
		b = make([]byte, n)
	}
	t.Cleanup(func() {
		spare.Lock()
		spare.list = append(spare.list, b)
		spare.Unlock()
	})
	return b
}

func newSide(t testing.TB, a *adapter, deep int) *side { return newSideOf(t, a, deep, sideSize) }

// newSideOf makes one with so many bytes of each memory.
func newSideOf(t testing.TB, a *adapter, deep, size int) *side {
	s := &side{a: a}
	p, err := s.a.AllocPD()
	require.NoError(t, err)
	s.pd = p.(*pd)
	c, err := s.a.CreateCQ(16*deep, nil)
	require.NoError(t, err)
	s.cq = c.(*cq)
	s.mem, s.local = s.region(t, size), s.region(t, size)
	s.open(t, deep)
	t.Cleanup(func() {
		require.NoError(t, s.qp.Close())
		require.NoError(t, s.mem.Close())
		require.NoError(t, s.local.Close())
		require.NoError(t, s.a.Close())
	})
	return s
}

func (s *side) open(t testing.TB, deep int) {
	q, err := s.pd.CreateQP(verbs.ProviderQPInit{SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: deep, MaxRecvWR: 8 * deep, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}})
	require.NoError(t, err)
	s.qp = q.(*qp)
}

func (s *side) region(t testing.TB, n int) *mr {
	m, err := s.pd.RegMR(memoryOf(t, n), verbs.AccessAll)
	require.NoError(t, err)
	return m.(*mr)
}

// terms of a connection.
type terms struct {
	mtu               verbs.MTU
	timeout, rnrTimer uint8
	retries, rnr      uint8
	reads             uint8
	each              bool // an acknowledgement for each message
}

var usual = terms{mtu: verbs.MTU1024, timeout: 14, rnrTimer: 1, retries: 7, rnr: 7, reads: 16}

func (s *side) connect(t testing.TB, to *side, c terms, foreign bool) {
	const rtr = verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN | verbs.MaskMaxDestRdAtomic | verbs.MaskMinRNRTimer
	const rts = verbs.MaskState | verbs.MaskSQPSN | verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskMaxQPRdAtomic
	require.NoError(t, s.qp.Modify(&verbs.QPAttr{QPState: verbs.QPInit, PortNum: 1, AccessFlags: verbs.AccessAll},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccessFlags))
	remote := to.a.wire.local()
	lid := remote.Port()
	if foreign {
		lid = 0
	}
	own, err := s.qp.Query()
	require.NoError(t, err)
	theirs, err := to.qp.Query()
	require.NoError(t, err)
	require.NoError(t, s.qp.Modify(&verbs.QPAttr{QPState: verbs.QPRTR, PathMTU: c.mtu, DestQPNum: to.qp.Num, RQPSN: theirs.SQPSN,
		MaxDestRdAtomic: c.reads, MinRNRTimer: c.rnrTimer,
		AHAttr: verbs.AHAttr{DGID: verbs.GIDFromAddr(remote.Addr()), DLID: lid, PortNum: 1, IsGlobal: true}}, rtr))
	require.NoError(t, s.qp.Modify(&verbs.QPAttr{QPState: verbs.QPRTS, SQPSN: own.SQPSN, Timeout: c.timeout, RetryCnt: c.retries,
		RNRRetry: c.rnr, MaxRdAtomic: c.reads}, rts))
}

// pair makes a network with two sides that are connected.
func pair(t testing.TB, seed uint64, f faults, c terms, deep int) (*network, *side, *side) {
	n := newNetwork(seed, f)
	size := max(sideSize, 512*c.mtu.Bytes()) // see player.size
	a, b := newSideOf(t, n.node(), deep, size), newSideOf(t, n.node(), deep, size)
	a.connect(t, b, c, f.foreign)
	b.connect(t, a, c, f.foreign)
	a.a.ackEach, b.a.ackEach = c.each, c.each
	return n, a, b
}

// poll takes what is complete.
func (s *side) poll(t testing.TB) {
	var wcs [16]verbs.WC
	for {
		n, err := s.cq.Poll(wcs[:])
		require.NoError(t, err)
		s.done = append(s.done, wcs[:n]...)
		if n == 0 {
			return
		}
	}
}

func (s *side) post(t testing.TB, wr verbs.SendWR) {
	wr.Flags |= verbs.SendSignaled
	n, err := s.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	s.posted++
}

func (s *side) recv(t testing.TB, id uint64, off, n int) {
	k, err := s.qp.PostRecv([]verbs.RecvWR{{WRID: id, SGList: []verbs.SGE{s.sge(s.mem, off, n)}}})
	require.NoError(t, err)
	require.Equal(t, 1, k)
}

func (s *side) sge(m *mr, off, n int) verbs.SGE {
	return verbs.SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.LKey()}
}

// until steps until ok, and fails when nothing happens any more or virtual time is up.
func (n *network) until(t testing.TB, limit time.Duration, ok func() bool) {
	t.Helper()
	end, idle := n.now+int64(limit), 0
	for !ok() {
		if idle++; n.step() {
			idle = 0
		}
		if idle == 100 {
			require.FailNow(t, "nothing happens any more", n.describe())
		}
		if n.now >= end {
			require.FailNow(t, "not in time", "not within %v; %d packets sent, %d dropped%s", limit, n.sent, n.dropped, n.describe())
		}
	}
}

// networks lists the faults under which the properties hold; with -short, the last three.
var networks = []struct {
	name string
	f    faults
}{
	{"perfect", faults{}},
	{"delay", faults{delay: 50 * time.Microsecond, bytesPerSecond: 1e9}},
	{"drops 1 in 100", faults{drop: 0.01, delay: 20 * time.Microsecond}},
	{"drops 1 in 10", faults{drop: 0.1, delay: 20 * time.Microsecond}},
	{"doubles", faults{double: 0.2, delay: 20 * time.Microsecond}},
	{"breaks", faults{corrupt: 0.05, delay: 20 * time.Microsecond}},
	{"marks", faults{mark: 0.05, delay: 20 * time.Microsecond, bytesPerSecond: 1e9}},
	{"reorders", faults{reorder: 0.1, delay: 20 * time.Microsecond}},
	{"everything", faults{drop: 0.03, double: 0.05, reorder: 0.05, corrupt: 0.02, mark: 0.02, delay: 30 * time.Microsecond, bytesPerSecond: 2e9}},
}

// TestOperations: whatever the network does, every operation is executed correctly, in order, once,
// and touches nothing else. Both sides send at the same time.
func TestOperations(t *testing.T) {
	t.Parallel()
	all := networks
	if testing.Short() {
		all = all[len(all)-3:]
	}
	for _, c := range all {
		for _, foreign := range []bool{false, true} {
			for _, mtu := range []verbs.MTU{verbs.MTU256, verbs.MTU1024, verbs.MTU4096} {
				// The other MTUs over a network that does everything, and in TestSoak.
				if mtu != verbs.MTU1024 && (testing.Short() || c.name != all[len(all)-1].name && !need.WantLong()) {
					continue
				}
				t.Run(fmt.Sprintf("%s/foreign %v/%d", c.name, foreign, mtu.Bytes()), func(t *testing.T) {
					rounds := need.InLong(1, 2)
					for seed := range uint64(rounds) {
						f, how := c.f, usual
						f.foreign, how.mtu = foreign, mtu
						operations(t, seed, f, how, 60, false)
					}
				})
			}
		}
	}
}

// TestSoak is the same with random networks, terms and hosts, including hosts that repeatedly have no
// CPU for a while. The first seeds are those that have found bugs.
func TestSoak(t *testing.T) {
	t.Parallel()
	seeds, more := []uint64{940, 1589, 2109, 2176}, uint64(120)
	switch {
	case testing.Short():
		seeds, more = seeds[:1], 3
	case !need.WantLong():
		more = 20
	}
	for seed := range more {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 99))
		f, how := networks[rng.IntN(len(networks))].f, usual
		f.foreign = rng.IntN(2) == 0
		how.reads = []uint8{1, 2, 4, 16}[rng.IntN(4)]
		how.mtu = []verbs.MTU{verbs.MTU256, verbs.MTU1024, verbs.MTU4096}[rng.IntN(3)]
		how.each = rng.IntN(2) == 0
		stall := rng.IntN(2) == 0
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Logf("%+v, %+v, stalls %v", f, how, stall)
			operations(t, seed, f, how, 80, stall)
		})
	}
}

// op is a posted operation, and its expected result.
type op struct {
	wr   verbs.SendWR
	want verbs.WC
	old  uint64 // atomics: what they return
	off  int    // of the local memory
	n    int
}

// player posts random operations of one side, and knows their expected results.
type player struct {
	*side
	peer       *player
	rng        *rand.Rand
	ops        []op
	wantRecv   []verbs.WC
	wantMem    []byte // of mem
	wantLocal  []byte // of local
	off        int    // next unused byte, of both
	recvs      int    // posted
	sends      int    // that need a receive
	counter    uint64 // at the beginning of the peer's memory
	recvOffset []int  // of the receives that the peer's sends take
}

func newPlayer(t testing.TB, s *side, seed uint64) *player {
	p := &player{side: s, rng: rand.New(rand.NewPCG(seed, 7)), wantMem: memoryOf(t, len(s.mem.Buf)), wantLocal: memoryOf(t, len(s.local.Buf)), off: 64}
	rand.NewChaCha8([32]byte{byte(seed)}).Read(p.local.Buf)
	copy(p.wantLocal, p.local.Buf)
	return p
}

// size draws one, most of all around multiples of the MTU.
func (p *player) size() int {
	mtu := p.qp.mtu
	switch p.rng.IntN(4) {
	case 0:
		return p.rng.IntN(70)
	case 1:
		return p.rng.IntN(20 * mtu)
	default:
		return max(0, mtu*p.rng.IntN(6)+p.rng.IntN(5)-2)
	}
}

// next posts one more operation.
func (p *player) next(t testing.TB) {
	id := uint64(len(p.ops))
	n := p.size()
	o := op{off: p.off, n: n}
	p.off += (n + 15) &^ 7
	o.wr = verbs.SendWR{WRID: id, Opcode: verbs.Opcode(p.rng.IntN(7)), Imm: p.rng.Uint32(), RKey: p.peer.mem.RKey(), RemoteAddr: p.peer.mem.Addr() + uint64(o.off)}
	if p.rng.IntN(8) == 0 {
		o.wr.Flags |= verbs.SendFence
	}
	local := p.local.Buf[o.off : o.off+n]
	o.want = verbs.WC{WRID: id, Opcode: o.wr.Opcode.WCOpcode(), QPNum: p.qp.Num, SrcQP: p.peer.qp.Num}
	recv := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(n), QPNum: p.peer.qp.Num, SrcQP: p.qp.Num}
	switch o.wr.Opcode {
	case verbs.OpRDMAWriteWithImm, verbs.OpSendWithImm:
		recv.Flags, recv.Imm = verbs.WCWithImm, o.wr.Imm
	}
	switch o.wr.Opcode {
	case verbs.OpRDMAWriteWithImm:
		recv.Opcode = verbs.WCRecvRDMAWithImm
		fallthrough
	case verbs.OpRDMAWrite:
		copy(p.peer.wantMem[o.off:], local)
	case verbs.OpSend, verbs.OpSendWithImm:
		copy(p.peer.wantMem[o.off:], local)
	case verbs.OpRDMARead:
		// From the same place of the peer's memory, which is never written.
		o.want.ByteLen = uint32(n)
		for i := range n {
			b := byte(p.rng.Uint32())
			p.peer.mem.Buf[o.off+i], p.peer.wantMem[o.off+i], p.wantLocal[o.off+i] = b, b, b
		}
	default:
		o.n, o.want.ByteLen, o.old = 8, 8, p.counter
		o.wr.RemoteAddr = p.peer.mem.Addr() // the counter
		switch {
		case o.wr.Opcode == verbs.OpAtomicFetchAndAdd:
			o.wr.CompareAdd = p.rng.Uint64()
			p.counter += o.wr.CompareAdd
		case p.rng.IntN(2) == 0:
			o.wr.CompareAdd, o.wr.Swap = p.counter, p.rng.Uint64()
			p.counter = o.wr.Swap
		default:
			o.wr.CompareAdd, o.wr.Swap = p.counter+1, p.rng.Uint64()
		}
		binary.NativeEndian.PutUint64(p.wantLocal[o.off:], o.old)
	}
	switch o.wr.Opcode {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWriteWithImm:
		recv.WRID = uint64(p.sends)
		p.sends++
		p.peer.wantRecv = append(p.peer.wantRecv, recv)
		p.peer.recvOffset = append(p.peer.recvOffset, o.off)
	}
	o.wr.SGList = []verbs.SGE{p.sge(p.local, o.off, o.n)}
	if k := o.n / 3; k > 0 && o.wr.Opcode < verbs.OpAtomicCmpAndSwp {
		o.wr.SGList = []verbs.SGE{p.sge(p.local, o.off, k), p.sge(p.local, o.off+k, o.n-k)}
	} else if o.n <= 64 && o.wr.Opcode < verbs.OpRDMARead && p.rng.IntN(2) == 0 {
		o.wr.Flags |= verbs.SendInline
	}
	p.ops = append(p.ops, o)
	p.post(t, o.wr)
}

// receive posts the next receive that the peer needs, if there is one.
func (p *player) receive(t testing.TB) {
	if p.recvs < len(p.wantRecv) {
		n := int(p.wantRecv[p.recvs].ByteLen)
		p.side.recv(t, uint64(p.recvs), p.recvOffset[p.recvs], n+p.rng.IntN(2))
		p.recvs++
	}
}

// operations makes both sides execute so many random operations. With stall, one or the other has no
// CPU now and then, for up to 8 ms: longer than the timers.
func operations(t *testing.T, seed uint64, f faults, how terms, count int, stall bool) {
	const deep = 16
	n, a, b := pair(t, seed, f, how, deep)
	p, q := newPlayer(t, a, seed), newPlayer(t, b, seed+100)
	p.peer, q.peer = q, p
	both := []*player{p, q}
	sends := func(p *player) (k int) {
		for _, wc := range p.done {
			if wc.Opcode&verbs.WCRecv == 0 {
				k++
			}
		}
		return k
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	n.until(t, 60*time.Second, func() bool {
		if stall && n.now >= n.back && rng.IntN(200) == 0 {
			n.away, n.back = both[rng.IntN(2)].a, n.now+int64(rng.IntN(8_000_000))
		}
		over := true
		for _, p := range both {
			if n.stalls(p.a) {
				over = false
				continue
			}
			p.poll(t)
			if len(p.ops) < count && len(p.ops)-sends(p) < deep && n.rng.IntN(2) == 0 {
				p.next(t)
			}
			if n.rng.IntN(3) == 0 {
				p.receive(t)
			}
			over = over && len(p.ops) == count && len(p.done) == count+len(p.wantRecv)
		}
		n.now += 1000 // also while there is nothing to wait for but the dice
		return over
	})
	for _, p := range both {
		var sent, received []verbs.WC
		for _, wc := range p.done {
			if wc.Opcode&verbs.WCRecv == 0 {
				sent = append(sent, wc)
			} else {
				received = append(received, wc)
			}
		}
		for i := range p.ops {
			require.Equal(t, p.ops[i].want, sent[i], "seed %d", seed)
		}
		require.Equal(t, p.wantRecv, received, "seed %d", seed)
		binary.NativeEndian.PutUint64(p.wantMem, p.peer.counter)
		require.True(t, string(p.wantMem) == string(p.mem.Buf), "seed %d: memory", seed)
		require.True(t, string(p.wantLocal) == string(p.local.Buf), "seed %d: local memory", seed)
	}
}
