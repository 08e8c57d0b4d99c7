package roce

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

func openWire(t testing.TB, addr string) *udp {
	t.Helper()
	need.Address(t, addr)
	u, err := openUDP(netip.MustParseAddr(addr), 65536, 0)
	require.NoError(t, err)
	return u
}

// awaitPackets receives until there are n packets, for at most some seconds.
func awaitPackets(t testing.TB, u *udp, n int) (got [][]byte) {
	t.Helper()
	var into [batch]arrival
	for end := time.Now().Add(ranks.Limit); len(got) < n; {
		k := u.recv(into[:])
		for _, a := range into[:k] {
			got = append(got, append([]byte{}, a.pkt...))
		}
		if k == 0 {
			require.True(t, time.Now().Before(end), "%d of %d packets", len(got), n)
			unix.Poll([]unix.PollFd{{Fd: int32(u.fd), Events: unix.POLLIN}}, 100)
		}
	}
	return got
}

// Packets of any lengths, to several peers, arrive whole and in order, however they are combined into
// trains.
func TestTrains(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			from, to := openWire(t, addr), [2]*udp{}
			defer from.close()
			var flows [2]flow
			var want [2][][]byte
			for i := range to {
				to[i] = openWire(t, addr)
				defer to[i].close()
				require.NotEqual(t, from.local(), to[i].local())
				flows[i].set(from.local(), to[i].local())
			}
			rng := rand.New(rand.NewPCG(1, 1))
			n := 0
			for range 100 {
				// Few enough for any socket to queue.
				peer, size := rng.IntN(2), 12+4*rng.IntN(1000)
				for range 1 + rng.IntN(8) {
					if rng.IntN(5) == 0 {
						size = 12 + 4*rng.IntN(1000)
					}
					b := from.frame(&flows[peer], size)
					require.Len(t, b, size)
					for i := range b {
						b[i] = byte(rng.Uint32())
					}
					if rng.IntN(10) == 0 {
						from.cancel()
						continue
					}
					want[peer] = append(want[peer], append([]byte{}, b...))
				}
				if n++; n%5 == 0 {
					from.flush()
					for i := range to {
						require.Equal(t, want[i], awaitPackets(t, to[i], len(want[i])))
						want[i] = nil
					}
				}
			}
		})
	}
}

// deaf returns an address at which nothing receives until t ends, as if its port were unused. A socket holds the port,
// which another could get else, but is connected, and receives from its peer alone.
func deaf(t testing.TB, addr string) netip.AddrPort {
	t.Helper()
	need.Address(t, addr)
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)),
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 1)))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// The host of an unused port reports that, and for which packet.
func TestUnreachable(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			u := openWire(t, addr)
			defer u.close()
			var f flow
			f.set(u.local(), deaf(t, addr))
			h := packet.Header{Opcode: packet.SendOnly, DestQP: 7, PSN: 9}
			h.Append(u.frame(&f, 12)[:0])
			u.flush()
			var into [batch]arrival
			var got report
			ok := false
			for ctx := ranks.Within(t); !ok && ctx.Err() == nil; time.Sleep(time.Millisecond) {
				require.Zero(t, u.recv(into[:]))
				got, ok = u.unreachable()
			}
			require.True(t, ok)
			require.Equal(t, report{f.remote, h}, got)
			_, ok = u.unreachable()
			require.False(t, ok)
		})
	}
}

// Only a port's own host can report that it is unused, not a router, nor this host about packets that
// it could not send.
func TestRefusesPort(t *testing.T) {
	for _, hosts := range [][2]string{{"198.18.0.2", "198.18.0.3"}, {"fd00::2", "fd00::3"}} {
		host, other := netip.MustParseAddr(hosts[0]), netip.MustParseAddr(hosts[1])
		level, kind, origin := int32(unix.IPPROTO_IP), int32(unix.IP_RECVERR), byte(unix.SO_EE_ORIGIN_ICMP)
		if host.Is6() {
			level, kind, origin = unix.IPPROTO_IPV6, unix.IPV6_RECVERR, unix.SO_EE_ORIGIN_ICMP6
		}
		// struct sock_extended_err (linux/errqueue.h), and the address that the error came from.
		message := func(errno unix.Errno, origin byte, from netip.Addr) control {
			b := make([]byte, 16)
			binary.NativeEndian.PutUint32(b, uint32(errno))
			b[4] = origin
			var a sockaddr
			a.set(netip.AddrPortFrom(from, 0))
			return control{level, kind, append(b, a.b[:a.n]...)}
		}
		said := message(unix.ECONNREFUSED, origin, host)
		for _, c := range []struct {
			name    string
			message control
			want    bool
		}{
			{"by the host", said, true},
			{"by another host", message(unix.ECONNREFUSED, origin, other), false},
			{"without sender", control{level, kind, said.data[:16]}, false},
			{"cut off", control{level, kind, said.data[:16+unix.SizeofSockaddrInet4-1]}, false},
			{"no route", message(unix.EHOSTUNREACH, origin, host), false},
			{"too long", message(unix.EMSGSIZE, origin, host), false},
			{"here", message(unix.ECONNREFUSED, unix.SO_EE_ORIGIN_LOCAL, host), false},
			{"no error", control{level, unix.IP_TTL, said.data}, false},
			{"another level", control{unix.SOL_UDP, kind, said.data}, false},
		} {
			require.Equal(t, c.want, c.message.refusesPort(host), "%v, %s", host, c.name)
		}
	}
}

// Sending and receiving take the reports at the same time.
func TestUnreachableAtOnce(t *testing.T) {
	u := openWire(t, "127.0.0.1")
	defer u.close()
	var f flow
	f.set(u.local(), deaf(t, "127.0.0.1"))
	var sender sync.WaitGroup
	stop := make(chan struct{})
	sender.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				clear(u.frame(&f, 12))
				u.flush()
				runtime.Gosched()
			}
		}
	})
	var into [batch]arrival
	told := 0
	for ctx := ranks.Within(t); told < 200 && ctx.Err() == nil; {
		u.recv(into[:])
		if got, ok := u.unreachable(); ok {
			assert.Equal(t, f.remote, got.to)
			told++
		}
	}
	close(stop)
	sender.Wait()
	require.Equal(t, 200, told)
}

// Neither sending nor receiving allocates.
func TestWireAllocs(t *testing.T) {
	u, peer := openWire(t, "127.0.0.1"), openWire(t, "127.0.0.1")
	defer u.close()
	defer peer.close()
	f := new(flow)
	f.set(u.local(), peer.local())
	into := make([]arrival, batch)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for range 5 {
			clear(u.frame(f, 1040))
		}
		u.flush()
		for got := 0; got < 5; {
			got += peer.recv(into)
		}
	}))
}
