package qmp

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/channel"
)

// Comm is a communicator: an ordered set of nodes of a job, numbered from 0, with a topology of its
// own. Messages and global operations of different communicators never meet.
//
// Methods may be called by several goroutines at the same time. A communicator's global operations
// are for one goroutine at a time, and all nodes must call them in the same order: of two
// concurrent calls, one gets [StatusSvcBusy].
//
// Methods of a nil Comm, which is the default communicator before [Init], return zero values, -1
// for numbers, and [StatusNotInited].
type Comm struct {
	m     *Machine
	group *channel.Group
	block int   // of streams
	nodes []int // ranks in the job, by node number
	me    int

	colors, color, key int

	allocated *grid // the machine's own grid, of the job's communicator
	topology  atomic.Pointer[grid]
	lattice   atomic.Pointer[subgrid]

	inside  uint32 // a goroutine is in a global operation
	cells   cells
	barrier *channel.Collective
	waiting bool // for a barrier after its timeout
	closed  atomic.Bool

	handles  int  // declared on it and not closed; guarded by blocks.mu
	released bool // its block has been released; guarded by blocks.mu
}

// newComm makes a communicator of a group, which it owns.
func newComm(m *Machine, g *channel.Group, block int) (*Comm, error) {
	c := &Comm{m: m, group: g, block: block, nodes: g.Ranks(), me: g.Rank(), colors: 1}
	var err error
	if c.barrier, err = g.Declare(channel.Barrier()); err != nil {
		return nil, err
	}
	return c, nil
}

// check returns the error of a call if the communicator cannot be used.
func (c *Comm) check(op string) error {
	switch {
	case c == nil || c.m.finalized.Load():
		return fail(op, StatusNotInited, nil)
	case c.closed.Load():
		return invalid(op, StatusInvalidOp, "the communicator has been freed")
	}
	succeed()
	return nil
}

func (c *Comm) isDefault() bool { return c.m.def.Load() == c }

// Machine returns the machine of the communicator.
func (c *Comm) Machine() *Machine {
	if c == nil {
		return nil
	}
	return c.m
}

// NumberOfNodes returns the number of nodes (QMP_comm_get_number_of_nodes).
func (c *Comm) NumberOfNodes() int {
	if c == nil {
		return 0
	}
	return len(c.nodes)
}

// NodeNumber returns the number of this node (QMP_comm_get_node_number).
func (c *Comm) NodeNumber() int {
	if c == nil {
		return -1
	}
	return c.me
}

// IsPrimaryNode reports whether this is node 0 (QMP_comm_is_primary_node).
func (c *Comm) IsPrimaryNode() bool { return c.NodeNumber() == 0 }

// NumberOfColors returns the number of colors of the split that made the communicator; 1 if no
// split did (QMP_comm_get_number_of_colors).
func (c *Comm) NumberOfColors() int {
	if c == nil {
		return 0
	}
	return c.colors
}

// Color returns the color that this node passed to the split that made the communicator; 0 if no
// split did (QMP_comm_get_color).
func (c *Comm) Color() int {
	if c == nil {
		return -1
	}
	return c.color
}

// Key returns the key that this node passed to the split that made the communicator; 0 if no split
// did (QMP_comm_get_key).
func (c *Comm) Key() int {
	if c == nil {
		return -1
	}
	return c.key
}

// Group returns the group of package channel that runs the global operations (QMP_get_hidden_comm).
// Use it for operations that this API lacks, in turn with the operations of the communicator. It
// ends with the communicator.
func (c *Comm) Group() *channel.Group {
	if c == nil {
		return nil
	}
	return c.group
}

// Split makes one communicator for each color, of the nodes that pass that color, numbered in the
// order of their keys and, for equal keys, of their numbers in c (QMP_comm_split). All nodes of c
// call it. A node that passes a negative color gets nil. The communicator belongs to the caller,
// and must be freed with [Comm.Free].
//
// Errors: [StatusNoPorts] if the nodes have 2047 communicators that are not freed, that have open
// handles, or that have messages not received; those of a global operation.
func (c *Comm) Split(color, key int) (*Comm, error) {
	const op = "comm split"
	if err := c.begin(op); err != nil {
		return nil, err
	}
	defer c.end()
	s, err := c.split(context.Background(), color, key)
	if err != nil {
		return nil, failed(op, err)
	}
	c.m.trace("%s: color %d, key %d", op, color, key)
	return s, nil
}

func (c *Comm) split(ctx context.Context, color, key int) (*Comm, error) {
	all := make([]int64, c.NumberOfNodes())
	if err := c.group.Run(ctx, channel.Allgather(all, []int64{int64(color)})); err != nil {
		return nil, err
	}
	slices.Sort(all)
	colors := 0
	for i, v := range all {
		if v >= 0 && (i == 0 || v != all[i-1]) {
			colors++
		}
	}
	block, err := c.agree(ctx)
	if err != nil {
		return nil, err
	}
	g, err := c.group.Split(ctx, color, key)
	var s *Comm
	if err == nil && g != nil {
		s, err = newComm(c.m, g, block)
	}
	if s == nil { // without a communicator, or a part in one
		c.m.blocks.release(block)
		return nil, err
	}
	s.colors, s.color, s.key = colors, color, key
	c.m.mu.Lock()
	c.m.comms[s] = struct{}{}
	c.m.mu.Unlock()
	return s, nil
}

// Free ends a communicator at this node (QMP_comm_free). It waits until the other nodes have
// finished the global operations that are finished here. Handles declared on the communicator
// remain usable. A global operation in progress fails at all nodes. The communicators of [Init] are
// freed by [Finalize]; Free returns [StatusInvalidOp] for them.
func (c *Comm) Free() error {
	const op = "comm free"
	if err := c.check(op); err != nil {
		return err
	}
	m := c.m
	m.mu.Lock()
	_, made := m.comms[c]
	delete(m.comms, c)
	m.mu.Unlock()
	if !made {
		return invalid(op, StatusInvalidOp, "the communicator is of Init")
	}
	c.closed.Store(true)
	m.def.CompareAndSwap(c, m.job.Load())
	err := c.group.Close()
	c.hold(0)
	return failed(op, err)
}
