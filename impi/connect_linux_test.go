package impi

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/netns"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestForeignAddress: a foreign host proves nothing, but it connects from its address.
func TestForeignAddress(t *testing.T) {
	d := newDancing(t, 2, "")
	r := d.rosters[0]
	r.foreign = true
	r.hosts[1].foreign = true
	r.hosts[1].addrs = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.3:1")}
	var job *Job
	var err error
	var hosts sync.WaitGroup
	hosts.Go(func() { job, err = d.host(within(t), 0, limit) })
	stranger := d.dial(t, 0)
	_, werr := stranger.Write(number(1))
	require.NoError(t, werr)
	refused(t, stranger)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}}
	conn, derr := dialer.Dial("tcp", d.listeners[0].Addr().String())
	require.NoError(t, derr)
	defer conn.Close()
	_, werr = conn.Write(number(1))
	require.NoError(t, werr)
	hosts.Wait()
	require.NoError(t, err)
	job.protocol = false // it would not come to the last barrier
	conn.Close()
	require.NoError(t, job.Close(within(t)))
}

// TestSilent: a host of another machine that accepts no connection does not come.
func TestSilent(t *testing.T) {
	for present := range 2 {
		t.Run(fmt.Sprint(present), func(t *testing.T) {
			d := newDancing(t, 2, "")
			d.rosters[0].hosts[present].addrs[0] = netip.MustParseAddrPort("127.0.0.2:1")
			full := d.listeners[1-present].(*net.TCPListener)
			raw, err := full.SyscallConn()
			require.NoError(t, err)
			require.NoError(t, raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 0) }))
			require.NoError(t, err)
			d.dial(t, 1-present) // fills its queue
			ctx := within(t)
			_, err = d.host(ctx, present, 50*time.Millisecond)
			requireError(t, err, ErrUnreachable, 1-present)
			require.NoError(t, ctx.Err())
		})
	}
}

// TestInterfacesToNowhere: the hosts have many addresses at which neither reaches the other.
func TestInterfacesToNowhere(t *testing.T) {
	need.Networks(t)
	both := nettest.Networks(t)
	nettest.LeadNowhere(t, both, 20)
	list := nettest.Start(t, "198.18.0.1:20001", []nettest.Place{{Prefix: both[0].Command()}, {Prefix: both[1].Command()}},
		[]string{envPlace + "=tcp", nettest.EnvAddress + "=0.0.0.0"}, "exchange", "1")
	for _, r := range list {
		require.NoError(t, <-r.End, nettest.Output(list))
	}
}

// TestVanishedEarly: a host vanishes while it agrees with another on the way of packets.
func TestVanishedEarly(t *testing.T) {
	need.Networks(t)
	need.Full(t)
	star, err := netns.NewStar(2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, star.Close()) })
	conn, l, err := star.Connect()
	require.NoError(t, err)
	defer l.Close()
	defer conn.Close()
	require.NoError(t, star.Hosts[1].Vanish())
	s, link := newSetup(0)
	s.j.config.PeerTimeout = time.Second
	_, err = s.negotiate(within(t), link, conn)
	require.ErrorContains(t, err, "no acknowledgement for 1s")
}

func init() { acts["vanish"] = act{do: vanish, peerTimeout: 2 * time.Second} }

// TestVanishedHost: a host vanishes while data is on its way to it.
func TestVanishedHost(t *testing.T) {
	need.Networks(t)
	need.Full(t)
	both := nettest.Networks(t)
	list := nettest.Start(t, "198.18.0.1:20001", []nettest.Place{{Prefix: both[0].Command()}, {Prefix: both[1].Command()}},
		[]string{envPlace + "=tcp", nettest.EnvAddress + "=0.0.0.0"}, "vanish", string(both[1]))
	<-list[0].End // after a failed Close
	require.Contains(t, list[0].Out.String(), "noticed: ", nettest.Output(list))
	require.Contains(t, list[0].Out.String(), "no acknowledgement for 2s")
}

// vanish sends to a host whose network goes down, and waits for an answer.
func vanish(ctx context.Context, j *Job, args []string) error {
	c := j.World()
	if c.Rank() == 1 {
		_, err := c.Recv(ctx, make([]byte, 8), 0, 1)
		return err
	}
	if err := nettest.Network(args[0]).IP("link", "set", "veth0", "down"); err != nil {
		return err
	}
	if err := c.Send(ctx, make([]byte, 8), 1, 0); err != nil {
		return err
	}
	_, err := c.Recv(ctx, make([]byte, 8), 1, 0)
	fmt.Println("noticed:", err)
	return err
}
