package impi

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

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
