package impi

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// flows are bounds of the packets in flight. Queue pairs have one of their own, whatever is
// configured: there they are one case.
var flows = []struct{ ackMark, hiWater uint32 }{{1, 1}, {1, 2}, {3, 4}, {2, 7}, {32, 128}}

// flowing runs a test for each place between hosts, and each bound.
func flowing(t *testing.T, test func(t *testing.T, p place)) {
	for _, p := range places {
		for _, f := range flows {
			if p.hosts == 1 || len(p.config.Providers) > 0 && f != flows[0] {
				continue
			}
			p.config.AckMark, p.config.HiWater, p.config.PacketLen = f.ackMark, f.hiWater, 3000
			t.Run(fmt.Sprintf("%s-%d-%d", p.name, f.ackMark, f.hiWater), func(t *testing.T) {
				p.seldom(t)
				test(t, p)
			})
		}
	}
}

// TestFullWindow: a process sends as much as may be in flight, and then receives; the
// other sends synchronously, and then receives.
func TestFullWindow(t *testing.T) {
	flowing(t, func(t *testing.T, p place) {
		w := worlds(t, p)
		a, b := w[0], w[1]
		n := int(a.e.links[1].hiWater)
		for range 3 {
			both(t, func() error {
				for i := range n {
					if err := a.Send(within(t), []byte{byte(i)}, 1, 0); err != nil {
						return err
					}
				}
				_, err := a.Recv(within(t), nil, 1, 1)
				return err
			}, func() error {
				if err := b.Ssend(within(t), nil, 0, 1); err != nil {
					return err
				}
				for i := range n {
					var got [1]byte
					if _, err := b.Recv(within(t), got[:], 0, 0); err != nil || got[0] != byte(i) {
						return fmt.Errorf("message %d is %d: %w", i, got[0], err)
					}
				}
				return nil
			})
		}
	})
}

// TestBothFull: both directions are full of short, synchronous and long messages at
// the same time, and nothing is received until all has been started.
func TestBothFull(t *testing.T) {
	need.Full(t)
	flowing(t, func(t *testing.T, p place) {
		w := worlds(t, p)
		a, b := w[0], w[1]
		n := min(3*int(a.e.links[1].hiWater), 200)
		side := func(c *Comm, peer int) func() error {
			return func() error {
				var list []Request
				for i := range n {
					msg := pattern(i%5*1000, uint64(i))
					start := c.Isend
					if i%3 == 0 {
						start = c.Issend
					}
					q, err := start(msg, peer, i)
					if err != nil {
						return err
					}
					list = append(list, q)
				}
				bufs := make([][]byte, n)
				for i := range n {
					bufs[i] = make([]byte, i%5*1000)
					q := irecv(t, c, bufs[i], peer, i)
					list = append(list, q)
				}
				if err := WaitAll(within(t), nil, list...); err != nil {
					return err
				}
				for i, b := range bufs {
					if string(b) != string(pattern(len(b), uint64(i))) {
						return fmt.Errorf("message %d is wrong", i)
					}
				}
				return nil
			}
		}
		both(t, side(a, 1), side(b, 0))
	})
}

// TestLongBothWays: long messages in both directions at the same time.
func TestLongBothWays(t *testing.T) {
	need.Full(t)
	eachWay(t, func(t *testing.T, a, b *Comm) {
		n := need.InLong(1<<20, 8<<20)
		side := func(c *Comm, peer int) func() error {
			return func() error {
				out, in := pattern(n, uint64(c.Rank())), make([]byte, n)
				for range 2 {
					clear(in)
					r, err := c.Irecv(in, peer, 0)
					if err == nil {
						err = c.Send(within(t), out, peer, 0)
					}
					if err == nil {
						_, err = r.Wait(within(t))
					}
					if err != nil {
						return err
					}
					if string(in) != string(pattern(n, uint64(peer))) {
						return fmt.Errorf("the message to rank %d is wrong", c.Rank())
					}
				}
				return nil
			}
		}
		both(t, side(a, 1), side(b, 0))
	})
}

// TestManyPairs: the pairs of several processes of two hosts, over one link, do not affect each
// other: one that does not receive delays no other.
func TestManyPairs(t *testing.T) {
	need.Full(t)
	seldomAt(t, places[1:], func(t *testing.T, p place) {
		const each = 4
		p.processes, p.config.AckMark, p.config.HiWater = each, 2, 4
		w := worlds(t, p)
		// Rank 0 has more in flight to rank 4 than may be; no process waits for it.
		var stuck []Request
		for range 300 {
			stuck = append(stuck, issend(t, w[0], make([]byte, 100), each, 99))
		}
		var sides []func() error
		for _, c := range w {
			sides = append(sides, func() error {
				for round := range 5 {
					var list []Request
					in := make([][]byte, len(w))
					for k := range w {
						in[k] = make([]byte, 4000)
						q := irecv(t, c, in[k], k, round)
						list = append(list, q)
						q = isend(t, c, pattern(1000*((k+c.Rank())%4), uint64(k<<8|c.Rank())), k, round)
						list = append(list, q)
					}
					st := make([]Status, len(list))
					if err := WaitAll(within(t), st, list...); err != nil {
						return err
					}
					for k := range w {
						n := 1000 * ((k + c.Rank()) % 4)
						if st[2*k].Len != n || string(in[k][:n]) != string(pattern(n, uint64(c.Rank()<<8|k))) {
							return fmt.Errorf("message from rank %d to %d is wrong", k, c.Rank())
						}
					}
				}
				return nil
			})
		}
		both(t, sides...)
		for range stuck {
			received(t, w[each], make([]byte, 100), 0, 99)
		}
		require.NoError(t, WaitAll(within(t), nil, stuck...))
	})
}

// TestFarAhead: sends that are far ahead of the first receive are no error. What waits for the receives counts
// towards the bound of Config.Unexpected, and takes little more memory than that says.
func TestFarAhead(t *testing.T) {
	count := 3000
	switch {
	case need.WantLong():
		count = 100_000
	case testing.Short():
		count = 500
	}
	everywhere(t, func(t *testing.T, a, b *Comm) {
		ctx, cancel := context.WithTimeout(t.Context(), limit+time.Duration(count)*time.Millisecond)
		defer cancel()
		for _, size := range []int{8, 1000} {
			out := make([]byte, size)
			before := heap()
			for i := range count {
				binary.BigEndian.PutUint32(out, uint32(i))
				require.NoError(t, a.Send(ctx, out, b.Rank(), 7))
			}
			// The last is behind all others.
			st, err := b.Probe(ctx, a.Rank(), 7)
			require.NoError(t, err)
			require.Equal(t, size, st.Len)
			ranks.Eventually(t, func() bool {
				there, _, err := b.Iprobe(a.Rank(), 7)
				b.e.lock.Lock()
				defer b.e.lock.Unlock()
				held := b.p.waiting
				if p := b.p.pair(int32(a.Rank())); p != nil {
					held += p.held
				}
				return there && err == nil && held == count*(size+messageCost)
			})
			took := heap() - before
			t.Logf("%d messages of %d bytes: %d bytes of heap each", count, size, took/count)
			require.Less(t, took, 2*count*(size+messageCost)+4<<20)
			in := make([]byte, size)
			for i := range count {
				_, err := b.Recv(ctx, in, a.Rank(), 7)
				require.NoError(t, err)
				require.EqualValues(t, i, binary.BigEndian.Uint32(in))
			}
		}
	})
}

// heap returns the bytes of the Go heap that are in use.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestOverflow: messages that are not received are bounded. The connection is closed with an error
// at both ends, and the other processes continue.
func TestOverflow(t *testing.T) {
	for _, p := range places {
		if p.hosts == 1 {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel() // not every provider says at once that the peer has gone
			p.hosts, p.config.Unexpected = 3, 100_000
			w := worlds(t, p)
			a, b, c := w[0], w[1], w[2]
			var err error
			for range 10_000 {
				if err = a.Send(within(t), make([]byte, 1000), 1, 0); err != nil {
					break
				}
			}
			requireError(t, err, ErrPeerDied, 1)
			_, err = b.Recv(within(t), nil, 0, 1)
			requireError(t, err, ErrOverflow, 0)
			st := received(t, b, make([]byte, 1000), 0, 0) // what had come before
			require.Equal(t, Status{Len: 1000}, st)
			for _, peer := range []*Comm{a, b} {
				both(t, func() error { return c.Ssend(within(t), nil, peer.Rank(), 7) },
					func() error { _, err := peer.Recv(within(t), nil, 2, 7); return err })
			}
		})
	}
}

// TestUnexpectedHere: within a host, too, messages that are not received are bounded, but nothing
// fails: sends wait for their receives.
func TestUnexpectedHere(t *testing.T) {
	p := places[0]
	p.config.Unexpected = 100_000
	w := worlds(t, p)
	a, b := w[0], w[1]
	for range 2 {
		var list []Request
		complete := 0
		for i := range 1000 {
			q := isend(t, a, pattern(1000, uint64(i)), 1, 0)
			if ok, _, err := q.Test(); ok {
				require.NoError(t, err)
				complete++
			}
			list = append(list, q)
		}
		require.Equal(t, 100_000/(1000+messageCost), complete)
		require.True(t, cancelled(t, list[len(list)-1]))
		got := make([]byte, 1000)
		for i := range 999 {
			require.Equal(t, Status{Len: 1000}, received(t, b, got, 0, 0))
			require.Equal(t, pattern(1000, uint64(i)), got)
		}
		require.NoError(t, WaitAll(within(t), nil, list...))
	}
	require.Zero(t, b.p.waiting)
}

// TestProgress: messages go on while the users of both ends compute.
func TestProgress(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Comm) {
		for _, n := range []int{8, 5000, 1 << 20} {
			for range 3 {
				msg, got := pattern(n, 1), make([]byte, n)
				r := irecv(t, b, got, 0, 0)
				s := issend(t, a, msg, 1, 0)
				ctx := within(t)
				for { // no goroutine tests or waits
					a.e.lock.Lock()
					done := s.r.over()
					a.e.lock.Unlock()
					b.e.lock.Lock()
					done = done && r.r.over()
					b.e.lock.Unlock()
					if done {
						break
					}
					require.NoError(t, ctx.Err())
					time.Sleep(100 * time.Microsecond)
				}
				for _, q := range []Request{r, s} {
					completed(t, q)
				}
				require.Equal(t, msg, got)
			}
		}
	})
}

// TestSleepers: a send that waits for room, and all else that waits, goes on once a
// receiver that had not looked for a while does.
func TestSleepers(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Comm) {
		n := need.InLong(8<<20, 32<<20)
		msg := pattern(n, 1)
		both(t, func() error { return a.Send(within(t), msg, 1, 0) },
			func() error {
				asleep(t, a.e)
				got := make([]byte, len(msg))
				_, err := b.Recv(within(t), got, 0, 0)
				if err == nil && string(got) != string(msg) {
					err = fmt.Errorf("the message is wrong")
				}
				return err
			})
	})
}

// TestRestPackets: once a long message is being received, its packets are longer than others, but for a
// foreign host. Longer ones are refused.
func TestRestPackets(t *testing.T) {
	const packetLen = 500
	w := worlds(t, place{"", 2, 1, Config{Providers: []string{}, PacketLen: packetLen}})
	l := w[0].e.links[1]
	require.EqualValues(t, restPackets*packetLen, l.rest)
	got := make([]byte, 3*restPackets*packetLen+7)
	r := irecv(t, w[0], got, 1, 0)
	q := isend(t, w[1], pattern(len(got), 1), 0, 0)
	both(t, func() error { _, err := r.Wait(within(t)); return err }, func() error { _, err := q.Wait(within(t)); return err })
	require.Equal(t, pattern(len(got), 1), got)
	w[1].e.lock.Lock()
	sent := w[1].e.links[0].pairs[0].inFlight
	w[1].e.lock.Unlock()
	require.EqualValues(t, 4, sent, "packets: the first, and three long ones")

	victim := &link{e: w[0].e, packetLen: packetLen, rest: l.rest}
	for _, c := range []struct {
		to   uint64
		body uint32
		want string
	}{
		{0, packetLen + 1, "packet of 501 bytes, the agreed length is 500"},
		{1 << 40, restPackets*packetLen + 1, "packet of 4001 bytes, the agreed length is 4000"},
		{1 << 40, restPackets * packetLen, "expects none"},
	} {
		w[0].e.lock.Lock()
		err := victim.header(&arrival{t: packet.Data, src: 1, dest: w[0].e.processOf(0), drqid: c.to, body: c.body, length: 1 << 20})
		w[0].e.lock.Unlock()
		require.ErrorIs(t, err, ErrProtocol)
		require.ErrorContains(t, err, c.want)
	}
}
