package startup

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"
)

// agree derives the job from the answers to all labels, by the rules of IMPI 0.0 (Wire Protocols,
// The COLL command). The server and the other clients may have sent anything, so no allocation is
// sized by a number that the received bytes do not support.
func agree(c *Config, size int, answers map[Label]collReply) (*Job, error) {
	a := agreement{size: size, answers: answers}
	j := &Job{Rank: c.Rank, Clients: make([]Client, size), extra: make(map[Label][][]byte)}
	for _, step := range []func(*Job) error{a.complete, a.versions, a.values, a.hosts, a.processes} {
		if err := step(j); err != nil {
			return nil, err
		}
	}
	if err := a.own(j, c); err != nil {
		return nil, err
	}
	if j.MaxLinear != defaultMaxLinear && !c.AnyMaxLinear {
		for rank := range j.Clients {
			if j.Clients[rank].Foreign {
				return nil, a.fault(LabelMaxLinear, rank, fmt.Errorf("%w: MaxLinear is %d, but a foreign client uses only %d", ErrForeign, j.MaxLinear, defaultMaxLinear))
			}
		}
	}
	return j, nil
}

type agreement struct {
	size    int
	answers map[Label]collReply
	owner   []int // the client of each host of the job
	nprocs  []uint32
}

func (a *agreement) fault(l Label, rank int, err error) error {
	return &Error{Phase: PhaseCollect, Rank: rank, Label: l, Err: err}
}

// complete checks that every client has submitted every label of the protocol.
func (a *agreement) complete(*Job) error {
	all := uint32(1<<a.size - 1)
	for _, l := range slices.Sorted(maps.Keys(labelNames)) {
		if missing := all &^ a.answers[l].mask; missing != 0 && l != LabelSluice {
			return a.fault(l, bits.TrailingZeros32(missing), fmt.Errorf("%w: not submitted", ErrDisagree))
		}
	}
	return nil
}

// words returns the data of a label that has 4 bytes for each of n.
func (a *agreement) words(l Label, n int) ([]uint32, error) {
	data := a.answers[l].data
	if len(data) != 4*n {
		return nil, a.fault(l, -1, lengthError("answer", len(data), 4*n))
	}
	v := make([]uint32, n)
	for i := range v {
		v[i] = binary.BigEndian.Uint32(data[4*i:])
	}
	return v, nil
}

// versions splits the versions of the clients: each has a list that ascends, and each
// list begins with 0.0.
func (a *agreement) versions(j *Job) error {
	data := a.answers[LabelVersion].data
	if len(data)%8 != 0 {
		return a.fault(LabelVersion, -1, fmt.Errorf("%w: %d bytes are not a list of versions", ErrProtocol, len(data)))
	}
	rank, last := -1, Version{}
	for ; len(data) > 0; data = data[8:] {
		v := Version{binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[4:])}
		if v == (Version{}) {
			rank++
		} else if rank < 0 || !last.less(v) {
			return a.fault(LabelVersion, max(rank, 0), fmt.Errorf("%w: version %v follows %v", ErrDisagree, v, last))
		}
		if rank >= a.size {
			break
		}
		last = v
		j.Clients[rank].Versions = append(j.Clients[rank].Versions, v)
	}
	if rank != a.size-1 {
		return a.fault(LabelVersion, -1, fmt.Errorf("%w: %d clients announced version 0.0, not all %d", ErrDisagree, rank+1, a.size))
	}
	return nil
}

// values agrees on the labels with one value per client.
func (a *agreement) values(j *Job) error {
	lens, err := a.words(LabelPktLen, a.size)
	if err != nil {
		return err
	}
	tags, err := a.words(LabelTagUB, a.size)
	if err != nil {
		return err
	}
	for rank, n := range lens {
		if n == 0 {
			return a.fault(LabelPktLen, rank, fmt.Errorf("%w: packet length 0", ErrDisagree))
		}
		j.Clients[rank].PacketLen = n
		tag := int32(tags[rank])
		if tag < minTagUB {
			return a.fault(LabelTagUB, rank, fmt.Errorf("%w: largest tag %d is less than %d", ErrDisagree, tag, minTagUB))
		}
		if rank == 0 || tag < j.TagUB {
			j.TagUB = tag
		}
	}
	if j.XSize, err = a.same(LabelXSize, defaultXSize); err != nil {
		return err
	}
	j.MaxLinear, err = a.same(LabelMaxLinear, defaultMaxLinear)
	return err
}

// same returns the value that all clients announced; -1 stands for the default.
func (a *agreement) same(l Label, byDefault int32) (int32, error) {
	words, err := a.words(l, a.size)
	if err != nil {
		return 0, err
	}
	var first int32
	for rank, w := range words {
		v := int32(w)
		switch {
		case v == -1:
			v = byDefault
		case v < 0:
			return 0, a.fault(l, rank, fmt.Errorf("%w: invalid value %d", ErrDisagree, v))
		}
		if rank == 0 {
			first = v
		}
		if v != first {
			return 0, a.fault(l, rank, fmt.Errorf("%w: it announced %d, client 0 announced %d", ErrDisagree, v, first))
		}
	}
	return first, nil
}

// hosts gives every client its hosts.
func (a *agreement) hosts(j *Job) error {
	addrs := a.answers[LabelHostIPv6].data
	total := len(addrs) / 16
	counts, err := a.words(LabelNHosts, a.size)
	if err != nil {
		return err
	}
	left := uint64(total)
	for rank, n := range counts {
		if n == 0 || uint64(n) > left {
			return a.fault(LabelNHosts, rank, fmt.Errorf("%w: it announced %d hosts, but only %d host addresses are left", ErrDisagree, n, left))
		}
		left -= uint64(n)
	}
	if left != 0 || len(addrs)%16 != 0 {
		return a.fault(LabelHostIPv6, -1, fmt.Errorf("%w: %d bytes of addresses, with %d hosts too many", ErrDisagree, len(addrs), left))
	}
	var lists [4][]uint32
	for i, l := range []Label{LabelHostPort, LabelHostNProcs, LabelHostAckMark, LabelHostHiWater} {
		if lists[i], err = a.words(l, total); err != nil {
			return err
		}
	}
	ports, ackMarks, hiWaters := lists[0], lists[2], lists[3]
	a.nprocs = lists[1]
	i := 0
	for rank, n := range counts {
		hosts := make([]Host, n)
		for k := range hosts {
			if ports[i] > 65535 {
				return a.fault(LabelHostPort, rank, fmt.Errorf("%w: invalid port %d", ErrDisagree, ports[i]))
			}
			if ackMarks[i] == 0 {
				return a.fault(LabelHostAckMark, rank, fmt.Errorf("%w: ACKMARK is 0", ErrDisagree))
			}
			if hiWaters[i] < ackMarks[i] {
				return a.fault(LabelHostHiWater, rank, fmt.Errorf("%w: HIWATER %d is less than ACKMARK %d", ErrDisagree, hiWaters[i], ackMarks[i]))
			}
			hosts[k] = Host{ID: HostID(addrs[16*i:]), Port: uint16(ports[i]), AckMark: ackMarks[i], HiWater: hiWaters[i]}
			a.owner = append(a.owner, rank)
			i++
		}
		j.Clients[rank].Hosts = hosts
	}
	return nil
}

// processes gives every host its processes.
func (a *agreement) processes(j *Job) error {
	addrs, pids := a.answers[LabelProcIPv6].data, a.answers[LabelProcPID].data
	total := len(pids) / 8
	if len(pids)%8 != 0 || len(addrs) != 16*total {
		return a.fault(LabelProcPID, -1, fmt.Errorf("%w: %d bytes of process ids do not match %d bytes of addresses", ErrDisagree, len(pids), len(addrs)))
	}
	announced, err := a.words(LabelNProcs, a.size)
	if err != nil {
		return err
	}
	counted := make([]uint64, a.size)
	left := uint64(total)
	for host, n := range a.nprocs {
		rank := a.owner[host]
		if n == 0 || uint64(n) > left {
			return a.fault(LabelHostNProcs, rank, fmt.Errorf("%w: it announced a host with %d processes, but only %d are left", ErrDisagree, n, left))
		}
		left -= uint64(n)
		counted[rank] += uint64(n)
	}
	if left != 0 {
		return a.fault(LabelProcPID, -1, fmt.Errorf("%w: %d processes too many", ErrDisagree, left))
	}
	for rank, n := range announced {
		if uint64(n) != counted[rank] {
			return a.fault(LabelNProcs, rank, fmt.Errorf("%w: it announced %d processes, but its hosts have %d", ErrDisagree, n, counted[rank]))
		}
	}
	seen := make(map[Process]bool, total)
	host := 0
	for rank := range j.Clients {
		for k := range j.Clients[rank].Hosts {
			list := make([]Process, a.nprocs[host])
			host++
			for i := range list {
				p := Process{HostID(addrs[:16]), binary.BigEndian.Uint64(pids)}
				addrs, pids = addrs[16:], pids[8:]
				if seen[p] {
					return a.fault(LabelProcPID, rank, fmt.Errorf("%w: two processes have id %d on %v", ErrDisagree, p.PID, p.Host))
				}
				seen[p] = true
				list[i] = p
			}
			j.Clients[rank].Hosts[k].Processes = list
		}
	}
	return nil
}

// own reads the labels outside the protocol.
func (a *agreement) own(j *Job, c *Config) error {
	ours := a.answers[LabelSluice]
	if err := parseSluice(ours.data, bits.OnesCount32(ours.mask)); err != nil {
		return a.fault(LabelSluice, -1, err)
	}
	for rank := range j.Clients {
		j.Clients[rank].Foreign = ours.mask&(1<<rank) == 0
	}
	for _, x := range c.Extra {
		reply := a.answers[x.Label]
		if strangers := reply.mask &^ ours.mask; strangers != 0 {
			return a.fault(x.Label, bits.TrailingZeros32(strangers), fmt.Errorf("%w: it uses a label reserved for Sluice", ErrForeign))
		}
		parts, err := parseFramed(reply.data, bits.OnesCount32(reply.mask))
		if err != nil {
			return a.fault(x.Label, -1, err)
		}
		byRank := make([][]byte, a.size)
		for rank := range byRank {
			if reply.mask&(1<<rank) != 0 {
				byRank[rank], parts = parts[0], parts[1:]
			}
		}
		j.extra[x.Label] = byRank
	}
	return nil
}
