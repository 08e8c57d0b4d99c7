package coll

import (
	"fmt"
	"slices"
)

// Placement says which members of a group share a host, for two-level collectives:
// inside each host, and between one member of each. It is immutable and may be used
// concurrently. All queries are precomputed.
type Placement struct {
	host    []int   // of each member, counted from 0 in the order of their masters
	index   []int   // of each member among those of its host
	members [][]int // of each host, ascending
	ordered bool
}

// NewPlacement makes a placement from the host of each member; members with equal
// numbers, of any value, share a host. Hosts are renumbered from 0 in the order of
// their lowest-ranked members. Error: [ErrShape] if there are no members.
func NewPlacement(hosts []int) (*Placement, error) {
	if len(hosts) == 0 {
		return nil, fmt.Errorf("%w: placement of no members", ErrShape)
	}
	p := &Placement{host: make([]int, len(hosts)), index: make([]int, len(hosts)), ordered: true}
	number := make(map[int]int)
	for m, name := range hosts {
		h, known := number[name]
		if !known {
			h = len(p.members)
			number[name] = h
			p.members = append(p.members, nil)
		}
		p.ordered = p.ordered && h == len(p.members)-1
		p.host[m], p.index[m] = h, len(p.members[h])
		p.members[h] = append(p.members[h], m)
	}
	return p, nil
}

// Size returns the number of members; Hosts returns the number of hosts.
func (p *Placement) Size() int  { return len(p.host) }
func (p *Placement) Hosts() int { return len(p.members) }

// Host returns the number of the member's host.
func (p *Placement) Host(member int) int { return p.host[member] }

// Index returns the member's number among those of its host.
func (p *Placement) Index(member int) int { return p.index[member] }

// Members returns the members of a host, ascending. The slice belongs to the placement.
func (p *Placement) Members(host int) []int { return p.members[host] }

// Contiguous says whether the members of each host are consecutive. If so, the hosts are in the
// order of their members too, and a reduction inside hosts, then between hosts in host order,
// keeps the rank order.
func (p *Placement) Contiguous() bool { return p.ordered }

// Flat says whether every host has only one member; Single whether there is only one host.
func (p *Placement) Flat() bool   { return len(p.members) == len(p.host) }
func (p *Placement) Single() bool { return len(p.members) == 1 }

// Master returns the member that communicates for the host: the root on its own host, else the
// lowest-ranked member (IMPI 0.0, collectives). A root of -1 means none.
func (p *Placement) Master(host, root int) int {
	if root >= 0 && p.host[root] == host {
		return root
	}
	return p.members[host][0]
}

// IsMaster says whether the member is the master of its host.
func (p *Placement) IsMaster(member, root int) bool {
	return p.Master(p.host[member], root) == member
}

// Masters returns the masters of all hosts, indexed by host: the members of the collective between
// hosts, in which the root is the number of its host.
func (p *Placement) Masters(root int) []int {
	all := make([]int, len(p.members))
	for h := range all {
		all[h] = p.Master(h, root)
	}
	return all
}

// HostCounts sums the counts of the members of each host, which are the blocks of the collective
// between hosts. Only if Contiguous do their bytes lie in member order.
func (p *Placement) HostCounts(counts []int) []int {
	sums := make([]int, len(p.members))
	for m, n := range counts {
		sums[p.host[m]] += n
	}
	return sums
}

// Largest returns the number of members of the largest host.
func (p *Placement) Largest() int {
	return len(slices.MaxFunc(p.members, func(a, b []int) int { return len(a) - len(b) }))
}
