//go:build !linux

package roce

import "net/netip"

// sockaddr is nothing where there is no socket wire.
type sockaddr struct{}

func (*sockaddr) set(netip.AddrPort) {}
