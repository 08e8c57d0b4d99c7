//go:build !linux

package roce

import "net/netip"

// sockaddr is empty on systems without the socket wire.
type sockaddr struct{}

func (*sockaddr) set(netip.AddrPort) {}
