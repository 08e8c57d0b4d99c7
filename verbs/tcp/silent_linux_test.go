package tcp

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/test/refuse"
	"github.com/sluice-hpc/sluice/verbs"
)

// patience is for peer timeouts of seconds, on a loaded machine.
const patience = 40 * time.Second

// wantLost waits for the first outstanding send to fail because the peer does not answer. Without
// [keepalive.Watch] the kernel would take minutes.
func wantLost(t *testing.T, p *peer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wcs := make([]verbs.WC, 1)
	for {
		_, err := p.cq.Wait(ctx, wcs)
		require.NoError(t, err, "still not lost")
		if wcs[0].Status != verbs.WCSuccess {
			break
		}
	}
	require.Equal(t, verbs.WCRetryExcErr, wcs[0].Status)
	require.EqualValues(t, vendorLost, wcs[0].VendorErr)
	require.Equal(t, verbs.QPErr, p.qp.State())
	e, err := p.ctx.AsyncEvent(ctx)
	require.NoError(t, err)
	require.Equal(t, verbs.EventQPFatal, e.Type)
	require.ErrorIs(t, p.qp.Cause(), syscall.ETIMEDOUT)
	require.NotErrorIs(t, p.qp.Cause(), verbs.ErrPeerDied)
}

// write posts RDMA_WRITEs of size bytes.
func (p *peer) write(t *testing.T, count, size int) {
	t.Helper()
	for range count {
		n, err := p.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{p.mr.SGE(0, size)}, RKey: p.far.RKey, RemoteAddr: p.far.Addr}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
}

// works requires that the peer executes requests.
func (p *peer) works(t *testing.T) {
	t.Helper()
	p.write(t, 1, 8)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	wcs := make([]verbs.WC, 1)
	_, err := p.cq.Wait(ctx, wcs)
	require.NoError(t, err)
	require.NoError(t, wcs[0].Err())
}

// TestStoppedPeer: a process that is stopped and reads nothing is waited for, beyond the peer timeout.
func TestStoppedPeer(t *testing.T) {
	need.Full(t)
	leak.Check(t)
	for name, portable := range drivers {
		const timeout = time.Second
		cfg := verbs.Config{Secret: secret, Portable: portable, PeerTimeout: timeout}
		stop := func(t *testing.T, p *peer) {
			const count = 16
			p.works(t)
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
			defer p.cmd.Process.Signal(syscall.SIGCONT)
			p.write(t, count, cornerSize) // more than sockets hold
			time.Sleep(5 * timeout)
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
			wcs := make([]verbs.WC, 1)
			for range count {
				_, err := p.cq.Wait(ranks.Within(t), wcs)
				require.NoError(t, err)
				require.NoError(t, wcs[0].Err())
			}
		}
		t.Run(name+", this host", func(t *testing.T) {
			t.Parallel() // they wait
			stop(t, startPeer(t, "idle", cfg, loop(t), loop(t), ""))
		})
		t.Run(name+", another host", func(t *testing.T) {
			need.Networks(t)
			t.Parallel()
			p, _ := startFarPeer(t, cfg)
			stop(t, p)
		})
	}
}

// startFarPeer starts a peer in a network namespace of its own; after unplug, its end is down.
//
//	  this namespace                   another
//	+----------------+            +----------------+
//	|  near address  | -- veth -- |  far address   |
//	+----------------+            +----------------+
func startFarPeer(t *testing.T, cfg verbs.Config) (p *peer, unplug func() error) {
	t.Helper()
	i := int(farPeers.Add(1))
	ns := fmt.Sprintf("sluice%d-%d", os.Getpid(), i)
	near, remote := fmt.Sprintf("slA%d-%d", os.Getpid(), i), fmt.Sprintf("slB%d-%d", os.Getpid(), i)
	require.NoError(t, nettest.IP("netns", "add", ns))
	t.Cleanup(func() { require.NoError(t, nettest.IP("netns", "del", ns)) })
	require.NoError(t, nettest.IP("link", "add", near, "type", "veth", "peer", "name", remote, "netns", ns))
	t.Cleanup(func() { require.NoError(t, nettest.IP("link", "del", near)) })
	link, err := net.InterfaceByName(near)
	require.NoError(t, err)
	// RFC 2544: 198.18.0.0/15 is for tests of networks. No other interface here has this index, or process this network.
	base := netip.MustParsePrefix("198.18.0.0/15").Addr().As4()
	network := binary.BigEndian.Uint32(base[:]) + uint32(link.Index)<<2%(1<<17)
	address := func(host uint32) string {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, network+host))).String()
	}
	require.NoError(t, nettest.IP("addr", "add", address(1)+"/30", "dev", near))
	require.NoError(t, nettest.IP("link", "set", near, "up"))
	far := nettest.Network(ns)
	require.NoError(t, far.IP("addr", "add", address(2)+"/30", "dev", remote))
	require.NoError(t, far.IP("link", "set", remote, "up"))
	p = startPeer(t, "idle", cfg, "tcp_"+near, "tcp_"+remote, address(2), far.Command()...)
	return p, func() error { return far.IP("link", "set", remote, "down") }
}

// farPeers counts those of this process.
var farPeers atomic.Int32

// envRefuse, if set, has this process and its peers not read TCP_INFO.
const envRefuse = "SLUICE_TEST_REFUSE_TCP_INFO"

func init() {
	if os.Getenv(envRefuse) != "" {
		if err := refuse.Call(unix.SYS_GETSOCKOPT, refuse.Arg{Index: 1, Value: unix.IPPROTO_TCP}, refuse.Arg{Index: 2, Value: unix.TCP_INFO}); err != nil {
			panic(err)
		}
	}
}

// TestBlackHoleUnwatched: where the system refuses to tell what is acknowledged, a silent host is found, too.
func TestBlackHoleUnwatched(t *testing.T) {
	need.Networks(t)
	need.Full(t)
	ranks.Again(t, "^TestBlackHole$/^portable_false,_busy_true$", []string{envRefuse + "=1", need.LongVariable + "=1"})
}

// TestBlackHole: a network that swallows everything, between two namespaces.
func TestBlackHole(t *testing.T) {
	need.Networks(t)
	need.Full(t)
	leak.Check(t)
	for i, portable := range []bool{false, false, true, true} {
		busy := i%2 == 1
		t.Run(fmt.Sprintf("portable %v, busy %v", portable, busy), func(t *testing.T) {
			if portable != busy { // of each driver and of each way one has run
				need.Long(t)
			}
			t.Parallel() // in networks of their own: they all wait
			const timeout = 3 * time.Second
			p, unplug := startFarPeer(t, verbs.Config{Secret: secret, Portable: portable, PeerTimeout: timeout})
			p.works(t)
			require.NoError(t, unplug())
			start := time.Now()
			if busy {
				p.write(t, 1, 8) // bytes that are not acknowledged
				wantLost(t, p)
				t.Logf("given up after %v, timeout %v", time.Since(start), timeout)
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			e, err := p.ctx.AsyncEvent(ctx)
			require.NoError(t, err, "probes that are not answered")
			require.Equal(t, verbs.EventQPFatal, e.Type)
			require.Equal(t, verbs.QPErr, p.qp.State())
			t.Logf("given up after %v, timeout %v", time.Since(start), timeout)
		})
	}
}
