package roce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// witness is a socket that reports the traffic class and hop limit of arriving packets.
type witness struct {
	fd   int
	addr netip.AddrPort
}

func newWitness(t *testing.T, addr string) (w witness) {
	a := netip.MustParseAddr(addr)
	fd, err := newSocket(a)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 0))
	if a.Is4() {
		require.NoError(t, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTTL, 1))
	} else {
		require.NoError(t, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
	}
	require.NoError(t, bind(fd, netip.AddrPortFrom(a, 0)))
	w.fd = fd
	w.addr, err = boundTo(fd)
	require.NoError(t, err)
	return w
}

// next waits for a packet.
func (w witness) next(t *testing.T) (class, hops int) {
	t.Helper()
	n, err := 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}, int(ranks.Limit/time.Millisecond))
	}
	require.NoError(t, err)
	require.Equal(t, 1, n, "nothing comes")
	oob := make([]byte, 256)
	_, n, _, _, err = unix.Recvmsg(w.fd, make([]byte, 2048), oob, 0)
	require.NoError(t, err)
	class, hops = -1, -1
	for b := oob[:n]; len(b) > 0; {
		var c control
		c, b = nextControl(b)
		switch {
		case c.level == unix.IPPROTO_IP && c.kind == unix.IP_TOS, c.level == unix.IPPROTO_IPV6 && c.kind == unix.IPV6_TCLASS:
			class = int(c.data[0])
		case c.level == unix.IPPROTO_IP && c.kind == unix.IP_TTL, c.level == unix.IPPROTO_IPV6 && c.kind == unix.IPV6_HOPLIMIT:
			hops = int(binary.NativeEndian.Uint32(c.data))
		}
	}
	return class, hops
}

// Packets have the traffic class of their flow, except for the ECN bits, and its hop limit: one by
// one and in trains, among packets of other flows.
func TestTrafficClass(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			u := openWire(t, addr)
			defer u.close()
			w := newWitness(t, addr)
			var flows [4]flow
			for i, c := range [...][2]uint8{{0, 0}, {0x68, 0}, {0, 9}, {0xff, 255}} {
				flows[i].class, flows[i].hops = c[0], c[1]
				flows[i].set(u.local(), w.addr)
			}
			for _, many := range []int{1, 5} {
				for i := range flows {
					for range many {
						clear(u.frame(&flows[i], 1040))
					}
				}
				u.flush()
				for _, want := range [][2]int{{2, 64}, {0x6a, 64}, {2, 9}, {0xfe, 255}} {
					for range many {
						class, hops := w.next(t)
						require.Equal(t, want, [2]int{class, hops})
					}
				}
			}
		})
	}
}

// The same past the network stack.
func TestExpressTrafficClass(t *testing.T) {
	needXDP(t)
	need.Networks(t)
	need.Full(t)
	two := hosts(t, 1500)
	for i, addrs := range [][2]string{{"198.18.0.1", "198.18.0.2"}, {"fd00::1", "fd00::2"}} {
		t.Run(addrs[0], func(t *testing.T) {
			from := openExpress(t, two[0], addrs[0])
			defer from.close()
			var w witness
			require.NoError(t, two[1].in(func() error { w = newWitness(t, addrs[1]); return nil }))
			f := new(flow)
			f.class, f.hops = 0x68, uint8(9+i)
			f.set(from.local(), w.addr)
			// Through the stack until the neighbour is known, then past it.
			for end := time.Now().Add(ranks.Limit); from.stats.sent.Load() < 10; {
				require.True(t, time.Now().Before(end), "the neighbour is not found")
				clear(from.frame(f, 12))
				from.flush()
				class, hops := w.next(t)
				require.Equal(t, fmt.Sprint(0x6a, 9+i), fmt.Sprint(class, hops))
			}
		})
	}
}
