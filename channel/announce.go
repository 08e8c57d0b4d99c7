package channel

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/collop"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Members that call different collectives detect it when their messages meet. They may
// never meet, because each waits for another. A member that waits for long therefore
// announces its call to all others, and a member that called something else under that
// number reports the mismatch.

// announceAfter is how long a member waits before it announces its call; the interval
// doubles each time.
const announceAfter = 500 * time.Millisecond

// callInfo is the body of kindCall.
type callInfo struct {
	group, number uint64
	signature     coll.Signature
}

func (c *callInfo) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, c.group)
	b = binary.BigEndian.AppendUint64(b, c.number)
	return binary.BigEndian.AppendUint64(b, uint64(c.signature))
}

func parseCall(b []byte) (callInfo, error) {
	r := reader{b: b}
	c := callInfo{r.u64(), r.u64(), coll.Signature(r.u64())}
	return c, r.end(kindCall)
}

// callRecord is one of the last collectives. The number is zero while it is written.
type callRecord struct{ number, signature uint64 }

// record remembers what this member calls.
func (g *Group) record(c *Collective) {
	r := &g.calls[c.number%uint64(len(g.calls))]
	wait.StoreRelaxed64(&r.number, 0)
	wait.StoreRelease64(&r.signature, uint64(c.sig))
	wait.StoreRelease64(&r.number, c.number)
}

// waiting is a collective that a goroutine sleeps for, for reports.
type waiting struct {
	kind   coll.Kind
	number uint64
	began  uint32 // tick of the node
}

// describe says which collective a goroutine sleeps in; empty if none does.
func (g *Group) describe(now uint32) string {
	w := g.waits.Load()
	if w == nil {
		return ""
	}
	return fmt.Sprintf("%v of a group of %d, call %d: waits for members, for %d s", w.kind, g.Size(), w.number, max(now, w.began)-w.began)
}

// announce periodically tells the other members which collective this one waits in, and returns when
// to call it again.
func (c *Collective) announce() time.Duration {
	now := time.Now().UnixNano()
	switch {
	case c.announced == 0:
		c.announced = now
		c.group.waits.Store(&waiting{c.op.Kind, c.number, c.group.node.ticks.Load()})
	case now-c.announced > c.again:
		c.announced = now
		c.again *= 2
		g := c.group
		g.tellAll(kindCall, (&callInfo{g.id, c.number, c.sig}).append(nil), true)
	}
	return time.Duration(c.again-(now-c.announced)) + 1
}

// checkCall compares the announced call of another member with this member's. An announcement
// of a collective that this member has not reached yet is ignored; it will be repeated.
func (n *Node) checkCall(c callInfo, rank int) {
	n.mu.Lock()
	g := n.groups[c.group]
	_, left := n.groupsLeft[c.group]
	n.mu.Unlock()
	if left { // this rank will never call what the peer waits for
		f := faultInfo{group: c.group, rank: uint32(n.rank), reason: reasonLeft, text: "the group has been closed"}
		if p, err := n.peer(rank); err == nil {
			p.mu.Lock()
			p.tellOnce(topic{kind: kindFault, of: c.group}, f.append(nil))
			p.mu.Unlock()
		}
	}
	if g == nil {
		return
	}
	r := &g.calls[c.number%uint64(len(g.calls))]
	before := atomic.LoadUint64(&r.number)
	ours := coll.Signature(atomic.LoadUint64(&r.signature))
	if before != c.number || atomic.LoadUint64(&r.number) != c.number || ours == c.signature {
		return
	}
	g.fail(&Error{Op: ours.Kind().String(), Rank: rank, Stream: -1, Err: fmt.Errorf("%w: %s", ErrMismatch, ours.Differ(c.signature, collop.Names, rankName(n.rank), rankName(rank)))})
}
