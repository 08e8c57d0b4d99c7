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

// ask sends b one request for so many bytes of m, as an adapter may.
func (n *network) ask(a, b *side, m *mr, length int) {
	n.forge(a, b, packet.Header{Opcode: packet.ReadRequest, DestQP: b.qp.Num, PSN: b.qp.rsp.expect & psnMask, AckReq: true,
		VA: m.Addr(), RKey: m.RKey(), Length: uint32(length)}, nil)
	n.deliver()
}

// another makes one more queue pair of s, and connects it with a new side.
func (s *side) another(t testing.TB, n *network, how terms) (own, peer *side) {
	own = &side{a: s.a, pd: s.pd, cq: s.cq, mem: s.mem, local: s.local}
	own.open(t, 16)
	t.Cleanup(func() { require.NoError(t, own.qp.Close()) })
	peer = newSide(t, n.node(), 16)
	own.connect(t, peer, how, n.faults.foreign)
	peer.connect(t, own, how, n.faults.foreign)
	return own, peer
}

// A request for much data gets its response in bursts, sent by polling or, without polling, by the
// driver, and is acknowledged when all of it is sent.
func TestBursts(t *testing.T) {
	t.Parallel()
	need.Full(t)
	const packets = 5000
	for _, polled := range []bool{false, true} {
		t.Run(fmt.Sprintf("polled %v", polled), func(t *testing.T) {
			n, a, b := pair(t, 1, faults{foreign: true}, usual, 16)
			big := b.region(t, packets*1024)
			var told []int64
			b.a.hurry = func(at int64) { told = append(told, at) }
			n.ask(a, b, big, packets*1024)
			n.forge(a, b, packet.Header{Opcode: packet.WriteOnly, DestQP: b.qp.Num, PSN: b.qp.rsp.expect + packets, AckReq: true}, nil)
			n.deliver()
			sent, turns := n.sent, 0
			for sent < n.sent || turns == 0 {
				require.LessOrEqual(t, n.sent-sent, 2*burst+1) // what has come, and a turn
				if turns == 1 {
					require.Contains(t, told, n.now+lookEvery)
				}
				sent = n.sent
				turns++
				if polled {
					b.poll(t)
				} else {
					b.a.drive()
				}
			}
			require.False(t, b.a.late.Load())
			require.Greater(t, turns, packets/(2*burst))
			answers := 0
			for i, p := range n.flying {
				var h packet.Header
				_, err := h.Parse(p.b[:len(p.b)-packet.ICRCLen])
				require.NoError(t, err)
				if h.Opcode == packet.Acknowledge {
					require.Equal(t, packets, answers, "acknowledged")
					require.Equal(t, len(n.flying)-1, i)
					continue
				}
				answers++
			}
			require.Equal(t, packets, answers)
			require.NoError(t, big.Close())
		})
	}
}

// Other queue pairs are served while one is sent much data.
func TestTurns(t *testing.T) {
	t.Parallel()
	n, a, b := pair(t, 1, faults{foreign: true, delay: time.Microsecond}, usual, 16)
	_, c := b.another(t, n, usual)
	const packets, rounds = 20000, 20
	big := b.region(t, packets*1024)
	n.ask(a, b, big, packets*1024)
	before := n.sent
	for i := range rounds {
		c.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{c.sge(c.local, 0, 100<<10)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
		n.until(t, time.Second, func() bool { c.poll(t); return len(c.done) == i+1 })
		require.NoError(t, c.done[i].Err())
	}
	require.True(t, b.a.late.Load())
	require.Less(t, n.sent-before, packets)
	n.until(t, time.Second, func() bool { return !b.a.late.Load() })
	require.GreaterOrEqual(t, n.sent-before, packets+rounds*100)
	require.NoError(t, big.Close())
}

// A request duplicated by the network costs later requests no response.
func TestDoubledRequest(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		t.Run(fmt.Sprintf("foreign %v", foreign), func(t *testing.T) {
			n, a, b := pair(t, 1, faults{foreign: foreign, delay: time.Microsecond}, usual, 16)
			first := a.qp.req.nxt
			read := func(at, size int) {
				a.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{a.sge(a.local, at, size)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
			}
			read(0, 3000)
			read(3000, 3000)
			n.forge(a, b, packet.Header{Opcode: packet.ReadRequest, DestQP: b.qp.Num, PSN: first & psnMask, AckReq: true,
				VA: b.mem.Addr(), RKey: b.mem.RKey(), Length: 3000}, nil)
			n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 2 })
			require.Equal(t, 2+1+6, n.sent) // nothing was asked for again, nor answered twice
		})
	}
}

// The responses to repeated requests, in any state of the queue of responses.
func TestRepeat(t *testing.T) {
	span := func(first, n, sent uint32) answer { return answer{record: record{first: first, n: n}, sent: sent} }
	for _, c := range []struct {
		name           string
		queue          []answer
		again          answer
		any, goingBack []answer // the queue then, by what the peer does
	}{
		{"not begun", []answer{span(10, 5, 0), span(15, 5, 0)}, span(10, 5, 0),
			[]answer{span(10, 5, 0), span(15, 5, 0)}, []answer{span(10, 5, 0), span(15, 5, 0)}},
		{"a part that is still to come", []answer{span(10, 5, 2)}, span(12, 2, 0),
			[]answer{span(10, 5, 2)}, []answer{span(10, 5, 2)}},
		{"begun", []answer{span(10, 5, 3), span(15, 5, 0)}, span(11, 4, 0),
			[]answer{span(11, 4, 0), span(15, 5, 0)}, []answer{span(11, 4, 0), span(15, 5, 0)}},
		{"a part that is sent", []answer{span(10, 5, 3), span(15, 5, 0)}, span(11, 1, 0),
			[]answer{span(10, 5, 3), span(15, 5, 0), span(11, 1, 0)}, []answer{span(11, 1, 0), span(10, 5, 3), span(15, 5, 0)}},
		{"done", []answer{span(15, 5, 1), span(20, 1, 0)}, span(10, 5, 0),
			[]answer{span(15, 5, 1), span(20, 1, 0), span(10, 5, 0)}, []answer{span(10, 5, 0), span(15, 5, 1), span(20, 1, 0)}},
		{"no room", []answer{span(15, 5, 0), span(20, 1, 0), span(21, 1, 0), span(22, 1, 0)}, span(10, 5, 0),
			[]answer{span(15, 5, 0), span(20, 1, 0), span(21, 1, 0), span(22, 1, 0)}, []answer{span(15, 5, 0), span(20, 1, 0), span(21, 1, 0), span(22, 1, 0)}},
	} {
		for head := range 4 {
			for i, want := range [][]answer{c.any, c.goingBack} {
				a := answers{ents: make([]answer, 4), head: head}
				for _, x := range c.queue {
					require.True(t, a.push(x))
				}
				a.repeat(c.again, i == 1)
				var got []answer
				for k := range a.n {
					got = append(got, *a.at(k))
				}
				require.Equal(t, want, got, "%s, going back %v", c.name, i == 1)
			}
		}
	}
}
