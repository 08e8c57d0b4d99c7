package reach

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// The addresses of this host, and their order.
func TestAddresses(t *testing.T) {
	own, here := listed, reached.Load()
	t.Cleanup(func() { listed = own; reached.Store(here) })
	from := func(address string) {
		reached.Store(nil)
		ip, port := netip.MustParseAddr(address), uint16(1)
		note(&local{addr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, port))})
	}
	list, err := Addresses()
	require.NoError(t, err)
	require.True(t, list[len(list)-1].IsLoopback(), list)

	of := func(texts ...string) (all []netip.Addr) {
		for _, s := range texts {
			all = append(all, netip.MustParseAddr(s))
		}
		return all
	}
	listed = func() ([]Interface, error) {
		return []Interface{{Name: "lo", Addrs: of("127.0.0.1", "::1")}, {Name: "docker0", Addrs: of("172.17.0.1")},
			{Name: "eth0", Addrs: of("fe80::7", "2001:db8::7", "169.254.7.7", "198.51.100.7")}}, nil
	}
	for first, want := range map[string][]netip.Addr{
		"198.51.100.7":        of("198.51.100.7", "172.17.0.1", "2001:db8::7", "169.254.7.7", "127.0.0.1", "::1"),
		"::ffff:198.51.100.7": of("198.51.100.7", "172.17.0.1", "2001:db8::7", "169.254.7.7", "127.0.0.1", "::1"),
		"2001:db8::7":         of("2001:db8::7", "172.17.0.1", "198.51.100.7", "169.254.7.7", "127.0.0.1", "::1"),
		"203.0.113.1":         of("203.0.113.1", "172.17.0.1", "198.51.100.7", "2001:db8::7", "169.254.7.7", "127.0.0.1", "::1"), // not listed
	} {
		from(first)
		note(&local{addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort("172.17.0.1:1"))}) // the first counts
		list, err := Addresses()
		require.NoError(t, err)
		require.Equal(t, want, list, first)
	}

	refused := errors.New("operation not permitted")
	listed = func() ([]Interface, error) { return nil, refused }
	from("198.51.100.7")
	list, err = Addresses()
	require.NoError(t, err)
	require.Equal(t, "198.51.100.7", list[0].String())
	from("127.0.0.1")
	list, err = Addresses()
	require.NoError(t, err, "those from which the system would send")
	require.True(t, list[len(list)-1].IsLoopback(), list)
}

// local is this end of a connection.
type local struct {
	net.Conn
	addr net.Addr
}

func (l *local) LocalAddr() net.Addr { return l.addr }

// A listener on all addresses takes connections by IPv4 and IPv6.
func TestListen(t *testing.T) {
	ctx := t.Context()
	meet := func(ln net.Listener, address string) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		other, err := ln.Accept()
		return errors.Join(err, other.Close(), conn.Close())
	}
	ln, err := Listen(ctx, net.ListenConfig{}, ":0")
	require.NoError(t, err)
	defer ln.Close()
	list, err := Addresses()
	require.NoError(t, err)
	port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
	for _, a := range list {
		require.NoError(t, meet(ln, netip.AddrPortFrom(a, port).String()))
	}
	one, err := Listen(ctx, net.ListenConfig{}, "127.0.0.1:0")
	require.NoError(t, err)
	defer one.Close()
	require.NoError(t, meet(one, one.Addr().String()))
	loopback, err := ListenLoopback(ctx)
	require.NoError(t, err)
	defer loopback.Close()
	require.True(t, loopback.Addr().(*net.TCPAddr).IP.IsLoopback())
	require.NoError(t, meet(loopback, loopback.Addr().String()))
	_, err = Listen(ctx, net.ListenConfig{}, "no port")
	require.Error(t, err)
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err = Towards(over, "no-such-host.invalid:9")
	require.Error(t, err)
}
