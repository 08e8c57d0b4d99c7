package reach

import (
	"fmt"
	"net"
	"net/netip"
)

// Interface is a network interface that is up.
type Interface struct {
	Name  string
	Index int
	MTU   int // bytes
	Loop  bool
	Ether bool // its link-layer addresses are Ethernet addresses
	Addrs []netip.Addr
}

// Interfaces lists the network interfaces that are up, also where the system refuses netlink: see
// asked. If SLUICE_NET is set, these are loopback, and those that it allows with the addresses that it
// allows; none is a [*SettingError].
func Interfaces() ([]Interface, error) {
	list, err := listed()
	if err != nil {
		if list = asked(); len(list) == 0 {
			return nil, fmt.Errorf("list network interfaces: %w", err)
		}
	}
	n, err := ownSubnet()
	if n != nil && err == nil {
		list, err = n.keep(list)
	}
	return list, err
}

// listed returns the interfaces that are up: a variable for tests alone.
var listed = func() (list []Interface, err error) {
	ifs, err := net.Interfaces()
	for _, in := range ifs {
		if in.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := in.Addrs()
		if err != nil {
			return nil, err // an interface that has gone since has none
		}
		n := Interface{Name: in.Name, Index: in.Index, MTU: in.MTU, Loop: in.Flags&net.FlagLoopback != 0}
		n.Ether = !n.Loop && len(in.HardwareAddr) == 6
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				n.Addrs = append(n.Addrs, p.Addr().Unmap())
			}
		}
		list = append(list, n)
	}
	return list, err
}
