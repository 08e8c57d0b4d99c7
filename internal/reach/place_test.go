package reach

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// SLUICE_PORTS: every listener at a port of the system's choice has one of these, until none is left.
func TestPorts(t *testing.T) {
	var first, last int
	var value string
	var err error
	for seen := map[int]bool{}; len(seen) <= last-first; { // a port that another process has may become free
		first = ranks.Listen(t).Addr().(*net.TCPAddr).Port
		last = min(first+5, 65535)
		value = strconv.Itoa(first) + "-" + strconv.Itoa(last)
		t.Setenv(EnvPorts, value)
		seen = map[int]bool{first: true}
		for {
			var ln net.Listener
			if ln, err = ListenLoopback(t.Context()); err != nil {
				break
			}
			defer ln.Close()
			port := ln.Addr().(*net.TCPAddr).Port
			require.False(t, seen[port])
			require.True(t, port >= first && port <= last, port)
			seen[port] = true
		}
	}
	var setting *SettingError
	require.ErrorAs(t, err, &setting)
	require.ErrorIs(t, err, ErrNoPort)
	require.ErrorContains(t, err, "SLUICE_PORTS="+value+": no port is free: all "+strconv.Itoa(last-first+1)+" are in use")
	for _, listen := range []func() (net.Listener, error){
		func() (net.Listener, error) { return ListenAny(t.Context()) },
		func() (net.Listener, error) { return Listen(t.Context(), net.ListenConfig{}, "127.0.0.1:0") },
	} {
		_, err := listen()
		require.ErrorIs(t, err, ErrNoPort)
	}
	for _, bad := range []string{"x", "1", "0-5", "7-6", "1-65536", "1-2-3", "-5", "5-"} {
		t.Setenv(EnvPorts, bad)
		_, err := ListenLoopback(t.Context())
		require.ErrorAs(t, err, &setting)
		require.ErrorContains(t, err, "SLUICE_PORTS="+bad+": want two ports")
	}
	t.Setenv(EnvPorts, "1-2")
	ln, err := Listen(t.Context(), net.ListenConfig{}, net.JoinHostPort("127.0.0.2", strconv.Itoa(first))) // given explicitly
	require.NoError(t, err)
	require.NoError(t, ln.Close())
}

// SLUICE_NET: this host has the addresses that it allows, and listens there.
func TestNet(t *testing.T) {
	own, here := listed, reached.Load()
	t.Cleanup(func() { listed = own; reached.Store(here) })
	reached.Store(nil)
	of := func(texts ...string) (all []netip.Addr) {
		for _, s := range texts {
			all = append(all, netip.MustParseAddr(s))
		}
		return all
	}
	listed = func() ([]Interface, error) {
		return []Interface{{Name: "lo", Loop: true, Addrs: of("127.0.0.1", "::1")}, {Name: "docker0", Addrs: of("172.17.0.1")},
			{Name: "eth0", Addrs: of("fe80::7", "2001:db8::7", "198.51.100.7")}, {Name: "ib0", Addrs: of("198.51.100.9")}}, nil
	}
	for value, want := range map[string]struct {
		addresses  []netip.Addr
		interfaces string
	}{
		"172.16.0.0/12":   {of("172.17.0.1"), "lo docker0"},
		"198.51.100.0/24": {of("198.51.100.7", "198.51.100.9"), "lo eth0 ib0"},
		"2001:db8::/32":   {of("2001:db8::7"), "lo eth0"},
		"eth0":            {of("198.51.100.7", "2001:db8::7"), "lo eth0"},
		"127.0.0.0/8":     {of("127.0.0.1"), "lo"},
	} {
		t.Setenv(EnvNet, value)
		list, err := Addresses()
		require.NoError(t, err, value)
		require.Equal(t, want.addresses, list, value)
		interfaces, err := Interfaces()
		require.NoError(t, err)
		var names []string
		for _, in := range interfaces {
			names = append(names, in.Name)
		}
		require.Equal(t, want.interfaces, strings.Join(names, " "), value)
	}
	for value, says := range map[string]string{
		"10.0.0.0/8": "this host has no such address or interface: it has lo 127.0.0.1, lo ::1, docker0 172.17.0.1,",
		"eth1":       "this host has no such address or interface",
		"10.0.0.0/x": "want a prefix, as in 10.1.0.0/16, or the name of an interface",
	} {
		t.Setenv(EnvNet, value)
		for _, f := range []func() error{
			func() error { _, err := Addresses(); return err },
			func() error { _, err := Interfaces(); return err },
			func() error { _, err := ListenAny(context.Background()); return err },
			func() error { _, err := From(context.Background(), "127.0.0.1:1"); return err },
		} {
			err := f()
			require.ErrorAs(t, err, new(*SettingError), value)
			require.ErrorContains(t, err, "SLUICE_NET="+value+": "+says)
		}
	}
	listed = own
	t.Setenv(EnvNet, "127.0.0.0/8")
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		ln, err := Listen(t.Context(), net.ListenConfig{}, address)
		require.NoError(t, err)
		defer ln.Close()
		require.Equal(t, "127.0.0.1", ln.Addr().(*net.TCPAddr).IP.String())
		list, err := AddressesOf(ln)
		require.NoError(t, err)
		require.Equal(t, of("127.0.0.1"), list)
	}
}
