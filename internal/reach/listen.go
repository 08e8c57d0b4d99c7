package reach

import (
	"context"
	"errors"
	"net"
)

// Listen listens for TCP connections at an address, host:port. Without a host it listens at all
// addresses of this host: both IPv4 and IPv6 if there are both, whichever of the two has a loopback
// address.
func Listen(ctx context.Context, c net.ListenConfig, address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host != "" {
		return c.Listen(ctx, "tcp", address)
	}
	both := c
	both.Control = bothFamilies
	ln, err := both.Listen(ctx, "tcp6", net.JoinHostPort("::", port))
	if err == nil {
		return ln, nil
	}
	return c.Listen(ctx, "tcp", address)
}

// ListenAny listens at all addresses of this host, at a port of the system's choice.
func ListenAny(ctx context.Context) (net.Listener, error) {
	return Listen(ctx, net.ListenConfig{}, ":0")
}

// ListenLoopback listens where only this host can connect, at a port of the system's choice.
func ListenLoopback(ctx context.Context) (net.Listener, error) {
	var c net.ListenConfig
	ln, err := c.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		var err6 error
		if ln, err6 = c.Listen(ctx, "tcp6", "[::1]:0"); err6 != nil {
			return nil, errors.Join(err, err6)
		}
	}
	return ln, nil
}
