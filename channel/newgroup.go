package channel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/shared"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// lineLooks is how often a line is polled in a row, for some 100 ns.
const lineLooks = 100

// groupRecord is what each rank of a new group tells the others.
type groupRecord struct {
	host     uint64 // ranks of the same host are reached through shared memory
	shares   bool   // the rank has such memory
	segment  region
	verdicts uint8 // of the second round: whether all of the host has been reached
}

const groupRecordLen = 8 + 1 + 20 + 1

func (r *groupRecord) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, r.host)
	flag := byte(0)
	if r.shares {
		flag = 1
	}
	b = r.segment.append(append(b, flag))
	return append(b, r.verdicts)
}

func parseGroupRecord(b []byte) (r groupRecord, err error) {
	d := reader{b: b}
	r.host = d.u64()
	r.shares = d.u8() == 1
	r.segment = d.region()
	r.verdicts = d.u8()
	if d.bad || len(d.b) > 0 {
		return r, fmt.Errorf("%w: group record of %d bytes", ErrProtocol, len(b))
	}
	return r, nil
}

// newGroup makes a group of ranks on the first stream reserved for groups. All ranks call it.
func (n *Node) newGroup(ctx context.Context, call *pendingCall, id uint64, ranks []int, exchange func([]byte) ([][]byte, error)) (*Group, error) {
	n.takeStream(MaxStream + 1)
	return n.newGroupOn(ctx, call, id, MaxStream+1, ranks, exchange)
}

// newGroupOn makes a group of ranks. All of them call it; all other ranks in the exchange call it
// with no ranks, and get nil.
//
// In the first round of the exchange each rank tells its host and the location of its segment.
// Then the ranks of each host connect. In the second round each rank tells whether it has
// reached all ranks of its host. If one has not, every rank of that host is treated as a host of
// its own.
func (n *Node) newGroupOn(ctx context.Context, call *pendingCall, id uint64, stream uint32, ranks []int, exchange func([]byte) ([][]byte, error)) (_ *Group, err error) {
	if len(ranks) == 0 {
		for range 2 {
			if _, err := exchange(make([]byte, groupRecordLen)); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	if err := n.call(); err != nil {
		return nil, err
	}
	defer n.calls.Done()
	ctx, done := n.whileOpen(ctx)
	defer done()
	g := &Group{node: n, id: id, ranks: ranks, me: slices.Index(ranks, n.rank), stream: stream, kept: map[string]*keptCall{}, members: map[*Collective]struct{}{}, ended: make(chan struct{})}
	for i := range g.recalled.calls {
		g.recalled.calls[i].group = g
	}
	mine := groupRecord{host: n.hostOf(n.rank), shares: n.memory != nil}
	size := shared.SegmentSize(len(ranks))
	var segment []byte
	if err := n.freeSegments(); err != nil {
		n.log.Warn("channel: cannot free the memory of closed groups", "error", err)
	}
	if mine.shares {
		if g.memory, err = n.Alloc(size); err != nil { // go on: the others wait for this rank
			n.log.Warn("channel: cannot allocate shared memory for collectives", "error", err)
			mine.shares = false
		} else {
			segment, mine.segment = g.memory.Bytes(), regionOf(g.memory.mr)
		}
	}
	if segment == nil {
		segment = alignedMemory(size)
	}
	own := shared.NewSegment(segment, len(ranks))
	defer func() {
		if err != nil && g.memory != nil {
			err = errors.Join(err, g.memory.Close())
		}
	}()
	call.waitsFor("the other ranks, round 1 of 2")
	records, err := exchangeRecords(exchange, &mine)
	if err != nil {
		return nil, err
	}
	segments, reached := g.reach(ctx, call, records, own)
	if reached == nil {
		mine.verdicts = 1
	}
	call.waitsFor("the other ranks, round 2 of 2")
	second, err := exchangeRecords(exchange, &mine)
	if err != nil {
		return nil, err
	}
	hosts := make([]int, len(ranks))
	for i := range records {
		hosts[i] = i
		for k := range i {
			if records[k].host == records[i].host && records[k].shares && records[i].shares {
				hosts[i] = k
				break
			}
		}
	}
	for i := range records { // split a host of which a rank has not reached all others
		if hosts[i] == i && slices.ContainsFunc(second, func(r groupRecord) bool { return r.host == records[i].host && r.shares && r.verdicts == 0 }) {
			for k := range hosts {
				if hosts[k] == i {
					hosts[k] = k
				}
			}
		}
	}
	if reached != nil {
		if ctx.Err() != nil {
			return nil, reached
		}
		n.log.Info("channel: not all ranks of this host are reachable through shared memory", "reason", reached)
	}
	if g.place, err = coll.NewPlacement(hosts); err != nil {
		return nil, err
	}
	g.local = g.place.Members(g.place.Host(g.me))
	if len(g.local) == 1 {
		segments = map[int]*shared.Segment{g.me: own}
	}
	g.host = &hostCarrier{node: n}
	var list []*shared.Segment
	for _, m := range g.local {
		p, err := n.peer(ranks[m])
		if err != nil {
			return nil, err
		}
		g.host.peers = append(g.host.peers, p)
		if m != g.me {
			g.host.others = append(g.host.others, p)
			g.host.fenced = g.host.fenced || p.fenced
		}
		list = append(list, segments[m])
	}
	g.host.me = slices.Index(g.local, g.me)
	g.team = shared.NewTeam(g.host, g.host.me, list)
	g.policy = wait.NewPolicy(n.opt.waits, collectiveLooks, n.cpus)
	g.spinTeam()
	n.mu.Lock()
	n.groups[id] = g
	early := n.earlyFaults[id]
	delete(n.earlyFaults, id)
	n.mu.Unlock()
	if early != nil {
		g.fault.CompareAndSwap(nil, &early)
	}
	return g, nil
}

// spinTeam has collectives look at a line several times in a row, unless ranks share CPUs.
func (g *Group) spinTeam() {
	if g.policy.Sharing() == wait.Crowded {
		g.team.Spin(0)
	} else {
		g.team.Spin(lineLooks)
	}
}

// exchangeRecords performs one round of the exchange.
func exchangeRecords(exchange func([]byte) ([][]byte, error), mine *groupRecord) ([]groupRecord, error) {
	all, err := exchange(mine.append(nil))
	if err != nil {
		return nil, err
	}
	list := make([]groupRecord, len(all))
	for i, b := range all {
		if list[i], err = parseGroupRecord(b); err != nil {
			return nil, fmt.Errorf("member %d: %w", i, err)
		}
	}
	return list, nil
}

// Hosts returns a host number for each rank: ranks with the same number are on one
// host. Numbers are assigned from 0 in rank order. The call is local.
func (n *Node) Hosts() []int {
	list := make([]int, n.size)
	known := map[uint64]int{}
	for rank := range list {
		host := n.hostOf(rank)
		if _, ok := known[host]; !ok {
			known[host] = len(known)
		}
		list[rank] = known[host]
	}
	return list
}

// hostOf is the host of a rank.
func (n *Node) hostOf(rank int) uint64 {
	switch {
	case n.opt.hosts != nil:
		return uint64(n.opt.hosts(rank))
	case n.size == 1:
		return 0
	}
	return n.addresses[rank].host
}

// reach connects to the members of this host, and returns their segments.
func (g *Group) reach(ctx context.Context, call *pendingCall, records []groupRecord, own *shared.Segment) (map[int]*shared.Segment, error) {
	n := g.node
	list := map[int]*shared.Segment{g.me: own}
	if !records[g.me].shares {
		return list, nil
	}
	var peers []*peer
	for i := range records {
		if i == g.me || records[i].host != records[g.me].host || !records[i].shares {
			continue
		}
		p, err := n.peer(g.ranks[i])
		if err != nil {
			return nil, err
		}
		p.connect()
		peers = append(peers, p)
	}
	for i := range records {
		if i == g.me || records[i].host != records[g.me].host || !records[i].shares {
			continue
		}
		p := peers[0]
		peers = peers[1:]
		call.waitsFor(fmt.Sprintf("the connection to rank %d", p.rank))
		if err := p.awaitUp(ctx); err != nil {
			return nil, err
		}
		if !p.link.dev.mapped {
			return nil, fmt.Errorf("rank %d is reached through provider %s, not shared memory", p.rank, p.link.dev.provider())
		}
		mem, err := p.link.view(ctx, records[i].segment, shared.SegmentSize(len(records)))
		if err != nil {
			return nil, fmt.Errorf("segment of rank %d: %w", p.rank, err)
		}
		if list[i], err = shared.ViewSegment(mem, len(records)); err != nil {
			return nil, fmt.Errorf("rank %d: %w", p.rank, err)
		}
	}
	return list, nil
}

// awaitUp waits until the peer is connected.
func (p *peer) awaitUp(ctx context.Context) error {
	for pauses := (wait.Pauses{}); ; {
		switch p.state.Load() {
		case peerUp:
			return nil
		case peerFailed:
			return p.opError("connect", 0, 0)
		}
		if cause := pauses.Next(ctx); cause != nil {
			err := ctx.Err()
			if errors.Is(cause, ErrClosed) {
				err = ErrClosed
			}
			return fmt.Errorf("connect to rank %d: %w", p.rank, err)
		}
	}
}
