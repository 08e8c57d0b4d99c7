package roce

import (
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// openExpress opens the wire at an address of a host.
func openExpress(t testing.TB, h host, addr string) *express {
	t.Helper()
	var w *express
	require.NoError(t, h.in(func() error {
		nics, err := nic.List()
		if err != nil {
			return err
		}
		n := nics[len(nics)-1]
		u, err := openUDP(netip.MustParseAddr(addr), n.MTU, 0)
		if err != nil {
			return err
		}
		w, err = overXDP(u, &n)
		return err
	}))
	return w
}

// take receives at least n packets, for at most some seconds.
func (w *express) take(t testing.TB, n int) (got [][]byte) {
	t.Helper()
	var into [batch]arrival
	for end := time.Now().Add(ranks.Limit); len(got) < n; {
		k := w.recv(into[:])
		for _, a := range into[:k] {
			got = append(got, append([]byte{}, a.pkt...))
		}
		if k == 0 {
			require.True(t, time.Now().Before(end), "%d of %d packets", len(got), n)
			unix.Poll([]unix.PollFd{{Fd: int32(w.seat.FD()), Events: unix.POLLIN}, {Fd: int32(w.fd), Events: unix.POLLIN}}, 10)
			w.stir()
		}
	}
	return got
}

// meet sends until packets arrive by AF_XDP: the first go through the network stack, which resolves
// the neighbour.
func meet(t testing.TB, from, to *express) *flow {
	t.Helper()
	f := new(flow)
	f.set(from.local(), to.local())
	for end := time.Now().Add(ranks.Limit); from.stats.sent.Load() == 0; {
		require.True(t, time.Now().Before(end), "the neighbour is not found")
		clear(from.frame(f, 12))
		from.flush()
		to.take(t, 1)
	}
	return f
}

// acquainted opens the wires of two hosts, which know each other's addresses on the link; f leads
// from the first to the second.
func acquainted(t testing.TB) (two [2]host, from, to *express, f *flow) {
	t.Helper()
	needXDP(t)
	two = hosts(t, 1500)
	from, to = openExpress(t, two[0], "198.18.0.1"), openExpress(t, two[1], "198.18.0.2")
	t.Cleanup(from.close)
	t.Cleanup(to.close)
	return two, from, to, meet(t, from, to)
}

// Packets of all lengths arrive whole and in order, past the network stack, at each
// of several seats of one queue.
func TestExpress(t *testing.T) {
	needXDP(t)
	need.Networks(t)
	for _, c := range []struct {
		name, mode, near, far string
		mtu                   int
		need                  func(testing.TB)
	}{
		{"generic", "generic", "198.18.0.1", "198.18.0.2", 1500, func(testing.TB) {}},
		{"generic, IPv6", "generic", "fd00::1", "fd00::2", 1500, need.Long},
		{"generic, several frames", "generic", "198.18.0.1", "198.18.0.2", 9000, need.Long},
		{"native", "native", "198.18.0.1", "198.18.0.2", 1500, need.Long},
		{"native, IPv6, several frames", "native", "fd00::1", "fd00::2", 9000, need.Full},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.need(t)
			two := hosts(t, c.mtu)
			t.Setenv(envMode, c.mode)
			from := openExpress(t, two[0], c.near)
			defer from.close()
			var to [2]*express
			var flows [2]*flow
			var want [2][][]byte
			for i := range to {
				to[i] = openExpress(t, two[1], c.far)
				defer to[i].close()
				flows[i] = meet(t, from, to[i])
			}
			require.NotEqual(t, to[0].local(), to[1].local())
			most := min(from.maxMTU(), 4096) + transportUp - packet.ICRCLen
			if c.mtu > 4096 {
				require.GreaterOrEqual(t, from.maxMTU(), 4096)
			}
			rng := rand.New(rand.NewPCG(1, 1))
			before := [3]uint64{from.stats.sent.Load(), to[0].stats.received.Load(), to[1].stats.received.Load()}
			var sent [2]int
			rounds := need.InLong(50, 200)
			for round := range rounds {
				for range 1 + rng.IntN(40) {
					i := rng.IntN(2)
					size := 12 + 4*rng.IntN((most-12)/4+1)
					b := from.frame(flows[i], size)
					require.Len(t, b, size)
					for j := range b {
						b[j] = byte(rng.Uint32())
					}
					if rng.IntN(10) == 0 {
						from.cancel()
						continue
					}
					want[i] = append(want[i], append([]byte{}, b...))
				}
				if from.flush(); round%3 == 0 {
					for i := range to {
						require.Equal(t, want[i], to[i].take(t, len(want[i])))
						sent[i] += len(want[i])
						want[i] = nil
					}
				}
			}
			for i := range to {
				require.Equal(t, want[i], to[i].take(t, len(want[i])))
				sent[i] += len(want[i])
				// Except the few by which the network stack checks the neighbour.
				require.GreaterOrEqual(t, to[i].stats.received.Load()-before[1+i], uint64(sent[i]-10))
			}
			require.GreaterOrEqual(t, from.stats.sent.Load()-before[0], uint64(sent[0]+sent[1]-10))
			require.Zero(t, from.seat.Full)
		})
	}
}

// Neither sending nor receiving allocates.
func TestExpressAllocs(t *testing.T) {
	_, from, to, f := acquainted(t)
	into := make([]arrival, batch)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		for range 5 {
			clear(from.frame(f, 1040))
		}
		from.flush()
		for got := 0; got < 5; {
			got += to.recv(into)
		}
	}))
}

// Packets from a host to itself go through the UDP socket, and arrive.
func TestExpressToItself(t *testing.T) {
	need.Full(t)
	needXDP(t)
	two := hosts(t, 1500)
	a, b := openExpress(t, two[0], "198.18.0.1"), openExpress(t, two[0], "198.18.0.1")
	defer a.close()
	defer b.close()
	for _, to := range []*express{a, b} {
		f := new(flow)
		f.set(a.local(), to.local())
		var want [][]byte
		for i := range 100 {
			p := a.frame(f, 12+4*i)
			for j := range p {
				p[j] = byte(i + j)
			}
			want = append(want, append([]byte{}, p...))
		}
		a.flush()
		require.Equal(t, want, to.take(t, len(want)))
	}
	require.Zero(t, a.stats.sent.Load())
}

// The two wires interoperate. A train of the UDP wire, which the virtual interface segments after
// XDP, arrives at the UDP socket.
func TestExpressAndUDP(t *testing.T) {
	needXDP(t)
	two := hosts(t, 1500)
	w := openExpress(t, two[0], "198.18.0.1")
	defer w.close()
	var u *udp
	require.NoError(t, two[1].in(func() (err error) {
		u, err = openUDP(netip.MustParseAddr("198.18.0.2"), 1500, 0)
		return err
	}))
	defer u.close()
	var there, back flow
	there.set(w.local(), u.local())
	back.set(u.local(), w.local())
	fill := func(f func(n int) []byte, n int) (want [][]byte) {
		for i := range n {
			p := f(1040)
			for j := range p {
				p[j] = byte(i * j)
			}
			want = append(want, append([]byte{}, p...))
		}
		return want
	}
	for _, n := range []int{1, 20} { // the first ask for the neighbour
		want := fill(func(n int) []byte { return u.frame(&back, n) }, n)
		u.flush()
		require.Equal(t, want, w.take(t, n))
	}
	meet := func() bool { e := w.path(&there); return e.Ethernet() != nil }
	for end := time.Now().Add(ranks.Limit); !meet(); {
		require.True(t, time.Now().Before(end), "the neighbour is not found")
		clear(w.frame(&there, 12))
		w.flush()
		awaitPackets(t, u, 1)
	}
	sent := w.stats.sent.Load()
	want := fill(func(n int) []byte { return w.frame(&there, n) }, 20)
	w.flush()
	require.Equal(t, want, awaitPackets(t, u, 20))
	require.GreaterOrEqual(t, w.stats.sent.Load(), sent+19)
}

// rawFrames returns valid Ethernet frames, as express accepts them.
func rawFrames(t testing.TB) (own netip.AddrPort, v4 []byte, own6 netip.AddrPort, v6 []byte) {
	frame := func(src, dst netip.AddrPort) []byte {
		var f flow
		f.set(src, dst)
		pkt := make([]byte, 20, 20+packet.ICRCLen)
		lead := f.way.lead
		b := make([]byte, lead+24)
		f.way.write(b, &[12]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}, 24)
		copy(b[lead:], f.route.Seal(pkt, 0))
		return b
	}
	own, own6 = netip.MustParseAddrPort("198.18.0.1:4791"), netip.MustParseAddrPort("[fd00::1]:4791")
	return own, frame(netip.MustParseAddrPort("198.18.0.2:4791"), own), own6, frame(netip.MustParseAddrPort("[fd00::2]:4791"), own6)
}

func receiver(own netip.AddrPort) *express {
	w := &express{udp: &udp{addr: own}}
	w.arrived.Set(netip.AddrPortFrom(own.Addr(), 0), own)
	return w
}

// A frame with any bit flipped is dropped, except for bits that routers may change and that are
// never checked.
func TestExpressBadFrames(t *testing.T) {
	own, v4, own6, v6 := rawFrames(t)
	for _, c := range []struct {
		name string
		own  netip.AddrPort
		b    []byte
		free map[int]byte // bits that may change, by offset
	}{
		{"IPv4", own, v4, map[int]byte{
			15: 0xff, 22: 0xff, 24: 0xff, 25: 0xff, 20: 0x80, // traffic class, hops, checksum; the reserved flag is the program's
			40: 0xff, 41: 0xff, // checksum
			42 + 4: 0xff, // congestion
		}},
		{"IPv6", own6, v6, map[int]byte{14: 0x0f, 15: 0xff, 16: 0xff, 17: 0xff, 21: 0xff, 60: 0xff, 61: 0xff, 62 + 4: 0xff}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a arrival
			w := receiver(c.own)
			require.True(t, w.parse(c.b, &a), hex.Dump(c.b))
			require.True(t, w.parse(append(append([]byte{}, c.b...), make([]byte, 30)...), &a), "padding")
			require.Len(t, a.pkt, 20)
			for n := range c.b {
				require.False(t, receiver(c.own).parse(c.b[:n], &a), "the first %d bytes", n)
			}
			for i := 12; i < len(c.b); i++ {
				for bit := range 8 {
					b := append([]byte{}, c.b...)
					b[i] ^= 1 << bit
					require.Equal(t, c.free[i]>>bit&1 == 1, receiver(c.own).parse(b, &a), "byte %d, bit %d", i, bit)
				}
			}
		})
	}
}

// Whatever a frame holds, the packet parsed from it is inside the frame.
func FuzzExpressParse(f *testing.F) {
	own, v4, own6, v6 := rawFrames(f)
	f.Add(v4)
	f.Add(v6)
	wires := []*express{receiver(own), receiver(own6)}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, w := range wires {
			var a arrival
			if w.parse(b, &a) {
				require.LessOrEqual(t, len(a.pkt)+head4+packet.ICRCLen, len(b))
				require.Equal(t, w.addr.Addr().Is4(), a.src.Addr().Is4())
			}
		}
	})
}

// The path to a host that does not answer is through the network stack.
func TestExpressUnknownNeighbour(t *testing.T) {
	need.Full(t)
	needXDP(t)
	two := hosts(t, 1500)
	w := openExpress(t, two[0], "198.18.0.1")
	defer w.close()
	var f flow
	f.set(w.local(), netip.MustParseAddrPort("198.18.0.77:4791"))
	for range 10 {
		clear(w.frame(&f, 12))
		w.flush()
	}
	require.Zero(t, w.stats.sent.Load())
	require.False(t, f.way.path.Local())
}
