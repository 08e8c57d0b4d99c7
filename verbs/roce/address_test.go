package roce

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// Packets of another partition are ignored. The bit that marks full members does not belong to the
// partition's name.
func TestPartitions(t *testing.T) {
	n, a, b := pair(t, 1, faults{}, usual, 16)
	for i := range 8 {
		b.recv(t, uint64(i), 0, 100)
	}
	for _, c := range []struct {
		pkey uint16
		ours bool
	}{{0xffff, true}, {0x7fff, true}, {0xfffe, false}, {0x8001, false}, {1, false}, {0x7ffe, false}} {
		at := b.qp.rsp.expect
		n.forge(a, b, packet.Header{Opcode: packet.SendOnly, DestQP: b.qp.Num, PSN: at & psnMask, PKey: c.pkey}, []byte{1, 2, 3, 4})
		n.step()
		require.Equal(t, c.ours, b.qp.rsp.expect != at, "%#x", c.pkey)
	}
	require.EqualValues(t, 4, b.a.stats.malformed.Load())
}

// narrow is a wire over a link whose MTU is 1500.
type narrow struct{ wire }

func (narrow) maxMTU() int { return 1452 }

// A path MTU beyond the link's is refused at once; the flow has the given traffic class and hop
// limit.
func TestAddress(t *testing.T) {
	n := newNetwork(1, faults{})
	a, b := newSide(t, n.node(), 16), newSide(t, n.node(), 16)
	a.a.wire = narrow{a.a.wire}
	require.NoError(t, a.qp.Modify(&verbs.QPAttr{QPState: verbs.QPInit, PortNum: 1, AccessFlags: verbs.AccessAll},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccessFlags))
	attr := verbs.QPAttr{QPState: verbs.QPRTR, PathMTU: verbs.MTU2048, DestQPNum: b.qp.Num, AHAttr: verbs.AHAttr{
		DGID: verbs.GIDFromAddr(b.a.wire.local().Addr()), PortNum: 1, IsGlobal: true, TrafficClass: 0x68, HopLimit: 7}}
	const mask = verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN | verbs.MaskMaxDestRdAtomic | verbs.MaskMinRNRTimer
	err := a.qp.Modify(&attr, mask)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "path MTU of 2048 bytes, the link's MTU allows 1452")
	attr.PathMTU = verbs.MTU1024
	require.NoError(t, a.qp.Modify(&attr, mask))
	require.EqualValues(t, 0x68, a.qp.flow.class)
	require.EqualValues(t, 7, a.qp.flow.hops)
}
