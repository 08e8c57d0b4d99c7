package channel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/verbs"
)

// port is one of a device that a peer may be reached through, open or not.
type port struct {
	*verbs.Device
	address string  // to use of it; empty: its best
	number  int     // of an RDMA device; 0: its first that is active
	rdma    bool    // there may be others, of this device or the peer's, that work if this one does not
	open    *device // nil: not before it is tried
}

// ports lists what a provider may reach the peer at the other end of conn through,
// what is tried first in front.
func (n *Node) ports(provider string, conn net.Conn) ([]port, error) {
	if names := n.opt.providers; len(names) > 0 && !slices.Contains(names, provider) {
		return nil, fmt.Errorf("provider %s is not among those to use, %q", provider, names)
	}
	for _, d := range n.devices {
		if d.provider() == provider {
			return []port{{Device: d.ctx.Device(), open: d}}, nil
		}
	}
	ip := conn.LocalAddr().(*net.TCPAddr).IP
	list, err := n.candidates(provider, ip)
	if len(list) == 0 {
		return nil, errors.Join(fmt.Errorf("no device of provider %s has the address %v", provider, ip), err)
	}
	return list, nil
}

// candidates lists the ports of a provider's devices for a control connection with
// this address here: those of devices whose network interface has it, and then those
// of the other RDMA devices, which need no address in common with it, those nearest to
// the CPUs of this process first. If the program names devices, these in their order.
func (n *Node) candidates(provider string, ip net.IP) ([]port, error) {
	all, err := verbs.Devices()
	names := n.opt.devices
	byName := map[string]port{}
	var same, rdma []string
	for _, v := range all {
		isRDMA := slices.Contains(rdmadev.Devices(), v.Name())
		if v.Provider() != provider || isRDMA && len(names) > 0 && !slices.Contains(names, v.Name()) {
			continue
		}
		switch {
		case v.Netdev() != "" && hasAddress(v.Netdev(), ip):
			byName[v.Name()] = port{Device: v, address: ip.String(), rdma: isRDMA}
			same = append(same, v.Name())
		case isRDMA:
			byName[v.Name()] = port{Device: v, rdma: true}
			rdma = append(rdma, v.Name())
		}
	}
	order := append(same, rdmadev.Nearest(rdma, rdmadev.CPUs())...)
	if len(names) > 0 {
		slices.SortStableFunc(order, func(a, b string) int { return slices.Index(names, a) - slices.Index(names, b) })
	}
	var list []port
	for _, name := range order {
		for _, number := range n.numbers(byName[name]) {
			p := byName[name]
			p.number = number
			list = append(list, p)
		}
	}
	return list, err
}

// numbers lists the ports of a device that may be used.
func (n *Node) numbers(p port) []int {
	if !p.rdma {
		return []int{0}
	}
	if n.opt.connect.Port != 0 {
		return []int{n.opt.connect.Port}
	}
	if all := rdmadev.Ports(p.Name()); len(all) > 0 {
		return all
	}
	return []int{0}
}

// device returns the device of a port, which it opens if need be. Of an RDMA device
// the port must be active.
func (n *Node) device(p port) (*device, error) {
	if p.open != nil {
		return p.open, nil
	}
	n.opening.Lock()
	defer n.opening.Unlock()
	if d := n.opened(p); d != nil {
		return d, d.suits(nil, true)
	}
	if n.life.Err() != nil {
		return nil, ErrClosed
	}
	d, err := n.openDevice(p)
	if err == nil {
		n.networks = append(n.networks, d)
		n.engines.Store(new(slices.Clone(n.networks)))
	}
	return d, err
}

// opened returns the device of a port if it is open: an RDMA device with whatever
// address, so that what is registered with it is pinned once. One that is gone does
// not count: there may be another of its name by now. The caller holds opening.
func (n *Node) opened(p port) *device {
	for _, d := range n.networks {
		if d.port.Name() == p.Name() && d.port.number == p.number && !d.lost.Load() {
			if _, ok := d.gid(p.address); ok {
				return d
			}
		}
	}
	return nil
}

// gid finds the GID with which links of the device have the address, if they can: its
// index, or 0 if they have it anyway.
func (d *device) gid(address string) (index int, ok bool) {
	if address == d.port.address || d.rdma && address == "" {
		return 0, true
	}
	want, err := netip.ParseAddr(address)
	if err != nil || !d.rdma {
		return 0, false
	}
	number := max(d.port.number, 1)
	p, err := d.ctx.QueryPort(number)
	if err != nil {
		return 0, false
	}
	if p.LinkLayer == verbs.LinkLayerInfiniBand {
		return 0, true // whose GIDs are no addresses of the host
	}
	for i := 1; i < p.GIDTblLen; i++ { // 0 cannot be asked for
		gid, err := d.ctx.QueryGID(number, i)
		if err != nil || gid.Addr() != want.Unmap() {
			continue
		}
		if index = i; rdmadev.GIDType(d.port.Name(), number, i) == "RoCE v2" {
			break
		}
	}
	return index, index > 0
}

// suits says why the device cannot reach the peer's endpoint, as far as that can be
// told from its ports; remote is nil where it is not known. A peer in another subnet
// is reached by routers, if at all: with far that is tried, too.
func (d *device) suits(remote *verbs.Endpoint, far bool) error {
	name := d.port.Name()
	if d.lost.Load() {
		return fmt.Errorf("device %s is gone", name)
	}
	attr, err := d.ctx.QueryDevice()
	if err != nil {
		return err
	}
	first, last := 1, attr.PhysPortCnt
	if d.port.number != 0 {
		first, last = d.port.number, d.port.number
	}
	var errs []error
	for number := first; number <= last; number++ {
		p, err := d.ctx.QueryPort(number)
		switch {
		case err != nil:
			errs = append(errs, err)
		case p.State != verbs.PortActive:
			errs = append(errs, fmt.Errorf("port %d of %s is %v", number, name, p.State))
		case remote != nil && p.LinkLayer != remote.LinkLayer:
			errs = append(errs, fmt.Errorf("port %d of %s is of %v, the peer's of %v", number, name, p.LinkLayer, remote.LinkLayer))
		case remote != nil && !far && !d.near(number, remote):
			errs = append(errs, fmt.Errorf("port %d of %s is not in the subnet of %v", number, name, remote.GID.Addr()))
		default:
			return nil
		}
	}
	return errors.Join(errs...)
}

// near says whether the peer's endpoint is in a subnet of the port: on InfiniBand the
// prefix of the GID says so (IBA vol. 1, 4.1.1), on Ethernet the addresses of the
// network interface. Where that is not known it may be.
func (d *device) near(number int, remote *verbs.Endpoint) bool {
	if !d.rdma {
		return true
	}
	if remote.LinkLayer == verbs.LinkLayerInfiniBand {
		gid, err := d.ctx.QueryGID(number, 0)
		return err != nil || [8]byte(gid[:8]) == [8]byte(remote.GID[:8])
	}
	nets := prefixes(rdmadev.Netdev(d.port.Name(), number))
	return len(nets) == 0 || slices.ContainsFunc(nets, func(p netip.Prefix) bool { return p.Contains(remote.GID.Addr()) })
}

// prefixes lists the networks of an interface.
func prefixes(netdev string) (list []netip.Prefix) {
	i, err := net.InterfaceByName(netdev)
	if err != nil {
		return nil
	}
	all, err := i.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, p.Masked())
		}
	}
	return list
}

// hasAddress says whether the network interface has the address.
func hasAddress(netdev string, ip net.IP) bool {
	i, err := net.InterfaceByName(netdev)
	if err != nil {
		return false
	}
	list, err := i.Addrs()
	if err != nil {
		return false
	}
	for _, a := range list {
		if a, ok := a.(*net.IPNet); ok && a.IP.Equal(ip) {
			return true
		}
	}
	return false
}
