package reach

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Variables that say where this process listens for connections.
const (
	EnvPorts = "SLUICE_PORTS"
	EnvNet   = "SLUICE_NET"
)

var (
	// ErrNoPort: all ports of SLUICE_PORTS are in use.
	ErrNoPort = errors.New("no port is free")
	// ErrNoNet: this host has no address in SLUICE_NET.
	ErrNoNet = errors.New("this host has no such address or interface")
)

// SettingError names the variable with which this process cannot listen.
type SettingError struct {
	Name, Value string
	Err         error // [ErrNoPort], [ErrNoNet] and others
}

func (e *SettingError) Error() string { return fmt.Sprintf("%s=%s: %v", e.Name, e.Value, e.Err) }

// Unwrap returns what is wrong.
func (e *SettingError) Unwrap() error { return e.Err }

// ports returns the first and the last port at which this process may listen; 0 if any will do.
func ports() (first, last int, err error) {
	value := os.Getenv(EnvPorts)
	if value == "" {
		return 0, 0, nil
	}
	from, to, _ := strings.Cut(value, "-")
	a, err1 := strconv.ParseUint(from, 10, 16)
	b, err2 := strconv.ParseUint(to, 10, 16)
	if err1 != nil || err2 != nil || a == 0 || b < a {
		return 0, 0, &SettingError{EnvPorts, value, errors.New("want two ports from 1 to 65535, the lower first, as in 20000-20999")}
	}
	return int(a), int(b), nil
}

// subnet is where this process listens: the addresses of a prefix, or of an interface.
type subnet struct {
	value  string
	prefix netip.Prefix // not valid: the interface of this name
}

// ownSubnet returns the subnet in which this process listens; nil if it does so in all.
func ownSubnet() (*subnet, error) {
	value := os.Getenv(EnvNet)
	if value == "" {
		return nil, nil
	}
	n := &subnet{value: value}
	if strings.Contains(value, "/") {
		var err error
		if n.prefix, err = netip.ParsePrefix(value); err != nil {
			return nil, &SettingError{EnvNet, value, errors.New("want a prefix, as in 10.1.0.0/16, or the name of an interface")}
		}
	}
	return n, nil
}

// has says whether an address of an interface belongs to the subnet.
func (n *subnet) has(in *Interface, a netip.Addr) bool {
	if n.prefix.IsValid() {
		return n.prefix.Contains(a)
	}
	return in.Name == n.value
}

// keep removes what does not belong to the subnet from a list of interfaces, except loopback, which no
// other host reaches.
func (n *subnet) keep(list []Interface) ([]Interface, error) {
	var kept []Interface
	var all []string
	found := false
	for _, in := range list {
		own := in
		own.Addrs = slices.DeleteFunc(slices.Clone(in.Addrs), func(a netip.Addr) bool { return !n.has(&in, a) })
		found = found || len(own.Addrs) > 0
		if in.Loop {
			own = in
		}
		if len(own.Addrs) > 0 {
			kept = append(kept, own)
		}
		for _, a := range in.Addrs {
			all = append(all, in.Name+" "+a.String())
		}
	}
	if !found {
		return nil, &SettingError{EnvNet, n.value, fmt.Errorf("%w: it has %s", ErrNoNet, strings.Join(all, ", "))}
	}
	return kept, nil
}

// Listen listens for TCP connections at an address, host:port. Without a host it listens at all
// addresses of this host: both IPv4 and IPv6 if there are both, whichever of the two has a loopback
// address; or, if SLUICE_NET is set, at the first address that it allows. For port 0 the system chooses
// one, of SLUICE_PORTS if that is set.
//
// Errors: [*SettingError], and those of net.ListenConfig.
func Listen(ctx context.Context, c net.ListenConfig, address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return c.Listen(ctx, "tcp", address) // which says what is wrong with it
	}
	n, err := ownSubnet()
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); n != nil && (host == "" || err == nil && ip.IsUnspecified()) {
		own, err := Addresses()
		if err != nil {
			return nil, err
		}
		host = own[0].String()
	}
	return inRange(port, func(port string) (net.Listener, error) {
		if host != "" {
			return c.Listen(ctx, "tcp", net.JoinHostPort(host, port))
		}
		both := c
		both.Control = bothFamilies
		ln, err := both.Listen(ctx, "tcp6", net.JoinHostPort("::", port))
		if err == nil || errors.Is(err, syscall.EADDRINUSE) {
			return ln, err
		}
		return c.Listen(ctx, "tcp", net.JoinHostPort("", port))
	})
}

// inRange listens at a port, or, if that is 0 and SLUICE_PORTS is set, at one of those.
func inRange(port string, listen func(port string) (net.Listener, error)) (net.Listener, error) {
	first, last, err := ports()
	switch {
	case err != nil:
		return nil, err
	case port != "0" || first == 0:
		return listen(port)
	}
	// The ranks of a host begin at different ports, so that they need not try each other's.
	n := last - first + 1
	start := rand.IntN(n)
	for i := range n {
		ln, err := listen(strconv.Itoa(first + (start+i)%n))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return ln, err
		}
	}
	return nil, &SettingError{EnvPorts, os.Getenv(EnvPorts), fmt.Errorf("%w: all %d are in use: a rank needs about three", ErrNoPort, n)}
}

// ListenAny listens for other hosts, at a port of the system's choice.
func ListenAny(ctx context.Context) (net.Listener, error) {
	return Listen(ctx, net.ListenConfig{}, ":0")
}

// ListenLoopback listens where only this host can connect, at a port of the system's choice.
func ListenLoopback(ctx context.Context) (net.Listener, error) {
	var c net.ListenConfig
	ln, err := inRange("0", func(port string) (net.Listener, error) {
		return c.Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	})
	if err != nil && !errors.As(err, new(*SettingError)) {
		var err6 error
		if ln, err6 = inRange("0", func(port string) (net.Listener, error) { return c.Listen(ctx, "tcp6", net.JoinHostPort("::1", port)) }); err6 != nil {
			return nil, errors.Join(err, err6)
		}
		return ln, nil
	}
	return ln, err
}

// AddressesOf lists where other hosts reach a listener: at its address, or, if it listens at all, as
// [Addresses] says.
func AddressesOf(l net.Listener) ([]netip.Addr, error) {
	if own := l.Addr().(*net.TCPAddr).AddrPort().Addr().Unmap(); !own.IsUnspecified() {
		return []netip.Addr{own}, nil
	}
	return Addresses()
}
