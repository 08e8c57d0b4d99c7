package roce

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// A peer that does not answer is declared dead after four times timeout and retries, within the
// timer's resolution.
func TestGiveUp(t *testing.T) {
	for _, c := range []struct{ timeout, retries uint8 }{{8, 0}, {8, 1}, {12, 3}, {14, 7}} {
		how := usual
		how.timeout, how.retries = c.timeout, c.retries
		n, a, _ := pair(t, 1, faults{drop: 1}, how, 16)
		begin := n.now
		a.post(t, verbs.SendWR{WRID: 5, Opcode: verbs.OpSend})
		a.post(t, verbs.SendWR{WRID: 6, Opcode: verbs.OpRDMARead})
		n.until(t, time.Minute, func() bool { a.poll(t); return len(a.done) == 2 })
		ack := verbs.AckTimeout(c.timeout)
		took := time.Duration(n.now - begin)
		require.GreaterOrEqual(t, took, 4*ack*time.Duration(c.retries+1))
		require.LessOrEqual(t, took, 4*ack*time.Duration(c.retries+1)+2*ack)
		require.Equal(t, verbs.WCRetryExcErr, a.done[0].Status)
		require.EqualValues(t, vendorSilent, a.done[0].VendorErr)
		require.Equal(t, verbs.WCWRFlushErr, a.done[1].Status)
		require.Equal(t, verbs.QPErr, a.qp.State())
	}
}

// A message without a receive is retried as often as the counter says, each time after the delay that
// the receiver requests.
func TestReceiverNotReady(t *testing.T) {
	for _, retries := range []uint8{0, 1, 5} {
		how := usual
		how.rnr, how.rnrTimer = retries, 14 // 1.28 ms
		n, a, b := pair(t, 1, faults{delay: time.Microsecond}, how, 16)
		begin := n.now
		a.post(t, verbs.SendWR{Opcode: verbs.OpSend})
		n.until(t, time.Minute, func() bool { a.poll(t); return len(a.done) == 1 })
		require.Equal(t, verbs.WCRNRRetryExcErr, a.done[0].Status)
		delay := time.Duration(n.now - begin)
		want := time.Duration(retries) * verbs.RNRTimer(14)
		require.GreaterOrEqual(t, delay, want)
		// When nothing is left to happen, the clock is at the next timer that was set.
		require.Less(t, delay, want+time.Duration(retries+1)*10*time.Microsecond+leastTimeout)
		require.Equal(t, verbs.QPRTS, b.qp.State())
	}
}

// An RNR NAK duplicated by the network counts once: the requester retries as often as it may.
func TestReceiverNotReadyDoubled(t *testing.T) {
	how := usual
	how.rnr, how.rnrTimer = 2, 14 // 1.28 ms
	n, a, b := pair(t, 1, faults{delay: time.Microsecond, double: 1}, how, 16)
	begin, posted := n.now, false
	a.post(t, verbs.SendWR{Opcode: verbs.OpSend})
	n.until(t, time.Minute, func() bool {
		// After the first repeat, before the second, which is the last.
		if !posted && n.now-begin > int64(verbs.RNRTimer(14))*3/2 {
			b.recv(t, 1, 0, 10)
			posted = true
		}
		a.poll(t)
		return len(a.done) == 1
	})
	require.NoError(t, a.done[0].Err())
}

// Between an RNR NAK and the retry no timer is due, whatever was missing before.
func TestReceiverNotReadyBehindGap(t *testing.T) {
	how := usual
	how.rnrTimer = 14 // 1.28 ms
	n, a, b := pair(t, 1, faults{delay: time.Microsecond}, how, 16)
	b.recv(t, 1, 0, 10)
	a.post(t, verbs.SendWR{Opcode: verbs.OpSend})
	n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 1 }) // a round trip is known
	n.faults.drop = 1
	a.post(t, verbs.SendWR{Opcode: verbs.OpSend})
	n.faults.drop = 0
	for range 4 {
		a.post(t, verbs.SendWR{Opcode: verbs.OpSend})
	}
	n.until(t, time.Second, func() bool { return a.qp.req.rnrUntil != 0 })
	for steps := 0; a.qp.req.rnrUntil != 0; steps++ {
		require.Less(t, steps, 20, n.describe())
		n.step()
	}
	for range 5 {
		b.recv(t, 1, 0, 10)
	}
	n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 6 })
	for _, wc := range a.done {
		require.NoError(t, wc.Err())
	}
}

// forge sends b a packet that looks like one of a's queue pair, from any address.
func (n *network) forge(from, to *side, h packet.Header, payload []byte) {
	h.Migrated, h.PKey, h.Pad = true, cmp.Or(h.PKey, packet.DefaultPKey), packet.PadOf(len(payload)) // P_Key 0 is the default one
	w := from.a.wire.(*memory)
	var f flow
	f.set(w.addr, to.a.wire.local())
	b := w.frame(&f, h.Opcode.HeaderLen()+len(payload)+int(h.Pad))
	h.Append(b[:0])
	copy(b[h.Opcode.HeaderLen():], payload)
	w.flush()
}

// Forged packets, with right or wrong numbers, any opcode and any contents, write nothing outside a
// registered region; a queue pair whose numbers they do not have is not affected.
func TestForged(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(9, 9))
	rounds := 400
	switch {
	case testing.Short():
		rounds = 30
	case !need.WantLong():
		rounds = 100
	}
	for round := range rounds {
		n, a, b := pair(t, uint64(round), faults{}, usual, 16)
		guard := make([]byte, 64<<10) // registered: the inner half
		inner, err := b.pd.RegMR(guard[16<<10:48<<10], verbs.AccessAll)
		require.NoError(t, err)
		b.recv(t, 1, 0, 5000)
		for range 30 {
			h := packet.Header{Opcode: packet.Opcode(rng.IntN(0x18)), DestQP: b.qp.Num, PSN: b.qp.rsp.expect + uint32(rng.IntN(7)-3),
				AckReq: rng.IntN(2) == 0, Syndrome: uint8(rng.Uint32()), Imm: rng.Uint32(),
				VA: inner.Addr() + uint64(rng.IntN(64<<10)) - 16<<10, RKey: inner.RKey(), Length: uint32(rng.IntN(40 << 10))}
			switch rng.IntN(12) {
			case 0:
				h.Opcode = packet.Selective
				h.Arrived[rng.IntN(4)] = rng.Uint64()
			case 1:
				h.Opcode = packet.Gone
				h.Imm = a.qp.Num
			case 2:
				h.RKey = rng.Uint32()
			case 3:
				h.Length = rng.Uint32()
			case 4:
				h.VA = rng.Uint64()
			case 5:
				h.PSN = rng.Uint32()
			}
			if !h.Opcode.Known() {
				continue
			}
			var payload []byte
			if h.Opcode != packet.ReadRequest && (h.Opcode <= packet.WriteOnlyImm || h.Opcode >= packet.ReadFirst && h.Opcode <= packet.ReadOnly) {
				payload = make([]byte, []int{0, 1, 1024, rng.IntN(5000)}[rng.IntN(4)])
				for i := range payload {
					payload[i] = 0xff
				}
			}
			n.forge(a, b, h, payload)
			n.step()
		}
		for i, x := range guard {
			if x != 0 && (i < 16<<10 || i >= 48<<10) {
				require.Zero(t, x, "byte %d written, round %d", i, round)
			}
		}
		b.poll(t)
		require.NoError(t, inner.Close())
	}
}

// A stranger that floods a port, or that does not know the numbers, does not affect a connection.
func TestStrangers(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 3))
	n, a, b := pair(t, 1, faults{delay: time.Microsecond}, usual, 16)
	c := newSide(t, n.node(), 4)
	for i := range 200 {
		a.post(t, verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpAtomicFetchAndAdd, CompareAdd: 1, RKey: b.mem.RKey(), RemoteAddr: b.mem.Addr(),
			SGList: []verbs.SGE{a.sge(a.local, 0, 8)}})
		for range 20 {
			h := packet.Header{Opcode: packet.FetchAdd, DestQP: b.qp.Num, PSN: b.qp.rsp.expect, VA: b.mem.Addr(), RKey: b.mem.RKey(), SwapAdd: 1 << 32}
			switch rng.IntN(4) {
			case 0: // the right numbers from another address
			case 1:
				h.DestQP = rng.Uint32() >> 8
			case 2:
				h.Opcode = packet.Gone
				h.Imm, h.DestQP, h.PSN = b.qp.Num, a.qp.Num, a.qp.req.una
			case 3:
				h.Opcode, h.Syndrome = packet.Acknowledge, packet.SyndromeAccess
				h.DestQP, h.PSN = a.qp.Num, a.qp.req.una
			}
			n.forge(c, []*side{a, b}[rng.IntN(2)], h, nil)
		}
		n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == i+1 })
		require.NoError(t, a.done[i].Err())
		require.EqualValues(t, i, binary.NativeEndian.Uint64(a.local.Buf))
	}
	require.EqualValues(t, 200, binary.NativeEndian.Uint64(b.mem.Buf))
}

// A request repeated after its response has arrived and its memory is gone does not affect the
// connection; a requester that still waits for the response is refused.
func TestLateRepeat(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("answer lost %v", lost), func(t *testing.T) {
			n, a, b := pair(t, 1, faults{delay: time.Microsecond}, usual, 16)
			inner := b.region(t, 5000)
			first := a.qp.req.nxt
			a.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{a.sge(a.local, 0, 5000)}, RemoteAddr: inner.Addr(), RKey: inner.RKey()})
			if lost {
				n.faults.drop = 1
			}
			n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 1 || n.dropped > 0 })
			require.NoError(t, inner.Close())
			n.faults.drop = 0
			n.forge(a, b, packet.Header{Opcode: packet.ReadRequest, DestQP: b.qp.Num, PSN: first & psnMask, AckReq: true,
				VA: inner.Addr(), RKey: inner.RKey(), Length: 5000}, nil)
			if lost {
				n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 1 })
				require.Equal(t, verbs.WCRemAccessErr, a.done[0].Status)
			} else {
				a.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{a.sge(a.local, 0, 8)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
				n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 2 })
				require.NoError(t, a.done[1].Err())
			}
			require.Equal(t, verbs.QPRTS, b.qp.State())
		})
	}
}

// Whichever packet of some atomics, RDMA READs and a write between them is lost, request,
// response or acknowledgement: each is executed once, and in order.
func TestEachPacketLost(t *testing.T) {
	t.Parallel()
	need.Full(t)
	for _, foreign := range []bool{false, true} {
		for lose, last := 0, 1; lose <= last; lose++ { // 0: none, which says how many there are
			t.Run(fmt.Sprintf("foreign %v/%d", foreign, lose), func(t *testing.T) {
				n, a, b := pair(t, 1, faults{delay: time.Microsecond, foreign: foreign}, usual, 16)
				n.lose = lose
				rand.NewChaCha8([32]byte{1}).Read(b.mem.Buf[8 : 64<<10])
				rand.NewChaCha8([32]byte{2}).Read(a.local.Buf[:64<<10])
				binary.NativeEndian.PutUint64(b.mem.Buf, 5)
				post := func(wr verbs.SendWR, at, off, size int) {
					wr.RemoteAddr, wr.RKey, wr.SGList = b.mem.Addr()+uint64(at), b.mem.RKey(), []verbs.SGE{a.sge(a.local, off, size)}
					a.post(t, wr)
				}
				add, read := verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, CompareAdd: 1}, verbs.SendWR{Opcode: verbs.OpRDMARead}
				post(add, 0, 0, 8)
				post(read, 64, 64, 20_000)
				post(verbs.SendWR{Opcode: verbs.OpRDMAWrite}, 40_000, 40_000, 3000)
				post(verbs.SendWR{Opcode: verbs.OpAtomicCmpAndSwp, CompareAdd: 6, Swap: 9}, 0, 8, 8)
				post(read, 40_000, 50_000, 3000)
				post(add, 0, 16, 8)
				n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == a.posted })
				for _, wc := range a.done {
					require.NoError(t, wc.Err())
				}
				for i, want := range []uint64{5, 6, 9} {
					require.Equal(t, want, binary.NativeEndian.Uint64(a.local.Buf[8*i:]), "atomic %d", i)
				}
				require.EqualValues(t, 10, binary.NativeEndian.Uint64(b.mem.Buf))
				require.True(t, string(b.mem.Buf[64:20_064]) == string(a.local.Buf[64:20_064]))
				require.True(t, string(a.local.Buf[40_000:43_000]) == string(a.local.Buf[50_000:53_000]))
				if lose == 0 {
					last = n.sent
				} else {
					require.Equal(t, 1, n.dropped)
				}
			})
		}
	}
}

// Responses arrive after the timer, all at once, when the requests have been repeated and new ones
// follow them. Each request is executed once.
func TestLateAnswers(t *testing.T) {
	const deep = 16
	n, a, b := pair(t, 1, faults{delay: time.Microsecond}, usual, deep)
	count := 0
	post := func() {
		for i := range deep {
			a.post(t, verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, CompareAdd: 1, RKey: b.mem.RKey(), RemoteAddr: b.mem.Addr(),
				SGList: []verbs.SGE{a.sge(a.local, 8*i, 8)}})
		}
		count += deep
	}
	done := func() bool { a.poll(t); return len(a.done) == count }
	post()
	n.until(t, time.Second, done)

	post()
	n.now += 1000
	n.deliver()
	n.faults.delay = 5 * time.Millisecond // of the answers
	b.a.drive()
	n.faults.delay = time.Microsecond
	for end := n.now + int64(time.Second); !done(); { // while b does not run
		n.now += 100_000
		require.Less(t, n.now, end)
		n.deliver()
		a.a.expire(n.now, math.MaxInt)
	}
	n.now += 2000
	n.deliver()
	require.GreaterOrEqual(t, len(b.a.wire.(*memory).inbox), deep, "no repeats wait at b")
	post()
	n.now += 2000
	n.deliver()
	n.until(t, time.Second, done)
	for i, wc := range a.done {
		require.NoError(t, wc.Err(), "atomic %d", i)
	}
	require.EqualValues(t, count, binary.NativeEndian.Uint64(b.mem.Buf))
}

// Of the 32 bits of PSNs here, 24 are on the wire: a connection goes on when those wrap.
func TestWrap(t *testing.T) {
	t.Parallel()
	need.Full(t)
	for _, start := range []uint32{psnMask - 3, psnMask - 300, 0} {
		t.Run(fmt.Sprintf("%#x", start), func(t *testing.T) {
			n := newNetwork(1, faults{drop: 0.02, delay: time.Microsecond})
			a, b := newSide(t, n.node(), 16), newSide(t, n.node(), 16)
			a.qp.Attr.SQPSN, b.qp.Attr.SQPSN = start, start
			a.connect(t, b, usual, false)
			b.connect(t, a, usual, false)
			rand.NewChaCha8([32]byte{1}).Read(a.local.Buf)
			const size = sideSize / 3 // more than 300 packets
			a.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{a.sge(a.local, 0, size)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
			a.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{a.sge(a.local, 2*size, size)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
			n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 2 })
			require.Equal(t, string(a.local.Buf[:size]), string(a.local.Buf[2*size:3*size]))
		})
	}
}
