package impi

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
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
