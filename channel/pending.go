package channel

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
)

// pendingCall describes, for reports, a call that other ranks must make as well. Collectives and
// handles describe themselves.
type pendingCall struct {
	node  *Node
	op    string
	began uint32                 // tick of the node
	waits atomic.Pointer[string] // what it waits for
}

// begin records a call until its end.
func (n *Node) begin(op string) *pendingCall {
	c := &pendingCall{node: n, op: op, began: n.ticks.Load()}
	c.waitsFor("the other ranks")
	n.mu.Lock()
	n.calling[c] = struct{}{}
	n.mu.Unlock()
	return c
}

func (c *pendingCall) end() {
	c.node.mu.Lock()
	delete(c.node.calling, c)
	c.node.mu.Unlock()
}

func (c *pendingCall) waitsFor(what string) { c.waits.Store(&what) }

func (c *pendingCall) describe(now uint32) string {
	return fmt.Sprintf("%s: waits for %s, for %d s", c.op, *c.waits.Load(), max(now, c.began)-c.began)
}

// pending describes the operations in progress.
func (n *Node) pending() []string {
	n.mu.Lock()
	handles := slices.Collect(maps.Keys(n.handles))
	groups := slices.Collect(maps.Values(n.groups))
	calls := slices.Collect(maps.Keys(n.calling))
	n.mu.Unlock()
	now := n.ticks.Load()
	var lines []string
	add := func(line string) {
		if line != "" {
			lines = append(lines, line)
		}
	}
	for _, c := range calls {
		add(c.describe(now))
	}
	for _, g := range groups {
		add(g.describe(now))
	}
	for _, h := range handles {
		add(h.describeState(now))
	}
	slices.Sort(lines)
	return lines
}
