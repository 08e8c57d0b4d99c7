package tcp

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/sluice-hpc/sluice/verbs"
)

func init() { verbs.Register(provider{}) }

// providerName is also the name of the protocol that the proof of the job's
// secret is bound to; the version is that of the wire format.
const (
	providerName = "tcp"
	protocolName = "sluice-tcp"
	wireMajor    = 1
	wireMinor    = 0
)

type provider struct{}

func (provider) Name() string { return providerName }
func (provider) Rank() int    { return 100 }

// Probe looks for an interface that is up and has an address.
func (provider) Probe() verbs.Probe {
	nics, err := interfaces()
	switch {
	case err != nil:
		return verbs.Probe{Answer: verbs.Unknown, Reason: err.Error()}
	case len(nics) == 0:
		return verbs.Probe{Answer: verbs.No, Reason: "no network interface is up and has an IP address"}
	}
	return verbs.Probe{Answer: verbs.Yes}
}

func (provider) Devices() ([]verbs.DeviceInfo, error) {
	nics, err := interfaces()
	var infos []verbs.DeviceInfo
	for _, n := range nics {
		infos = append(infos, verbs.DeviceInfo{Name: n.device(), Netdev: n.name})
	}
	return infos, err
}

func (provider) Open(device string, cfg verbs.Config) (verbs.ProviderContext, error) {
	const op = "open"
	nics, err := interfaces()
	if err != nil {
		return nil, verbs.Errorf(device, op, err, "")
	}
	i := slices.IndexFunc(nics, func(n nic) bool { return n.device() == device })
	if i < 0 {
		return nil, verbs.Errorf(device, op, verbs.ErrNoDevice, "no such interface, or it is down or has no address")
	}
	switch {
	case len(cfg.Secret) == 0 && !cfg.Insecure:
		return nil, verbs.Errorf(device, op, verbs.ErrSecret, "Config has neither Secret nor Insecure")
	case len(cfg.Secret) != 0 && cfg.Insecure:
		return nil, verbs.Errorf(device, op, verbs.ErrInvalid, "Config has both Secret and Insecure")
	}
	if cfg.Address != "" {
		a, err := netip.ParseAddr(cfg.Address)
		if err != nil || !usable(a.Unmap()) {
			return nil, verbs.Errorf(device, op, verbs.ErrInvalid, "address %q", cfg.Address)
		}
		nics[i].addrs = []netip.Addr{a.Unmap()}
	}
	return openContext(nics[i], cfg)
}

// nic is a network interface that can be a device.
type nic struct {
	name  string
	index int
	mtu   int // bytes
	loop  bool
	addrs []netip.Addr // usable ones, IPv4 first
}

// device is the name of the device over the interface.
func (n *nic) device() string { return "tcp_" + n.name }

// maxGIDs bounds the GID table: hosts of containers have hundreds of addresses.
const maxGIDs = 16

// interfaces lists what is up and has an address, loopback first.
func interfaces() ([]nic, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var nics []nic
	for _, in := range ifs {
		if in.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := in.Addrs()
		if err != nil {
			continue // gone since
		}
		n := nic{name: in.Name, index: in.Index, mtu: in.MTU, loop: in.Flags&net.FlagLoopback != 0}
		for _, a := range addrs {
			ipnet, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			if ip, ok := netip.AddrFromSlice(ipnet.IP); ok && usable(ip.Unmap()) {
				n.addrs = append(n.addrs, ip.Unmap())
			}
		}
		slices.SortStableFunc(n.addrs, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
		n.addrs = n.addrs[:min(len(n.addrs), maxGIDs)]
		if len(n.addrs) > 0 {
			nics = append(nics, n)
		}
	}
	slices.SortStableFunc(nics, func(a, b nic) int {
		if a.loop != b.loop {
			if a.loop {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.index, b.index)
	})
	return nics, nil
}

// usable says whether a GID can carry the address: one that needs a zone beside
// it (IPv6 link-local) cannot.
func usable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && (a.Is4() || !a.IsLinkLocalUnicast())
}

// activeMTU is the largest code that the interface's MTU covers.
func (n *nic) activeMTU() verbs.MTU {
	m := verbs.MTU256
	for m < verbs.MTU4096 && (m+1).Bytes() <= n.mtu {
		m++
	}
	return m
}
