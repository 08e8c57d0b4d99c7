package roce

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// FuzzArrivals gives a connected queue pair with work outstanding any packets that its peer could
// send. In the input a length byte precedes each. In the first ones the destination, a PSN near the
// expected one, the key and the address are filled in, so that not all are dropped. No unregistered
// memory is written, and posted work completes at most once.
func FuzzArrivals(f *testing.F) {
	seed := func(hs ...packet.Header) {
		var b []byte
		for _, h := range hs {
			p := h.Append(nil)
			b = append(append(b, byte(len(p))), p...)
		}
		f.Add(b)
	}
	seed(packet.Header{Opcode: packet.WriteFirst, Length: 2048}, packet.Header{Opcode: packet.WriteLast, PSN: 1})
	seed(packet.Header{Opcode: packet.Acknowledge, Syndrome: packet.SyndromeRNR}, packet.Header{Opcode: packet.ReadRequest, Length: 99})
	seed(packet.Header{Opcode: packet.Selective, Syndrome: packet.SyndromeSequence, Arrived: [4]uint64{5}}, packet.Header{Opcode: packet.ReadOnly, PSN: 2})
	seed(packet.Header{Opcode: packet.SendOnly, Carries: true, Carried: 3}, packet.Header{Opcode: packet.FetchAdd}, packet.Header{Opcode: packet.Gone})
	f.Fuzz(func(t *testing.T, data []byte) {
		n, a, b := pair(t, 1, faults{}, usual, 8)
		guard := make([]byte, 3*4096)
		inner, err := a.pd.RegMR(guard[4096:2*4096], verbs.AccessAll)
		require.NoError(t, err)
		for i, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd, verbs.OpRDMAWrite} {
			a.post(t, verbs.SendWR{WRID: uint64(i), Opcode: op, SGList: []verbs.SGE{a.sge(a.local, 64*i, 8)}, RKey: b.mem.RKey(), RemoteAddr: b.mem.Addr()})
		}
		a.recv(t, 100, 0, 2000)
		for len(data) > 0 {
			size := min(int(data[0]), len(data)-1)
			pkt := append([]byte{}, data[1:1+size]...)
			data = data[1+size:]
			if len(pkt) < 12 {
				continue
			}
			base := a.qp.rsp.expect
			if packet.Opcode(pkt[0]).Response() {
				base = a.qp.req.una
			}
			binary.BigEndian.PutUint32(pkt[4:], a.qp.Num)
			binary.BigEndian.PutUint32(pkt[8:], uint32(pkt[8])<<24|(base+uint32(int8(pkt[11])))&psnMask)
			if op := packet.Opcode(pkt[0]); len(pkt) >= 24 && (op == packet.ReadRequest || op.CanCarry() || op == packet.FetchAdd || op == packet.CompareSwap) {
				binary.BigEndian.PutUint64(pkt[12:], inner.Addr()+uint64(pkt[19]))
				binary.BigEndian.PutUint32(pkt[20:], inner.RKey())
			}
			w := a.a.wire.(*memory)
			from := b.a.wire.(*memory)
			from.route.Set(from.addr, w.addr)
			w.inbox = append(w.inbox, flying{src: from.addr, b: from.route.Seal(pkt, 0)})
			a.a.drive()
			a.poll(t)
		}
		for range 5 {
			n.step()
		}
		a.poll(t)
		seen := map[uint64]bool{}
		for _, wc := range a.done {
			require.False(t, seen[wc.WRID], "work request %d completes twice", wc.WRID)
			seen[wc.WRID] = true
		}
		require.Equal(t, make([]byte, 4096), guard[:4096])
		require.Equal(t, make([]byte, 4096), guard[2*4096:])
		require.NoError(t, inner.Close())
	})
}
