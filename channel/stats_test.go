package channel

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestStats: what has passed is counted on both sides, by peer.
func TestStats(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		nodes := join(t, 2, WithProviders(provider))
		want := Counts{}
		for _, size := range []int{8, 3000, 50_000} {
			s, r := sendReceive(t, nodes[0], nodes[1], size)
			for range 5 {
				require.NoError(t, s.Start()) // first: a receiver that waits may get it another way
				require.NoError(t, r.Run(within(t)))
				require.NoError(t, s.WaitContext(within(t)))
				want.Messages++
				want.Bytes += uint64(size)
				if size < 4096 {
					want.Eager++
				}
			}
		}
		a, b := nodes[0].Stats(), nodes[1].Stats()
		require.Len(t, a.Peers, 1)
		require.Len(t, b.Peers, 1)
		for _, p := range []*PeerStats{&a.Peers[0], &b.Peers[0]} {
			p.Wakes = 0 // a waiter may have slept
			require.True(t, provider == "ibv" || strings.HasPrefix(p.Device, provider), p.Device)
			require.NotEmpty(t, p.Device)
			p.Device = ""
		}
		require.Equal(t, a.Peers[0].Sent.Read, b.Peers[0].Received.Read) // those that were ready when they were looked for
		want.Read = a.Peers[0].Sent.Read
		require.Equal(t, PeerStats{Rank: 1, Provider: provider, State: "up", Sent: want}, a.Peers[0])
		require.Equal(t, PeerStats{Rank: 0, Provider: provider, State: "up", Received: want}, b.Peers[0])
	})
}

// TestStatsOfKinds: each message is counted for the way that it takes.
func TestStatsOfKinds(t *testing.T) {
	type way struct {
		name                 string
		size                 int
		own, strided         bool
		receiveFirst         bool
		eager, packed, early bool // early: started before the wire-up
	}
	all := map[string][]way{
		"shm": {
			{name: "heap, early", size: 100_000, early: true, packed: true},
			{name: "heap", size: 100_000, packed: true},
			{name: "heap, strided", size: 100_000, strided: true, packed: true},
			{name: "memory of Alloc", size: 100_000, own: true},
			{name: "small", size: 1000, own: true, eager: true},
			{name: "small, to a receiver that waits", size: 1000, own: true, receiveFirst: true},
		},
		"tcp": {
			{name: "small, early", size: 1000, early: true, eager: true},
			{name: "strided", size: 100_000, strided: true, packed: true},
			{name: "strided, receive first", size: 100_000, strided: true, receiveFirst: true, packed: true},
			{name: "heap", size: 100_000},
			{name: "small", size: 1000, eager: true},
		},
	}
	all["ibv"] = all["tcp"]
	for provider, ways := range all {
		t.Run(provider, func(t *testing.T) {
			need.Provider(t, provider)
			nodes := join(t, 2, WithProviders(provider))
			a, b := nodes[0], nodes[1]
			counts := func() (sent, received Counts) {
				if s, r := a.Stats().Peers, b.Stats().Peers; len(s) > 0 && len(r) > 0 {
					return s[0].Sent, r[0].Received
				}
				return
			}
			for _, w := range ways {
				layout := func(n *Node) Layout {
					if w.strided {
						return Strided(allocate(t, n, 2*w.size, w.own), 0, 100, w.size/100, 200)
					}
					return Contiguous(allocate(t, n, w.size, w.own))
				}
				s := declareSend(t, a, layout(a), 1)
				var r *Handle
				if w.early { // the peer hears of nothing until this is started
					require.NoError(t, s.Start())
				}
				r = declareReceive(t, b, layout(b), 0)
				sent, received := counts()
				if w.early {
					sent = Counts{}
					require.NoError(t, r.Run(within(t)))
					require.NoError(t, s.WaitContext(within(t)))
				} else {
					if w.receiveFirst { // and the sender knows where
						p := peerOf(t, a, 1)
						require.Eventually(t, func() bool { return w.size <= inlineMax || known(p, r) }, limit, time.Millisecond)
						pass(t, s, r, r)
					} else {
						pass(t, s, r, s)
					}
				}
				want := Counts{Messages: 1, Bytes: uint64(w.size)}
				if w.eager {
					want.Eager = 1
				}
				if w.packed {
					want.Packed = 1
				}
				add := func(c Counts) Counts { c.sum(&want); return c }
				gotSent, gotReceived := counts()
				require.Equal(t, gotSent.Read, gotReceived.Read)
				gotSent.Read, gotReceived.Read, sent.Read, received.Read = 0, 0, 0, 0
				require.Equal(t, add(sent), gotSent, "%s, %s", provider, w.name)
				require.Equal(t, add(received), gotReceived, "%s, %s", provider, w.name)
			}
		})
	}
}

// TestWaited: what finds no room is counted once, and what is started before there
// is a connection only if it finds none then.
func TestWaited(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		room := window
		if provider == "shm" {
			room = ringSlots
		}
		const more = 5
		nodes := join(t, 2, WithProviders(provider))
		var sends []*Handle
		for range room {
			s, _ := send(t, nodes[0], 1, 8)
			require.NoError(t, s.Start())
			sends = append(sends, s)
		}
		waited := func() uint64 { return nodes[0].Stats().Peers[0].Sent.Waited }
		require.NoError(t, WaitAllContext(within(t), sends...))
		require.Zero(t, waited())
		for range more {
			s, _ := send(t, nodes[0], 1, 8)
			require.NoError(t, s.Start())
			sends = append(sends, s)
		}
		require.EqualValues(t, more, waited())
		r, _ := receive(t, nodes[1], 0, 8)
		for range sends {
			require.NoError(t, r.Run(within(t)))
		}
		require.NoError(t, WaitAllContext(within(t), sends...))
		require.EqualValues(t, more, waited())
	})
}

// TestAgeOfYoung: an operation that is younger than the report is of no age.
func TestAgeOfYoung(t *testing.T) {
	n := join(t, 1)[0]
	r, _ := receive(t, n, 0, 8)
	n.ticks.Store(8)
	require.NoError(t, r.Start())
	require.Contains(t, r.describeState(r.began-1), "for 0 s")
	require.Contains(t, r.describeState(r.began+3), "for 3 s")
}

// TestWakes: a peer that sleeps is woken, and that is counted; one that is awake
// costs nothing.
func TestWakes(t *testing.T) {
	nodes := join(t, 2, WithProviders("shm"))
	s, r := sendReceive(t, nodes[0], nodes[1], 8)
	wakes := func() uint64 { return nodes[0].Stats().Peers[0].Wakes }
	message := func() {
		require.NoError(t, errors.Join(s.Start(), s.WaitContext(within(t)), r.Start(), r.WaitContext(within(t))))
	}
	message()
	before := wakes()
	for range 100 { // received without waiting
		message()
	}
	require.Equal(t, before, wakes())
	for ctx := within(t); wakes() == before; { // a sleeper wakes up periodically
		require.NoError(t, ctx.Err())
		require.NoError(t, r.Start())
		slept := nodes[1].Stats().Sleeps
		done := make(chan error, 1)
		go func() { done <- r.WaitContext(within(t)) }()
		eventually(t, func() bool { return nodes[1].Stats().Sleeps > slept })
		require.NoError(t, errors.Join(s.Start(), s.WaitContext(within(t)), <-done))
	}
}

// TestReportCalls: a report says which call waits for other ranks, as long as it does.
func TestReportCalls(t *testing.T) {
	nodes := join(t, 2)
	report := func() string {
		var b bytes.Buffer
		require.NoError(t, nodes[0].Report(&b))
		return b.String()
	}
	for line, call := range map[string]func(n *Node) error{
		"exchange: waits for the other ranks":                       exchanged,
		"world of 2 ranks: waits for the other ranks, round 1 of 2": joined,
	} {
		require.NotContains(t, report(), "waits")
		over := make(chan error, 1)
		go func() { over <- call(nodes[0]) }()
		require.Eventually(t, func() bool { return strings.Contains(report(), line+", for ") }, limit, time.Millisecond)
		nodes[0].ticks.Add(70)
		require.Regexp(t, line+", for [7-9][0-9] s\n", report())
		require.NoError(t, call(nodes[1]))
		require.NoError(t, <-over)
	}
	require.NotContains(t, report(), "waits")
}

// TestReport: it has a line for each operation that is not over, and none for
// others; it comes unasked when nothing moves.
func TestReport(t *testing.T) {
	t.Parallel() // it waits most of the time
	apart(t, func(t *testing.T, provider string) {
		t.Parallel()
		var stalled lockedBuffer
		nodes := join(t, 2, WithProviders(provider), WithReport(&stalled, time.Millisecond)) // when it is looked for next
		s, r := sendReceive(t, nodes[0], nodes[1], 8)
		require.NoError(t, s.Start())
		require.NoError(t, r.Run(within(t)))
		large, _ := send(t, nodes[0], 1, 100_000, OnStream(7))
		require.NoError(t, large.Start())
		waits, _ := receive(t, nodes[1], 0, 16, OnStream(9))
		require.NoError(t, waits.Start())

		var b bytes.Buffer
		require.NoError(t, nodes[0].Report(&b))
		require.Contains(t, b.String(), "rank 1, "+provider+" up: sent 2 messages, 100008 bytes; received 0, 0 bytes")
		require.Contains(t, b.String(), "send to rank 1, stream 7, start 1, 100000 bytes: waits for the receiver, for ")
		require.NotContains(t, b.String(), "stream 0")
		b.Reset()
		require.NoError(t, nodes[1].Report(&b))
		require.Contains(t, b.String(), "receive from rank 0, stream 9, start 1, 16 bytes: waits for the sender, for ")
		require.Eventually(t, func() bool {
			return bytes.Contains([]byte(stalled.String()), []byte("stream 7")) && bytes.Contains([]byte(stalled.String()), []byte("stream 9"))
		}, limit, 10*time.Millisecond)
	})
}
