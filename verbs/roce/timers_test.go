package roce

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// Polling serves the timers: lost packets are resent although the driver never runs, even if every
// poll finds packets of other queue pairs, or another goroutine holds the receive lock without
// progress.
func TestPollersServeTimers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ busy, locked bool }{{}, {busy: true}, {locked: true}} {
		t.Run(fmt.Sprintf("busy %v, locked %v", c.busy, c.locked), func(t *testing.T) {
			n, a, b := pair(t, 1, faults{delay: time.Microsecond}, usual, 16)
			n.lose = n.sent + 1
			a.post(t, write(a, b, 8))
			require.Equal(t, 1, n.dropped)
			sent := n.sent
			if c.locked {
				a.a.rx.Lock()
			}
			for polls := 0; n.sent == sent && polls < 100_000; polls++ {
				n.now += 1000
				if c.busy {
					n.forge(b, a, packet.Header{Opcode: packet.Acknowledge, DestQP: a.qp.Num ^ 1}, nil)
					sent = n.sent
				}
				n.deliver()
				a.poll(t)
			}
			if c.locked {
				a.a.rx.Unlock()
			}
			require.Greater(t, n.sent, sent, "nothing is sent again")
			n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 1 })
			require.NoError(t, a.done[0].Err())
		})
	}
}

// Of many queue pairs, over a path that loses some packets, each gets its messages through while
// both ends do nothing but poll.
func TestPollersServeMany(t *testing.T) {
	t.Parallel()
	need.Full(t)
	const qps, messages, size = 200, 3, 16 << 10
	n := newNetwork(1, faults{drop: 0.01, delay: 10 * time.Microsecond})
	var ends [2][]*side
	for i := range ends {
		first := newSide(t, n.node(), 16)
		ends[i] = append(ends[i], first)
		for range qps - 1 {
			s := &side{a: first.a, pd: first.pd, cq: first.cq, mem: first.mem, local: first.local}
			s.open(t, 16)
			t.Cleanup(func() { require.NoError(t, s.qp.Close()) })
			ends[i] = append(ends[i], s)
		}
	}
	for i := range ends {
		for k, s := range ends[i] {
			s.connect(t, ends[1-i][k], usual, false)
		}
	}
	for k, s := range ends[0] {
		for range messages {
			s.post(t, write(s, ends[1][k], size))
		}
	}
	a, b := ends[0][0], ends[1][0] // the completion queues are those of all
	for polls := 0; len(a.done) < qps*messages; polls++ {
		if polls == 1_000_000 {
			require.FailNow(t, "not in time", "%d of %d messages are written%s", len(a.done), qps*messages, n.describe())
		}
		n.now += 1000
		n.deliver()
		a.poll(t)
		b.poll(t)
	}
	for _, wc := range a.done {
		require.NoError(t, wc.Err())
	}
	require.NotZero(t, n.dropped)
}

// write writes some bytes from a to b.
func write(a, b *side, n int) verbs.SendWR {
	return verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{a.sge(a.local, 0, n)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()}
}

// A peer of this library that has been heard from is declared dead when it has been silent for the
// configured time; for one that has not, or that may be an adapter, the attributes decide.
func TestPeerTimeout(t *testing.T) {
	t.Parallel()
	attributes := 4 * verbs.AckTimeout(usual.timeout) * time.Duration(usual.retries+1)
	for _, c := range []struct {
		name       string
		foreign    bool
		met        bool
		configured time.Duration
		want       time.Duration
	}{
		{"default", false, true, 0, verbs.DefaultPeerTimeout},
		{"configured", false, true, time.Second, time.Second},
		{"never there", false, false, time.Second, attributes},
		{"adapter", true, true, time.Second, attributes},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNetwork(1, faults{delay: time.Microsecond, foreign: c.foreign})
			node := func() *adapter {
				w := n.node().wire
				a := newAdapter("memory", "", verbs.Config{PeerTimeout: c.configured}, w, func() int64 { return n.now })
				n.nodes[len(n.nodes)-1] = a
				return a
			}
			a, b := newSide(t, node(), 16), newSide(t, node(), 16)
			a.connect(t, b, usual, c.foreign)
			b.connect(t, a, usual, c.foreign)
			if c.met {
				a.post(t, write(a, b, 8))
				n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 1 })
			}
			n.faults.drop = 1
			begin, done := n.now, len(a.done)
			a.post(t, write(a, b, 8))
			n.until(t, time.Minute, func() bool { a.poll(t); return len(a.done) > done })
			require.Equal(t, verbs.WCRetryExcErr, a.done[done].Status)
			require.EqualValues(t, vendorSilent, a.done[done].VendorErr)
			require.InDelta(t, c.want, n.now-begin, float64(time.Millisecond))
		})
	}
}

// A peer that is stopped for half of the configured time goes on where it was.
func TestPeerStopped(t *testing.T) {
	t.Parallel()
	n, a, b := pair(t, 1, faults{delay: time.Microsecond}, usual, 16)
	a.post(t, write(a, b, 8))
	n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 1 })
	for range 8 {
		a.post(t, write(a, b, 64<<10))
	}
	n.away, n.back = b.a, n.now+int64(verbs.DefaultPeerTimeout/2)
	n.until(t, time.Minute, func() bool { a.poll(t); return len(a.done) == 9 })
	for _, wc := range a.done {
		require.NoError(t, wc.Err())
	}
}

// Time in which this end has no CPU does not count as silence of the peer, however long and often:
// this end has not resent lost packets in that time.
func TestOwnAbsence(t *testing.T) {
	t.Parallel()
	for _, foreign := range []bool{false, true} {
		t.Run(fmt.Sprintf("foreign %v", foreign), func(t *testing.T) {
			n, a, b := pair(t, 1, faults{delay: time.Microsecond, foreign: foreign}, usual, 16)
			a.post(t, write(a, b, 8))
			n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 1 })
			n.faults.drop = 1
			a.post(t, write(a, b, 8))
			for range 10 {
				n.now += int64(time.Minute)
				a.a.drive()
				a.a.expire(n.now, math.MaxInt)
				a.poll(t)
				require.Len(t, a.done, 1)
			}
			n.faults.drop = 0
			n.until(t, time.Second, func() bool { a.poll(t); return len(a.done) == 2 })
			require.NoError(t, a.done[1].Err())
		})
	}
}

// Reports of the peer's host that nothing receives packets end a connection only if there is one for
// each of the retries, about a request in flight.
func TestUnreachablePeer(t *testing.T) {
	t.Parallel()
	need.Full(t)
	request := func(q *qp) packet.Header {
		return packet.Header{Opcode: packet.WriteOnly, DestQP: q.Attr.DestQPNum, PSN: q.req.una & psnMask}
	}
	for _, c := range []struct {
		name   string
		change func(r *report)
		each   int // reports for each try
		gone   bool
	}{
		{"each try", func(*report) {}, 1, true},
		{"each try, many times", func(*report) {}, 100, true},
		{"another address", func(r *report) { r.to = netip.AddrPortFrom(r.to.Addr().Next(), r.to.Port()) }, 100, false},
		{"another port", func(r *report) { r.to = netip.AddrPortFrom(r.to.Addr(), r.to.Port()+1) }, 100, false},
		{"another queue pair", func(r *report) { r.packet.DestQP ^= 1 }, 100, false},
		{"an earlier packet", func(r *report) { r.packet.PSN = (r.packet.PSN - 1) & psnMask }, 100, false},
		{"a later packet", func(r *report) { r.packet.PSN = (r.packet.PSN + 1) & psnMask }, 100, false},
		{"a response", func(r *report) { r.packet.Opcode = packet.Acknowledge }, 100, false},
	} {
		for _, foreign := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, foreign %v", c.name, foreign), func(t *testing.T) {
				n, a, b := pair(t, 1, faults{drop: 1, delay: time.Microsecond, foreign: foreign}, usual, 16)
				a.post(t, write(a, b, 8))
				tries := 0
				for sent := 0; ; {
					if n.sent > sent {
						sent = n.sent
						tries++
					}
					for range c.each {
						r := report{a.qp.flow.remote, request(a.qp)}
						c.change(&r)
						a.a.unreachable(&r, nil)
					}
					a.poll(t)
					if len(a.done) > 0 || tries > int(usual.retries)+1 {
						break
					}
					n.step()
				}
				require.Equal(t, int(usual.retries)+1, min(tries, int(usual.retries)+1))
				if !c.gone {
					require.Empty(t, a.done)
					return
				}
				require.Len(t, a.done, 1)
				require.Equal(t, verbs.WCRetryExcErr, a.done[0].Status)
				require.EqualValues(t, vendorGone, a.done[0].VendorErr)
			})
		}
	}
}
