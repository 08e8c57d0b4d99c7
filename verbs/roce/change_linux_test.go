package roce

import (
	"bytes"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// Changes of the network during traffic.

// until sends packets and drops arriving ones until a condition holds, which may take seconds.
func until(t *testing.T, from, to *express, f *flow, what string, so func() bool) {
	t.Helper()
	var into [batch]arrival
	end := time.Now().Add(ranks.Limit)
	for turn := 1; !so(); turn++ {
		require.True(t, time.Now().Before(end), "%s: sent past the stack %d, without room %d", what, from.stats.sent.Load(), from.seat.Full)
		clear(from.frame(f, 12))
		from.flush()
		unix.Poll([]unix.PollFd{{Fd: int32(to.seat.FD()), Events: unix.POLLIN}}, 2)
		if turn%8 == 0 || turn > 2048 {
			time.Sleep(time.Millisecond) // others want the CPU meanwhile
		}
		to.stir()
		for to.recv(into[:]) > 0 {
		}
	}
}

// The interface is down while more is sent than its ring holds; then packets bypass the network stack
// again.
func TestExpressLinkDown(t *testing.T) {
	need.Full(t)
	two, from, to, f := acquainted(t)
	two[0].ip(t, "link", "set", "veth0", "down")
	for range 4 * from.seat.Shape().Ring {
		clear(from.frame(f, 12))
		from.flush()
	}
	two[0].ip(t, "link", "set", "veth0", "up")
	// More than the ring has room for.
	want := from.stats.sent.Load() + 2*uint64(from.seat.Shape().Ring)
	until(t, from, to, f, "the link is up", func() bool { return from.stats.sent.Load() >= want })
}

// After a neighbour announces another link-layer address, packets go there, from this end's own.
func TestExpressNeighbourChanges(t *testing.T) {
	t.Parallel()
	needXDP(t)
	need.Full(t)
	two, from, to, f := acquainted(t)
	require.NoError(t, two[1].in(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/veth0/arp_notify", []byte("1"), 0) }))
	ends := bytes.Join([][]byte{{2, 0, 0, 0, 0x18, 2}, {2, 0, 0, 0, 0x18, 1}}, nil)
	two[1].ip(t, "link", "set", "veth0", "address", net.HardwareAddr(ends[:6]).String())
	two[0].ip(t, "link", "set", "veth0", "address", net.HardwareAddr(ends[6:]).String())
	until(t, from, to, f, "the addresses are others", func() bool {
		// As it is on the wire.
		before := from.stats.sent.Load()
		clear(from.frame(f, 12))
		from.flush()
		if from.stats.sent.Load() == before {
			return false
		}
		unix.Poll([]unix.PollFd{{Fd: int32(to.seat.FD()), Events: unix.POLLIN}}, 1000)
		to.seat.Begin()
		b := to.seat.Next()
		return len(b) > len(ends) && bytes.Equal(b[:len(ends)], ends)
	})
}

// Packets follow a route to another interface, through the network stack, and back.
func TestExpressRouteChanges(t *testing.T) {
	t.Parallel()
	needXDP(t)
	need.Full(t)
	two, from, to, f := acquainted(t)
	two[0].ip(t, "link", "add", "veth1", "type", "veth", "peer", "name", "veth1", "netns", string(two[1]))
	for _, h := range two {
		h.ip(t, "link", "set", "veth1", "up")
		require.NoError(t, h.in(func() error {
			for _, name := range []string{"all", "veth1"} {
				if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/rp_filter", []byte("0"), 0); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	two[0].ip(t, "route", "add", "198.18.0.2/32", "dev", "veth1")
	until(t, from, to, f, "the route is another", func() bool {
		from.path(f).Ethernet() // nil where the stack is to make sure of the neighbour, too, but once
		return from.path(f).Ethernet() == nil
	})
	sent := from.stats.sent.Load()
	var want [][]byte
	for i := range 20 {
		b := from.frame(f, 1040)
		for j := range b {
			b[j] = byte(i * j)
		}
		want = append(want, append([]byte{}, b...))
		from.flush()
	}
	require.Equal(t, sent, from.stats.sent.Load())
	require.Equal(t, want, to.take(t, len(want)))

	two[0].ip(t, "route", "del", "198.18.0.2/32", "dev", "veth1")
	until(t, from, to, f, "the route is the first one again", func() bool { return from.stats.sent.Load() >= sent+10 })
}

// If packets of a QP's path MTU no longer pass, requests that need them fail as if the peer were
// silent; other requests, and QPs created then, are not affected.
func TestMTUChanges(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{providerName, xdpName} {
		t.Run(provider, func(t *testing.T) {
			if provider == xdpName {
				needXDP(t)
			}
			need.Networks(t)
			need.Full(t)
			t.Parallel() // it waits for the silent peer
			two := hosts(t, 9000)
			var ends [2]*place
			for i := range ends {
				ends[i] = newPlace(t, 4*lossySize, func() *verbs.Context {
					return two[i].open(t, provider+"_veth0", verbs.Config{PeerTimeout: 2 * time.Second})
				})
			}
			connect := func() {
				for i, e := range ends {
					remote, err := ends[1-i].qp.Endpoint()
					require.NoError(t, err)
					require.NoError(t, e.qp.Connect(remote, verbs.ConnectAttr{}))
				}
			}
			connect()
			mtu := func() verbs.MTU {
				port, err := ends[0].ctx.QueryPort(1)
				require.NoError(t, err)
				return port.ActiveMTU
			}
			require.Equal(t, verbs.MTU4096, mtu())
			ends[0].writes(t, ends[1], verbs.OpRDMAWrite, 4)
			for _, h := range two {
				h.ip(t, "link", "set", "veth0", "mtu", "1500")
			}
			require.Equal(t, verbs.MTU1024, mtu())
			for _, c := range []struct {
				size   int
				status verbs.WCStatus
			}{{1000, verbs.WCSuccess}, {lossySize, verbs.WCRetryExcErr}, {1000, verbs.WCWRFlushErr}} {
				e, to := ends[0], ends[1]
				_, err := e.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mem.SGE(0, c.size)},
					RemoteAddr: to.mem.Addr(), RKey: to.mem.RKey()}})
				require.NoError(t, err)
				var wcs [1]verbs.WC
				n, err := e.cq.Wait(t.Context(), wcs[:])
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Equal(t, c.status, wcs[0].Status)
			}
			for _, e := range ends {
				require.NoError(t, e.qp.Close())
				pd, err := e.ctx.AllocPD()
				require.NoError(t, err)
				e.qp, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 32, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
				require.NoError(t, err)
				e.mem, err = pd.AllocMR(4*lossySize, verbs.AccessAll)
				require.NoError(t, err)
			}
			connect()
			b := ends[0].mem.Bytes()
			for i := range b {
				b[i] = byte(i>>8) + byte(i)
			}
			ends[0].writes(t, ends[1], verbs.OpRDMAWrite, 4)
			require.True(t, bytes.Equal(b, ends[1].mem.Bytes()))
		})
	}
}
