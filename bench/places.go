package main

import (
	"context"
	"net"
	"slices"

	"github.com/sluice-hpc/sluice/verbs"
)

// providerSHM is the provider that stays within a host.
const providerSHM = "shm"

// places says where two ranks are.
type places struct {
	apart bool     // they share no memory
	peer  []net.IP // addresses of the other's host
}

// findPlaces asks both ranks.
func findPlaces(ctx context.Context, job exchanger) (*places, error) {
	type place struct {
		Host      string   `json:"host"`
		Addresses []net.IP `json:"addresses"`
	}
	me := place{Host: memoryHost()}
	addresses, err := net.InterfaceAddrs()
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			me.Addresses = append(me.Addresses, n.IP)
		}
	}
	all, err := share(ctx, job, me, err)
	if err != nil {
		return nil, err
	}
	other := all[len(all)-1-job.Rank()]
	return &places{apart: all[0].Host != all[len(all)-1].Host, peer: other.Addresses}, nil
}

// bestAway is the best device that leads out of this host.
func (p *places) bestAway() (*verbs.Device, error) {
	devs, err := verbs.Devices()
	i := slices.IndexFunc(devs, func(d *verbs.Device) bool { return d.Provider() != providerSHM })
	if i < 0 {
		return nil, verbs.Errorf("", "choose device", verbs.ErrNoDevice, "none leads to another host (%v)", err)
	}
	return devs[i], nil
}

// deviceOf is the device of a provider whose network interface leads to the peer; the
// provider itself where none does.
func (p *places) deviceOf(provider string) string {
	devs, _ := verbs.Devices() // what is not there is said when it is opened
	for _, name := range p.interfaces() {
		for _, d := range devs {
			if d.Provider() == provider && d.Netdev() == name {
				return d.Name()
			}
		}
	}
	return provider
}

// interfaces are those through which the addresses of the peer are reached, those first
// that share a network with one of them: an address of a bridge of containers is often
// the same on all hosts.
func (p *places) interfaces() []string {
	list, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var near, routed []string
	for _, ip := range p.peer {
		local := localTo(ip)
		for _, i := range list {
			addresses, _ := i.Addrs()
			for _, a := range addresses {
				n, ok := a.(*net.IPNet)
				switch {
				case !ok || i.Flags&net.FlagLoopback != 0 || n.IP.Equal(ip) || !n.IP.Equal(local):
				case n.Contains(ip):
					near = append(near, i.Name)
				default:
					routed = append(routed, i.Name)
				}
			}
		}
	}
	return append(near, routed...)
}

// localTo is the address from which packets to ip would go. Nothing is sent.
func localTo(ip net.IP) net.IP {
	c, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: ip, Port: 9})
	if err != nil {
		return nil
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP
}
