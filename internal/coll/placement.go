package coll

import (
	"fmt"
	"slices"
)

// Placement says which members of a group share a host: what collectives of two
// levels are made of, inside each host and between one member of each. It is made
// once; its queries cost nothing. It does not change and may be used by several
// goroutines.
type Placement struct {
	host    []int   // of each member, counted from 0 in the order of their masters
	index   []int   // of each member among those of its host
	members [][]int // of each host, ascending
	ordered bool
}

// NewPlacement takes the host of each member: equal numbers are one host, whatever
// they are. Hosts are then counted from 0 by their lowest-ranked members. Error:
// [ErrShape] for no members.
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

// Size is the number of members, Hosts that of hosts.
func (p *Placement) Size() int  { return len(p.host) }
func (p *Placement) Hosts() int { return len(p.members) }

// Host is the number of the member's host.
func (p *Placement) Host(member int) int { return p.host[member] }

// Index is the member's number among those of its host.
func (p *Placement) Index(member int) int { return p.index[member] }

// Members are those of a host, ascending. They belong to the placement.
func (p *Placement) Members(host int) []int { return p.members[host] }

// Contiguous says whether the members of each host are consecutive. Hosts are then
// in the order of their members too, and a reduction inside hosts, then between them
// in the order of hosts, keeps the order of ranks.
func (p *Placement) Contiguous() bool { return p.ordered }

// Flat says whether there is nothing to do inside hosts: each has one member; Single
// whether there is nothing to do between them.
func (p *Placement) Flat() bool   { return len(p.members) == len(p.host) }
func (p *Placement) Single() bool { return len(p.members) == 1 }

// Master is the member that speaks for the host: its lowest-ranked, but on the host
// of the root the root itself (IMPI 0.0, collectives). A root of -1 is none.
func (p *Placement) Master(host, root int) int {
	if root >= 0 && p.host[root] == host {
		return root
	}
	return p.members[host][0]
}

// IsMaster says whether the member speaks for its host.
func (p *Placement) IsMaster(member, root int) bool {
	return p.Master(p.host[member], root) == member
}

// Masters are those of all hosts, by the numbers of hosts: the members of the
// collective between hosts. There, the root is the number of its host.
func (p *Placement) Masters(root int) []int {
	all := make([]int, len(p.members))
	for h := range all {
		all[h] = p.Master(h, root)
	}
	return all
}

// HostCounts adds up the counts of the members of each host: the blocks of the
// collective between hosts. Their bytes lie in the order of members only if
// Contiguous.
func (p *Placement) HostCounts(counts []int) []int {
	sums := make([]int, len(p.members))
	for m, n := range counts {
		sums[p.host[m]] += n
	}
	return sums
}

// Largest is the members of the host with most.
func (p *Placement) Largest() int {
	return len(slices.MaxFunc(p.members, func(a, b []int) int { return len(a) - len(b) }))
}
