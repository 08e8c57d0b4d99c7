package impi

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/coll"
)

// roster describes the hosts of a job.
type roster struct {
	hosts    []member
	me       int // index of this host
	tagUB    int
	settings coll.Settings
	foreign  bool                                      // some host is
	secret   []byte                                    // that hosts of this package prove to each other; nil: none
	job      string                                    // its name, in the proof
	gone     func(ctx context.Context, host int) error // why a host has ended, nil if it has not; nil: nothing says that
	finished func() error
	abandon  func()
}

// member is a host of a job.
type member struct {
	client    int
	foreign   bool
	packetLen uint32
	ackMark   uint32
	hiWater   uint32
	settings  coll.Settings    // FromNode
	addrs     []netip.AddrPort // to try in turn
	procs     []packet.Proc
}

// texts returns the addresses as package net takes them.
func (m *member) texts() (list []string) {
	for _, a := range m.addrs {
		list = append(list, a.String())
	}
	return list
}

// near says whether a host is most likely on the machine of this one: it has the same addresses. One
// in common would not do, for every machine may have a bridge with the same address.
func (r *roster) near(host int) bool {
	set := func(h *member) map[netip.Addr]struct{} {
		m := map[netip.Addr]struct{}{}
		for _, a := range h.addrs {
			m[a.Addr().Unmap()] = struct{}{}
		}
		return m
	}
	return host == r.me || maps.Equal(set(&r.hosts[host]), set(&r.hosts[r.me]))
}

// beside counts those hosts, with this one.
func (r *roster) beside() (n int) {
	for i := range r.hosts {
		if r.near(i) {
			n++
		}
	}
	return max(n, 1)
}

// rosterOf converts what the clients of a server have agreed on. This host is the client's first
// host plus at.
func rosterOf(j *startup.Job, at int) (*roster, error) {
	r := &roster{tagUB: int(j.TagUB), settings: coll.DeriveSettings(min(int(j.XSize), 1<<30), min(int(j.MaxLinear), 1<<20)), foreign: j.Foreign(), me: -1}
	for client := range j.Clients {
		c := &j.Clients[client]
		if client == j.Rank {
			r.me = len(r.hosts) + at
		}
		for i := range c.Hosts {
			h := &c.Hosts[i]
			m := member{client: client, foreign: c.Foreign, packetLen: c.PacketLen, ackMark: h.AckMark, hiWater: h.HiWater,
				addrs: []netip.AddrPort{netip.AddrPortFrom(h.ID.Addr(), h.Port)}}
			for _, p := range h.Processes {
				m.procs = append(m.procs, packet.Proc{Host: p.Host, PID: int64(p.PID)})
			}
			r.hosts = append(r.hosts, m)
		}
	}
	return r, r.check()
}

// check rejects rosters that no engine could work with.
func (r *roster) check() error {
	seen := map[packet.Proc]int{}
	for i := range r.hosts {
		for _, p := range r.hosts[i].procs {
			if j, twice := seen[p]; twice {
				return fmt.Errorf("%w: hosts %d and %d both announce process id %d on %v", ErrProtocol, j, i, p.PID, p.Host)
			}
			seen[p] = i
		}
	}
	return nil
}

// limits returns the flow control values between two hosts. A foreign host uses one value for the
// whole job: LAM/MPI takes the smallest of all hosts.
func (r *roster) limits(a, b int) (packetLen, ackMark, hiWater uint32) {
	packetLen, ackMark, hiWater = ^uint32(0), ^uint32(0), ^uint32(0)
	for i := range r.hosts {
		if h := &r.hosts[i]; r.foreign || i == a || i == b {
			packetLen, ackMark, hiWater = min(packetLen, h.packetLen), min(ackMark, h.ackMark), min(hiWater, h.hiWater)
		}
	}
	return packetLen, ackMark, hiWater
}
