package roce

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// Only missing data of a read is requested again, from an adapter to the end of the part, and that does
// not take a timeout each time.
func TestLossyReads(t *testing.T) {
	t.Parallel()
	need.Full(t)
	for _, c := range []struct {
		drop    float64
		foreign bool
		places  int     // that are read to in turn
		share   float64 // of the packets that are needed, what is sent at most
	}{{0.01, false, 8, 1.15}, {0.01, true, 8, 1.3}, {0.05, false, 8, 1.3}, {0.01, false, 1, 1.15}, {0.05, false, 1, 1.3}} {
		t.Run(fmt.Sprintf("%v lost, foreign %v, %d places", c.drop, c.foreign, c.places), func(t *testing.T) {
			n, a, b := pair(t, 1, faults{drop: c.drop, delay: 20 * time.Microsecond, foreign: c.foreign}, usual, 16)
			const size = 64 << 10
			for n.now < int64(40*time.Millisecond) {
				a.poll(t)
				for a.posted-len(a.done) < 8 {
					a.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{a.sge(a.local, a.posted%c.places*size, size)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
				}
				require.True(t, n.step())
			}
			for _, wc := range a.done {
				require.NoError(t, wc.Err())
			}
			require.Greater(t, len(a.done), 500)
			require.Less(t, float64(n.sent), c.share*float64(len(a.done)*size/1024))
		})
	}
}

// Data behind a gap is placed before the missing data. If that never arrives, no request behind it has
// succeeded.
func TestReadBehindFailure(t *testing.T) {
	n, a, b := pair(t, 1, faults{delay: time.Microsecond}, usual, 16)
	for i := range 3 {
		a.post(t, verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{a.sge(a.local, 100*i, 100)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
	}
	n.until(t, time.Second, func() bool { return n.flying[0].to == a.a.wire })
	n.flying = n.flying[1:] // the response to the first
	n.until(t, time.Second, func() bool { return a.qp.req.reads == 1 })
	n.faults.drop = 1
	n.until(t, time.Minute, func() bool { a.poll(t); return len(a.done) == 3 })
	for i, want := range []verbs.WCStatus{verbs.WCRetryExcErr, verbs.WCWRFlushErr, verbs.WCWRFlushErr} {
		require.EqualValues(t, i, a.done[i].WRID)
		require.Equal(t, want, a.done[i].Status, "read %d", i)
	}
}

// Of two reads to the same memory, or of two elements of one, the later prevails, even if its data
// arrives first.
func TestReadOver(t *testing.T) {
	for _, size := range []int{100, 5000} {
		n, a, b := pair(t, 1, faults{delay: time.Microsecond}, usual, 16)
		for i := range b.mem.Buf {
			b.mem.Buf[i] = byte(i / size)
		}
		for i := range 3 {
			a.post(t, verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{a.sge(a.local, i, size/2), a.sge(a.local, i, size/2)},
				RemoteAddr: b.mem.Addr() + uint64(i*size), RKey: b.mem.RKey()})
		}
		n.until(t, time.Second, func() bool { return n.flying[0].to == a.a.wire })
		n.flying = n.flying[1:] // the first response to the first
		n.until(t, time.Minute, func() bool { a.poll(t); return len(a.done) == 3 })
		for i, wc := range a.done {
			require.NoError(t, wc.Err())
			require.EqualValues(t, i, wc.WRID)
			require.EqualValues(t, i, a.local.Buf[i], "byte %d", i)
		}
		require.EqualValues(t, 2, a.local.Buf[size/2+1])
	}
}

// A response that does not match its request fails the request, and writes nothing.
func TestBadResponses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		h    packet.Header
		n    int
		ok   bool
	}{
		{"first", packet.Header{Opcode: packet.ReadFirst}, 1024, true},
		{"middle", packet.Header{Opcode: packet.ReadMiddle}, 1024, false},
		{"last", packet.Header{Opcode: packet.ReadLast}, 1024, false},
		{"only", packet.Header{Opcode: packet.ReadOnly}, 1024, false},
		{"short", packet.Header{Opcode: packet.ReadFirst}, 1000, false},
		{"not ready", packet.Header{Opcode: packet.ReadFirst, Syndrome: packet.SyndromeRNR}, 1024, false},
		{"refused", packet.Header{Opcode: packet.ReadFirst, Syndrome: packet.SyndromeAccess}, 1024, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, a, b := pair(t, 1, faults{foreign: true, drop: 1}, usual, 16)
			psn := a.qp.req.nxt
			a.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{a.sge(a.local, 0, 3000)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
			n.faults.drop = 0
			payload := make([]byte, c.n)
			for i := range payload {
				payload[i] = 0xff
			}
			c.h.DestQP, c.h.PSN = a.qp.Num, psn&psnMask
			n.forge(b, a, c.h, payload)
			n.deliver()
			a.poll(t)
			if c.ok {
				require.Empty(t, a.done)
				require.EqualValues(t, 0xff, a.local.Buf[1023])
				return
			}
			require.Len(t, a.done, 1)
			require.Equal(t, verbs.WCBadRespErr, a.done[0].Status)
			require.Zero(t, a.local.Buf[0])
		})
	}
}
