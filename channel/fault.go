package channel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/shared"
	"github.com/sluice-hpc/sluice/internal/collop"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// reasons are the errors that members tell each other, by number; 0 is any other.
var reasons = []error{1: ErrMismatch, ErrPeerDied, reasonLeft: ErrPeerLeft, ErrUnreachable, ErrAborted, ErrTimeout, ErrProtocol}

const reasonLeft = 3

// faultInfo is the body of kindFault: the group has failed.
type faultInfo struct {
	group  uint64
	rank   uint32 // the rank at fault
	reason uint8
	text   string
}

const maxFaultText = 512

func (f *faultInfo) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, f.group)
	b = binary.BigEndian.AppendUint32(b, f.rank)
	b = append(b, f.reason)
	return append(b, f.text[:min(len(f.text), maxFaultText)]...)
}

func parseFault(b []byte) (faultInfo, error) {
	r := reader{b: b}
	f := faultInfo{group: r.u64(), rank: r.u32(), reason: r.u8()}
	if r.bad || len(r.b) > maxFaultText || int(f.reason) >= len(reasons) {
		return f, fmt.Errorf("%w: %v of %d bytes", ErrProtocol, kindFault, len(b))
	}
	f.text = string(r.b)
	return f, nil
}

// failNow ends everything in progress here, and tells the other members to do the same.
func (g *Group) failNow(err error) {
	g.fail(err)
	g.endAll(*g.fault.Load())
}

// fail marks the group failed and tells the other members. Operations in progress here end
// the next time they are polled.
func (g *Group) fail(err error) {
	if !g.fault.CompareAndSwap(nil, &err) {
		return
	}
	g.told.Store(true)
	g.tellAll(kindFault, g.faultBody(err), true)
	g.node.log.Debug("channel: a group has failed", "size", g.Size(), "error", err)
	g.node.sleepers.WakeAll()
}

// passOn forwards the failure that this member was told of to its connected members: they are
// about to see it leave, which is not why the group failed.
func (g *Group) passOn() {
	if f := g.fault.Load(); f != nil && g.told.CompareAndSwap(false, true) {
		g.tellAll(kindFault, g.faultBody(*f), false)
	}
}

// faultBody is the control message of an error.
func (g *Group) faultBody(err error) []byte {
	f := faultInfo{group: g.id, rank: uint32(g.culprit(err)), reason: reasonOf(err)}
	f.text = detail(err, reasons[f.reason])
	return f.append(nil)
}

// detail is the text of an error without its reason.
func detail(err, reason error) string {
	for e := (*Error)(nil); errors.As(err, &e); {
		err = e.Err
	}
	text := err.Error()
	if reason != nil {
		text = strings.TrimPrefix(strings.TrimPrefix(text, reason.Error()), ": ")
	}
	return text
}

// culprit is the rank that caused an error: this one unless the error names another.
func (g *Group) culprit(err error) int {
	if e := (*Error)(nil); errors.As(err, &e) && e.Rank >= 0 {
		return e.Rank
	}
	return g.node.rank
}

// reasonOf is the number of a reason. A rank that closes its group leaves it.
func reasonOf(err error) uint8 {
	for i, r := range reasons {
		if r != nil && errors.Is(err, r) {
			return uint8(i)
		}
	}
	if errors.Is(err, ErrClosed) {
		return reasonLeft
	}
	return 0
}

// tellAll sends a control message to all other members or, without connect, to those already
// connected, which works while the node is being closed.
func (g *Group) tellAll(k kind, body []byte, connect bool) {
	n := g.node
	for _, rank := range g.ranks {
		if rank == n.rank {
			continue
		}
		var p *peer
		if connect {
			p, _ = n.peer(rank)
		}
		if p == nil {
			n.mu.Lock()
			p = n.peers[rank].Load()
			n.mu.Unlock()
		} else {
			p.connect()
		}
		if p == nil {
			continue
		}
		p.mu.Lock()
		if s := p.state.Load(); s == peerUp || s == peerConnecting {
			p.tell(k, body)
		}
		p.mu.Unlock()
	}
}

// endAll ends all collectives in progress at this member.
func (g *Group) endAll(err error) {
	g.team.Fail(err)
	ctx, cancel := g.node.patience()
	defer cancel()
	g.settle(ctx)
	for _, c := range g.active {
		c.over()
		c.err = groupError(c.op.Kind.String(), err)
	}
	g.active = g.active[:0]
}

// settle waits until no member accesses the memory of failed operations. What one may still access when
// ctx ends is never freed.
func (g *Group) settle(ctx context.Context) {
	if wait.Until(ctx, g.team.Settled) {
		return
	}
	n := g.node
	for _, b := range g.team.Accessed() {
		n.keep(n.memories.Find(b), errAccessed)
	}
}

var errAccessed = fmt.Errorf("%w: a member on this host still accesses the memory of the failed operation", ErrBusy)

// look fails the group if a member of this host is gone without having done its part.
func (g *Group) look() {
	if len(g.active) == 0 { // what a failed operation has left is not needed
		return
	}
	for i, p := range g.host.peers {
		if p.state.Load() < peerFailed || p.rank == g.node.rank {
			continue
		}
		if g.team.Needs(i) {
			g.failNow(&Error{Op: g.active[0].op.Kind.String(), Rank: p.rank, Stream: -1, Err: *p.err.Load()})
			return
		}
	}
}

// anyCollective is the Op of an error that ends whatever collective of the group is in progress.
const anyCollective = "collective"

func rankName(rank int) string { return fmt.Sprintf("rank %d", rank) }

// teamError is the error of the members of this host.
func (g *Group) teamError(err error) error {
	rank := func(i int) int { return g.ranks[g.local[i]] }
	op := anyCollective
	if len(g.active) > 0 {
		op = g.active[0].op.Kind.String()
	}
	if m := (*shared.MismatchError)(nil); errors.As(err, &m) {
		ours, theirs := coll.Signature(m.Ours), coll.Signature(m.Theirs)
		us, them := rankName(g.node.rank), rankName(rank(m.Member))
		switch {
		case m.Before < 0:
			return &Error{Op: op, Rank: rank(m.Member), Stream: -1, Err: fmt.Errorf("%w: %s is in an earlier collective", ErrMismatch, them)}
		case m.Before > 0:
			when := "the call"
			if m.Before > 1 {
				when = fmt.Sprint(m.Before, " calls")
			}
			return &Error{Op: op, Rank: rank(m.Member), Stream: -1, Err: fmt.Errorf("%w: %s before, %v: %s", ErrMismatch, when, ours.Kind(), ours.Differ(theirs, collop.Names, us, them))}
		case ours == theirs:
			return &Error{Op: op, Rank: rank(m.Member), Stream: -1, Err: fmt.Errorf("%w: %s passed %d bytes, %s passed %d", ErrMismatch, us, m.Len, them, m.Other)}
		}
		return &Error{Op: op, Rank: rank(m.Member), Stream: -1, Err: fmt.Errorf("%w: %s", ErrMismatch, ours.Differ(theirs, collop.Names, us, them))}
	}
	if errors.Is(err, shared.ErrWithdrawn) {
		g.awaitFault(verdictTime)
	}
	if f := g.fault.Load(); f != nil {
		return groupError(op, *f)
	}
	if errors.Is(err, shared.ErrProtocol) {
		return groupError(op, fmt.Errorf("%w: %w", ErrProtocol, err))
	}
	return groupError(op, err)
}

// awaitFault waits until another member has told why it failed.
func (g *Group) awaitFault(long time.Duration) {
	ctx, cancel := wait.Patience(context.Background(), long)
	defer cancel()
	wait.Until(ctx, func() bool { return g.fault.Load() != nil })
}

// runError translates an error of messages between members. If another member has failed, the
// fault that it sends to all members says more, and is on its way.
func (c *Collective) runError(s *stage, err error) error {
	g, op := c.group, c.op.Kind.String()
	rank := func(i int) int { return g.ranks[s.members[i]] }
	if m := (*coll.MismatchError)(nil); errors.As(err, &m) {
		if m.Failed {
			g.awaitFault(2 * verdictTime) // the failed member may wait itself, as below
		}
		if f := g.fault.Load(); f != nil {
			return groupError(op, *f)
		}
		if m.Failed {
			return &Error{Op: op, Rank: rank(m.From), Stream: -1, Err: fmt.Errorf("%w: as reported by rank %d", ErrUnreachable, rank(m.Via))}
		}
		return &Error{Op: op, Rank: rank(m.From), Stream: -1, Err: fmt.Errorf("%w: %s", ErrMismatch, m.Difference(collop.Names, rankName(g.node.rank), rankName(rank(m.From))))}
	}
	if p := (*coll.PeerError)(nil); errors.As(err, &p) {
		err = p.Err
		if errors.Is(err, ErrLength) {
			if e := (*Error)(nil); errors.As(err, &e) && e.Other >= 0 { // the message is not the user's
				return &Error{Op: op, Rank: rank(p.Peer), Stream: -1, Err: fmt.Errorf("%w: a message between them has %d bytes at %s, %d at %s", ErrMismatch, e.Len, rankName(g.node.rank), e.Other, rankName(rank(p.Peer)))}
			}
			return &Error{Op: op, Rank: rank(p.Peer), Stream: -1, Err: fmt.Errorf("%w: messages differ in length", ErrMismatch)}
		}
		// An unreachable member may have left because the group has failed.
		if errors.Is(err, ErrPeerLeft) && c.ask(rank(p.Peer)) || errors.Is(err, ErrUnreachable) {
			g.awaitFault(verdictTime)
			if f := g.fault.Load(); f != nil {
				return groupError(op, *f)
			}
		}
	}
	return groupError(op, err)
}

// ask asks a live rank that has ended the stream of the group for the reason, which arrives as a
// fault unless one is on its way already. It says whether it asked.
func (c *Collective) ask(rank int) bool {
	p, err := c.group.node.peer(rank)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Load() != peerUp {
		return false
	}
	p.tell(kindCall, (&callInfo{c.group.id, c.number, c.sig}).append(nil))
	return true
}

// faulted records the failure of another member, sent by the peer by. For a group that does not
// exist here yet, it is kept.
func (n *Node) faulted(by int, f faultInfo) {
	why := cmp.Or(reasons[f.reason], errFault)
	if f.text != "" {
		why = fmt.Errorf("%w: %s", why, f.text)
		if !strings.Contains(f.text, toldBy) {
			why = fmt.Errorf("%w%s%d)", why, toldBy, by)
		}
	}
	culprit := int(f.rank)
	if culprit == n.rank {
		culprit = -1 // not a peer; the text names both
	}
	err := error(&Error{Op: anyCollective, Rank: culprit, Stream: -1, Err: why})
	n.mu.Lock()
	g := n.groups[f.group]
	_, left := n.groupsLeft[f.group]
	if g == nil && !left && len(n.earlyFaults) < maxEarlyFaults {
		n.earlyFaults[f.group] = err
	}
	n.mu.Unlock()
	if g != nil {
		g.fault.CompareAndSwap(nil, &err)
	}
}

// toldBy precedes the rank at which the error occurred.
const toldBy = " (at rank "

// errFault: another member has failed with an error that is not one of reasons.
var errFault = errors.New("a member has failed")

// maxEarlyFaults bounds the failures that peers can make us keep.
const maxEarlyFaults = 1024
