package roce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// The first and the last valid number, and their neighbours.

// PSNs of the wire are taken for the nearest number, across every wrap.
func TestExtend(t *testing.T) {
	for _, c := range []struct{ psn, near, want uint32 }{
		{5, 5, 5},
		{1, psnMask, 1<<24 + 1},
		{psnMask, 1 << 24, psnMask},
		{psnMask, 0, 1<<32 - 1},
		{0, 1<<32 - 1, 0},
		{1<<23 - 1, 0, 1<<23 - 1},
		{1 << 23, 0, 1<<32 - 1<<23}, // half of all: behind
		{1<<23 + 6, 7 << 24, 6<<24 + 1<<23 + 6},
	} {
		require.Equal(t, c.want, extend(c.psn, c.near), "%#x near %#x", c.psn, c.near)
	}
	for _, a := range []uint32{0, 1, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		require.False(t, before(a, a))
		require.True(t, before(a, a+1))
		require.False(t, before(a+1, a))
	}
}

// A repeated request gets a response if it is for the original range or a part of it, and for nothing
// else.
func TestDuplicateBounds(t *testing.T) {
	_, _, b := pair(t, 1, faults{}, usual, 16)
	p := &b.qp.rsp
	const key, addr = 7, 1 << 20
	p.records[0] = record{first: 100, n: 4, rkey: key, addr: addr, length: 4000}
	p.records[1] = record{first: 104, n: 4, rkey: key, addr: addr, length: 4096}
	p.records[2] = record{first: 108, n: 1, atomic: true, original: 9}
	p.recordN = 3
	read := func(at, n uint32) packet.Header {
		return packet.Header{Opcode: packet.ReadRequest, RKey: key, VA: addr + uint64(at), Length: n}
	}
	other := read(0, 4000)
	other.RKey++
	for _, c := range []struct {
		name string
		psn  uint32
		h    packet.Header
		n    uint32 // packets that are sent again
	}{
		{"all", 100, read(0, 4000), 4},
		{"the first packet", 100, read(0, 1024), 1},
		{"the last packet", 103, read(3072, 928), 1},
		{"a byte more", 103, read(3072, 929), 0},
		{"all and a byte more", 100, read(0, 4001), 0},
		{"from a byte on", 100, read(1, 1000), 0},
		{"another key", 100, other, 0},
		{"before the first", 99, read(0, 0), 0},
		{"all of full packets", 104, read(0, 4096), 4},
		{"nothing, behind the last", 108, read(4096, 0), 0},
		{"an atomic", 108, packet.Header{Opcode: packet.FetchAdd}, 1},
		{"an atomic, behind the last", 109, packet.Header{Opcode: packet.FetchAdd}, 0},
		{"an atomic, for a read", 107, packet.Header{Opcode: packet.CompareSwap}, 0},
	} {
		p.answers.n = 0
		b.qp.duplicate(c.psn, &c.h)
		if c.n == 0 {
			require.Zero(t, p.answers.n, c.name)
			continue
		}
		require.Equal(t, 1, p.answers.n, c.name)
		require.Equal(t, []uint32{c.psn, c.n}, []uint32{p.answers.front().first, p.answers.front().n}, c.name)
	}
	p.answers.n = 0
}

// As many requests may wait for responses as the responder has records, and are sent as the peer
// allows. The next one is refused; the refusal is repeated for it and later ones, while earlier ones
// are acknowledged.
func TestRequestBounds(t *testing.T) {
	for _, reads := range []uint8{1, 16} {
		how := usual
		how.reads = reads
		n, a, b := pair(t, 1, faults{drop: 1}, how, 32)
		for range 20 {
			a.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{a.sge(a.local, 0, 8)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
		}
		require.EqualValues(t, reads, a.qp.req.askedN)
		require.EqualValues(t, reads, n.sent)

		p := &b.qp.rsp
		h := packet.Header{Opcode: packet.ReadRequest, VA: b.mem.Addr(), RKey: b.mem.RKey(), Length: 8}
		for i := range p.records {
			b.qp.question(nil, &h)
			require.Equal(t, []any{false, i + 1}, []any{p.refusal, p.answers.n}, "request %d of %d", i, len(p.records))
		}
		b.qp.question(nil, &h)
		require.True(t, p.refusal)
		require.Equal(t, p.expect, p.refuseAt)
		h.Opcode = packet.WriteOnly
		for d, want := range map[uint32][2]bool{^uint32(0): {false, true}, 0: {true, false}, 1: {true, false}} { // refused, acknowledged
			p.nakDue, p.ackDue = false, false
			h.PSN = (p.refuseAt + d) & psnMask
			b.qp.requested(nil, &h, nil)
			require.Equal(t, want, [2]bool{p.nakDue, p.ackDue}, "%d behind the refused", int32(d))
		}
	}
}

// A receive accepts a message of its length, but not one a byte longer.
func TestReceiveLength(t *testing.T) {
	for size, want := range map[int]verbs.WCStatus{2000: verbs.WCSuccess, 2001: verbs.WCLocLenErr} {
		n, a, b := pair(t, 1, faults{}, usual, 16)
		for i := range 2001 {
			a.local.Buf[i] = 0xff
		}
		b.recv(t, 1, 0, 2000)
		a.post(t, verbs.SendWR{Opcode: verbs.OpSend, SGList: []verbs.SGE{a.sge(a.local, 0, size)}})
		n.until(t, time.Second, func() bool { a.poll(t); b.poll(t); return len(a.done) == 1 && len(b.done) == 1 })
		require.Equal(t, want, b.done[0].Status, "%d bytes", size)
		require.Zero(t, b.mem.Buf[2000])
	}
}

// Packets behind a gap are held as far as the window reaches.
func TestHeldBounds(t *testing.T) {
	_, _, b := pair(t, 1, faults{}, usual, 16)
	at := b.qp.rsp.expect
	h := packet.Header{Opcode: packet.WriteOnly}
	require.True(t, b.qp.hold(at+1, &h, nil))
	require.True(t, b.qp.hold(at+windowPackets-1, &h, nil))
	require.False(t, b.qp.hold(at+windowPackets, &h, nil))
	require.False(t, b.qp.hold(at+1, &h, make([]byte, b.qp.mtu+1)))
	require.Equal(t, 2, b.qp.rsp.held.n)
	var bits [4]uint64
	b.qp.rsp.held.tell(&bits, at)
	require.Equal(t, [4]uint64{0: 1, 3: 1 << 62}, bits)
}

// Only packets in flight can be acknowledged, arrive or be reported unreachable.
func TestOnItsWay(t *testing.T) {
	n, a, b := pair(t, 1, faults{drop: 1}, usual, 16)
	r := &a.qp.req
	first := r.una
	a.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{a.sge(a.local, 0, 4000)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
	require.Equal(t, first+4, r.max)
	for d, want := range []bool{false, true, true, true, true, false} {
		require.Equal(t, want, a.qp.onItsWay((first+uint32(d)-1)&psnMask), "packet %d", d-1)
	}
	say := func(psn uint32, h packet.Header) {
		h.PSN = psn & psnMask
		a.qp.answered(nil, &h, nil, n.now)
	}
	say(first+4, packet.Header{Opcode: packet.Acknowledge, Syndrome: packet.SyndromeACK})
	require.Equal(t, first, r.una, "acknowledged what was not sent")
	say(first+1, packet.Header{Opcode: packet.Selective, Arrived: [4]uint64{^uint64(0) &^ 1}})
	require.Equal(t, first+1, r.una)
	for d, want := range []bool{false, false, true, false} { // the second of them, and none that was not sent
		require.Equal(t, want, r.has(first+1+uint32(d)), "packet %d", d+1)
	}
	require.Equal(t, first+4, r.sackHigh)
	say(first+3, packet.Header{Opcode: packet.Acknowledge, Syndrome: packet.SyndromeACK})
	a.poll(t)
	require.Len(t, a.done, 1)
	require.NoError(t, a.done[0].Err())
}

// A peer of this library hears which packets behind a gap have arrived, any other only of the gap.
func TestToldArrived(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		n, a, b := pair(t, 1, faults{delay: time.Microsecond, foreign: foreign}, usual, 16)
		r := &a.qp.req
		first, arrived := r.una, false
		n.lose = n.sent + 2
		for range 4 {
			a.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{a.sge(a.local, 0, 8)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
		}
		n.until(t, time.Second, func() bool {
			a.poll(t)
			arrived = arrived || !r.has(first+1) && r.has(first+2) && r.has(first+3)
			return len(a.done) == 4
		})
		require.Equal(t, !foreign, arrived)
		require.Equal(t, 1, n.dropped)
	}
}

// An acknowledgement of the oldest packets is no sign that the next were overtaken.
func TestNotOvertaken(t *testing.T) {
	n, a, b := pair(t, 1, faults{drop: 1}, usual, 16)
	r := &a.qp.req
	first := r.una
	a.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{a.sge(a.local, 0, 4000)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
	newest := r.newest
	a.qp.answered(nil, &packet.Header{PSN: first & psnMask, Opcode: packet.Acknowledge, Syndrome: packet.SyndromeACK}, nil, n.now)
	require.Equal(t, first+1, r.una)
	require.Equal(t, newest, r.newest)
}

// A round trip ends with the acknowledgement of its packet, and not of the one before.
func TestTimedPacket(t *testing.T) {
	p := newPace(100)
	p.timed(5, 1000)
	_, ok := p.sample(5, 2000)
	require.True(t, !ok && p.timing)
	rtt, ok := p.sample(6, 3000)
	require.True(t, ok && !p.timing)
	require.EqualValues(t, 2000, rtt)
}
