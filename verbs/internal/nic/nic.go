// Package nic lists the network interfaces that providers offer as devices.
package nic

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/verbs"
)

// NIC is a network interface that can be a device, with its usable addresses, IPv4 first, at most
// 16.
type NIC reach.Interface

// most limits the addresses: container hosts have hundreds.
const most = 16

// List lists the interfaces that are up and have a usable address, loopback first.
func List() ([]NIC, error) {
	all, err := reach.Interfaces()
	if err != nil {
		return nil, err
	}
	var nics []NIC
	for _, in := range all {
		n := NIC(in)
		n.Addrs = slices.DeleteFunc(n.Addrs, func(a netip.Addr) bool { return !Usable(a) })
		slices.SortStableFunc(n.Addrs, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
		n.Addrs = n.Addrs[:min(len(n.Addrs), most)]
		if len(n.Addrs) > 0 {
			nics = append(nics, n)
		}
	}
	slices.SortStableFunc(nics, func(a, b NIC) int {
		if a.Loop != b.Loop {
			if a.Loop {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Index, b.Index)
	})
	return nics, nil
}

// Usable reports whether a GID can carry the address. It cannot if the address needs a zone
// (IPv6 link-local).
func Usable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && (a.Is4() || !a.IsLinkLocalUnicast())
}

// Probe says whether there is an interface that is up and has an address.
func Probe() verbs.Probe {
	nics, err := List()
	switch {
	case err != nil:
		return verbs.Probe{Answer: verbs.Unknown, Reason: err.Error()}
	case len(nics) == 0:
		return verbs.Probe{Answer: verbs.No, Reason: "no network interface is up and has an IP address"}
	}
	return verbs.Probe{Answer: verbs.Yes}
}

// Devices lists the devices of a provider, named after the provider and the interface.
func Devices(provider string) ([]verbs.DeviceInfo, error) {
	nics, err := List()
	var infos []verbs.DeviceInfo
	for _, n := range nics {
		infos = append(infos, verbs.DeviceInfo{Name: n.device(provider), Netdev: n.Name})
	}
	return infos, err
}

func (n *NIC) device(provider string) string { return provider + "_" + n.Name }

// Find returns the interface of a provider's device. If cfg names an address, it is the only
// one in the result.
//
// Errors: [verbs.ErrNoDevice], [verbs.ErrInvalid] for the address.
func Find(provider, device string, cfg *verbs.Config) (NIC, error) {
	const op = "open"
	nics, err := List()
	if err != nil {
		return NIC{}, verbs.Errorf(device, op, err, "")
	}
	i := slices.IndexFunc(nics, func(n NIC) bool { return n.device(provider) == device })
	if i < 0 {
		return NIC{}, verbs.Errorf(device, op, verbs.ErrNoDevice, "the interface does not exist, is down, or has no address")
	}
	if cfg.Address != "" {
		a, err := netip.ParseAddr(cfg.Address)
		if err != nil || !Usable(a.Unmap()) {
			return NIC{}, verbs.Errorf(device, op, verbs.ErrInvalid, "address %q", cfg.Address)
		}
		nics[i].Addrs = []netip.Addr{a.Unmap()}
	}
	return nics[i], nil
}
