package reach

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
)

// ErrNoAddress says that others could not reach this host.
var ErrNoAddress = errors.New("this host has no IP address; is its loopback interface up?")

// reached is the address from which [Dial] has reached another host first: the rendezvous of a job.
var reached atomic.Pointer[netip.Addr]

// note keeps the address of this end of a connection to another host.
func note(conn net.Conn) {
	if a, ok := conn.LocalAddr().(*net.TCPAddr); ok && !a.IP.IsLoopback() && a.Zone == "" {
		own := a.AddrPort().Addr().Unmap()
		reached.CompareAndSwap(nil, &own)
	}
}

// Addresses lists where this host can be reached: first at the address from which this process
// has reached another host with [Dial], else from which it would; then by IPv4, by IPv6, and on the
// same link; loopback comes last. What leads nowhere without the name of an interface is left out.
// If SLUICE_NET is set, only what it allows is listed.
// Where the system does not list its interfaces, the addresses from which it would reach other
// hosts, and itself, take their place.
//
// Errors: [ErrNoAddress], and that of listing if nothing takes the place of the list.
func Addresses() ([]netip.Addr, error) {
	list, err := Interfaces()
	if errors.As(err, new(*SettingError)) {
		return nil, err
	}
	only, _ := ownSubnet() // whose error is that of Interfaces
	var all []netip.Addr
	for _, in := range list {
		for _, a := range in.Addrs {
			if only != nil && !only.has(&in, a) {
				continue
			}
			if a.Zone() == "" && !a.IsMulticast() && (a.Is4() || !a.IsLinkLocalUnicast()) {
				all = append(all, a)
			}
		}
	}
	var best []netip.Addr
	if a := reached.Load(); a != nil {
		best = append(best, *a)
	}
	if len(best) == 0 || err != nil {
		best = append(best, chosen()...)
	}
	if err != nil && len(best) == 0 {
		return nil, err
	}
	for _, a := range best {
		if !slices.Contains(all, a) && only == nil {
			all = append(all, a)
		}
	}
	if len(all) == 0 {
		return nil, ErrNoAddress
	}
	class := func(a netip.Addr) int {
		switch {
		case a.IsLoopback():
			return 4
		case slices.Contains(best, a):
			return 0
		case a.IsLinkLocalUnicast():
			return 3
		case a.Is6():
			return 2
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b netip.Addr) int { return class(a) - class(b) })
	return all, nil
}

// Towards returns the address from which this host sends to another, host:port. Nothing is sent.
func Towards(ctx context.Context, address string) (netip.Addr, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", address)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// From returns the address at which a host listens that others know by a server at an address: the one from
// which this host sends to it, or the first that SLUICE_NET allows.
func From(ctx context.Context, server string) (netip.Addr, error) {
	n, err := ownSubnet()
	if n == nil && err == nil {
		return Towards(ctx, server)
	}
	list, err := Addresses()
	if err != nil {
		return netip.Addr{}, err
	}
	return list[0], nil
}

// chosen returns the addresses from which the system would send to other hosts, and to this one.
func chosen() (all []netip.Addr) {
	for _, far := range []string{"192.0.2.1:9", "[2001:db8::1]:9", "127.0.0.1:9", "[::1]:9"} {
		if a, err := Towards(context.Background(), far); err == nil {
			all = append(all, a)
		}
	}
	return all
}
