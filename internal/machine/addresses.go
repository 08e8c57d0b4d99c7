package machine

import (
	"net"
	"net/netip"
)

// Addresses lists where this host can be reached: by any address that is not of one
// link or of many hosts, loopback last.
func Addresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var far, near []netip.Addr
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		switch addr := p.Addr().Unmap(); {
		case err != nil || addr.IsMulticast() || addr.IsLinkLocalUnicast():
		case addr.IsLoopback():
			near = append(near, addr)
		default:
			far = append(far, addr)
		}
	}
	return append(far, near...), nil
}
