package roce

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// A packet whose PSN a peer of this library cannot use now has no effect: nothing is acknowledged or
// resent, and the window stays as it is.
func TestFarPackets(t *testing.T) {
	t.Parallel()
	need.Full(t)
	for _, c := range []struct {
		name    string
		foreign bool
		op      packet.Opcode
		off     uint32 // from what is expected next
		effect  bool
	}{
		{"duplicate", false, packet.SendOnly, ^uint32(9), true},
		{"old", false, packet.SendOnly, ^uint32(9999), false},
		{"old, of an adapter", true, packet.SendOnly, ^uint32(9999), true},
		{"gap", false, packet.SendOnly, 10, true},
		{"far ahead", false, packet.SendOnly, 10_000, false},
		{"far ahead, of an adapter", true, packet.SendOnly, 10_000, true},
		{"congestion", false, packet.CNP, ^uint32(0), true},
		{"forged congestion", false, packet.CNP, 10_000, false},
		{"congestion, of an adapter", true, packet.CNP, 10_000, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, a, _ := pair(t, 1, faults{foreign: c.foreign}, usual, 16)
			q := a.qp
			q.Lock.Lock()
			defer q.Unlock()
			at := q.rsp.expect
			if c.op == packet.CNP {
				at = q.req.una
			}
			h := packet.Header{Opcode: c.op, AckReq: true, DestQP: q.Num, PSN: (at + c.off) & psnMask}
			window := q.req.pace.window
			q.take(nil, &h, nil, &arrival{src: q.flow.remote}, n.now)
			require.Equal(t, c.effect, q.rsp.ackDue || q.rsp.nakDue || q.rsp.held.n > 0 || q.req.pace.window < window)
			q.silence()
		})
	}
}

// A peer of this library sends from the port that it receives at: packets from another port of its
// host have no effect. Adapters send from any port.
func TestSourcePort(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		n, a, _ := pair(t, 1, faults{foreign: foreign}, usual, 16)
		q := a.qp
		q.Lock.Lock()
		h := packet.Header{Opcode: packet.WriteOnly, AckReq: true, DestQP: q.Num, PSN: q.rsp.expect & psnMask}
		q.take(nil, &h, nil, &arrival{src: netip.AddrPortFrom(q.flow.remote.Addr(), q.flow.remote.Port()+1)}, n.now)
		require.Equal(t, foreign, q.rsp.ackDue, "foreign %v", foreign)
		q.silence()
		q.Unlock()
	}
}

// An identification that no packet of this library has means that the packet is corrupt elsewhere: it
// is dropped. Adapters may use any.
func TestIdentifications(t *testing.T) {
	t.Parallel()
	for _, foreign := range []bool{false, true} {
		for _, id := range []uint16{0, mostID - 1, mostID, 0xffff} {
			t.Run(fmt.Sprintf("foreign %v/%d", foreign, id), func(t *testing.T) {
				n, a, b := pair(t, 1, faults{foreign: foreign}, usual, 16)
				b.recv(t, 1, 0, 0)
				at, w := b.qp.rsp.expect, b.a.wire.(*memory)
				h := packet.Header{Opcode: packet.SendOnly, Migrated: true, PKey: packet.DefaultPKey, DestQP: b.qp.Num, PSN: at & psnMask}
				w.inbox = append(w.inbox, flying{src: a.a.wire.local(), id: id, b: a.qp.flow.route.Seal(h.Append(nil), id)})
				n.step()
				want := at
				if foreign || id < mostID {
					want++
				}
				require.Equal(t, want, b.qp.rsp.expect)
			})
		}
	}
}
