package roce

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// A report that a queue pair is gone affects only the queue pairs connected to it.
func TestGoneConcernsItsPeers(t *testing.T) {
	n, a, b := pair(t, 1, faults{delay: time.Microsecond}, usual, 16)
	other, c := a.another(t, n, usual)
	say := func(from *side, num uint32) {
		n.forge(from, a, packet.Header{Opcode: packet.Gone, PSN: a.qp.req.una & psnMask, Imm: num}, nil)
		n.now += 1000
		n.deliver()
	}
	a.post(t, verbs.SendWR{WRID: 1, Opcode: verbs.OpSend})
	other.post(t, verbs.SendWR{WRID: 2, Opcode: verbs.OpSend})
	other.qp.Lock.Lock()
	say(c, b.qp.Num)   // known, of another address
	say(b, b.qp.Num+1) // unknown
	say(b, b.qp.Num)
	done := make(chan struct{})
	go func() { defer close(done); a.a.drive() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("a lock of another queue pair was taken")
	}
	other.qp.Unlock()
	<-done
	a.poll(t)
	require.Len(t, a.done, 1)
	require.EqualValues(t, 1, a.done[0].WRID)
	require.EqualValues(t, vendorGone, a.done[0].VendorErr)
	require.Equal(t, verbs.QPRTS, other.qp.State())

	// Nothing is left of what has left.
	require.NoError(t, a.qp.Modify(&verbs.QPAttr{QPState: verbs.QPReset}, verbs.MaskState))
	require.Len(t, a.a.peers.qps, 1)
	b.open(t, 16)
	a.connect(t, b, usual, false)
	require.Equal(t, []*qp{a.qp}, a.a.peers.of(a.qp.peer))
	require.Len(t, a.a.peers.qps, 2)
}

// The cost of receiving a report, from any sender, that a queue pair is gone.
//
//	go test -run '^$' -bench '^BenchmarkGone$' ./verbs/roce
func BenchmarkGone(b *testing.B) {
	for _, qps := range []int{1, 1000, 16000} {
		b.Run(fmt.Sprintf("qps=%d", qps), func(b *testing.B) {
			n, x, y := pair(b, 1, faults{}, usual, 16)
			for range qps - 1 {
				q, err := x.pd.CreateQP(verbs.ProviderQPInit{SendCQ: x.cq, RecvCQ: x.cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
				require.NoError(b, err)
				b.Cleanup(func() { require.NoError(b, q.Close()) })
			}
			b.ResetTimer()
			for range b.N {
				n.forge(y, x, packet.Header{Opcode: packet.Gone, Imm: 5}, nil)
				n.deliver()
				x.a.drive()
			}
		})
	}
}
