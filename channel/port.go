package channel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/verbs"
)

// port is a port of a device through which a peer may be reached; the device may not be open.
type port struct {
	*verbs.Device
	address string  // the address of it to use; empty: its best
	number  int     // of an RDMA device; 0: its first active port
	rdma    bool    // other ports, of this device or the peer's, may work if this one does not
	open    *device // nil: to be opened when it is tried
}

// ports lists the ports through which a provider may reach the peer at the other end of conn,
// in the order in which to try them.
func (n *Node) ports(provider string, conn net.Conn) ([]port, error) {
	if names := n.opt.providers; len(names) > 0 && !slices.Contains(names, provider) {
		return nil, fmt.Errorf("not to be used by rank %d, which uses %s only: set the same %s, or WithProviders, on all ranks", n.rank, strings.Join(names, ", "), EnvTransport)
	}
	for _, d := range n.devices {
		if d.provider() == provider {
			return []port{{Device: d.ctx.Device(), open: d}}, nil
		}
	}
	if err := n.unopened[provider]; err != nil {
		return nil, err
	}
	ip := conn.LocalAddr().(*net.TCPAddr).IP
	list, err := n.candidates(provider, ip)
	if len(list) == 0 {
		return nil, errors.Join(fmt.Errorf("no device of provider %s has address %v", provider, ip), err)
	}
	return list, nil
}

// candidates lists the ports of a provider's devices for a control connection whose local
// address is ip: first those of devices whose network interface has it, then those of the other
// RDMA devices, which need no common address, nearest to the CPUs of this process first. If the
// program names devices, it lists those in their order.
func (n *Node) candidates(provider string, ip net.IP) ([]port, error) {
	all, err := verbs.Devices()
	interfaces, e := reach.Interfaces()
	err = errors.Join(err, e)
	own, _ := netip.AddrFromSlice(ip)
	has := func(netdev string) bool {
		return slices.ContainsFunc(interfaces, func(in reach.Interface) bool { return in.Name == netdev && slices.Contains(in.Addrs, own.Unmap()) })
	}
	names := n.opt.devices
	byName := map[string]port{}
	var same, rdma []string
	for _, v := range all {
		isRDMA := slices.Contains(rdmadev.Devices(), v.Name())
		if v.Provider() != provider || isRDMA && len(names) > 0 && !slices.Contains(names, v.Name()) {
			continue
		}
		switch {
		case has(v.Netdev()):
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

// device returns the device of a port, opening it if needed. The port of an RDMA device must be
// active.
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

// opened returns the device of a port if it is open; an RDMA device matches whatever the
// address, so that memory registered with it is pinned once. A device that is gone does not
// count: another may have its name by now. The caller holds opening.
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

// gid finds the index of the GID that gives links of the device the address, if there is one; 0
// if they have it anyway.
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
		return 0, true // its GIDs are not host addresses
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

// suits says why the device cannot reach the peer's endpoint, as far as its ports tell; remote is
// nil if unknown. A peer in another subnet is reached through routers, if at all; with far that
// is allowed.
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
			errs = append(errs, fmt.Errorf("port %d of %s has link layer %v, the peer's port %v", number, name, p.LinkLayer, remote.LinkLayer))
		case remote != nil && !far && !d.near(number, remote):
			errs = append(errs, fmt.Errorf("port %d of %s is not in the subnet of %v", number, name, remote.GID.Addr()))
		default:
			return nil
		}
	}
	return errors.Join(errs...)
}

// near says whether the peer's endpoint is in a subnet of the port, judged by the GID prefix on
// InfiniBand (IBA vol. 1, 4.1.1) and by the addresses of the network interface on Ethernet. If
// unknown, the answer is yes.
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
