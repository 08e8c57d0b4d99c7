package qmp

import (
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/channel"
)

// DefaultPriority is the priority of handles that are given none (DEFAULT_PRIORITY of the C++ API,
// for which the 1.2 document states no value): the highest.
const DefaultPriority = 0

// Directions along an axis (SIGN of the C++ API).
const (
	Plus  = +1
	Minus = -1
)

// Streams of a communicator: one for messages by node number, and one for each axis and direction
// of travel.
func (c *Comm) addressed() int { return c.block * blockStreams }

func (c *Comm) relative(axis, dir int) int {
	if dir > 0 {
		return c.addressed() + 1 + 2*axis
	}
	return c.addressed() + 2 + 2*axis
}

// DeclareSendRelative declares a message to the neighbour along an axis, in direction [Plus] or
// [Minus], with wrap-around (QMP_declare_send_relative). It meets that node's receive from the
// opposite direction of the axis, never one by node number. On an axis of one node the neighbour is
// the node itself; on an axis of two nodes the messages of the two directions are kept apart.
// Declaring is local. Priority 0 is the highest; larger numbers come later (see
// channel.WithPriority). The caller owns the handle and must close it.
//
// Errors: [StatusNoNeighborInfo] without a topology; [StatusInvalidArg] for an axis or a direction
// that does not exist; [StatusBadMemory]; [StatusNotInited].
func (c *Comm) DeclareSendRelative(mm *MsgMem, axis, dir, priority int) (*Handle, error) {
	return c.declareRelative("send relative", kindSend, mm, axis, dir, dir, priority)
}

// DeclareReceiveRelative declares a message from the neighbour along an axis; see
// [Comm.DeclareSendRelative] (QMP_declare_receive_relative). The blocks of the memory must not
// overlap.
func (c *Comm) DeclareReceiveRelative(mm *MsgMem, axis, dir, priority int) (*Handle, error) {
	return c.declareRelative("receive relative", kindReceive, mm, axis, dir, -dir, priority)
}

// declareRelative declares a message with the neighbour in direction dir that travels in direction
// way.
func (c *Comm) declareRelative(what string, k kind, mm *MsgMem, axis, dir, way, priority int) (*Handle, error) {
	op := "declare " + what
	if err := c.check(op); err != nil {
		return nil, err
	}
	g := c.grid()
	switch {
	case g == nil:
		return nil, invalid(op, StatusNoNeighborInfo, "no topology has been declared")
	case axis < 0 || axis >= len(g.Dims):
		return nil, invalid(op, StatusInvalidArg, "axis %d of %d", axis, len(g.Dims))
	case dir != Plus && dir != Minus:
		return nil, invalid(op, StatusInvalidArg, "direction %d", dir)
	}
	name := fmt.Sprintf("%s, axis %d, direction %+d", what, axis, dir)
	return c.declare(op, name, k, mm, g.Neighbour(c.me, axis, dir), c.relative(axis, way), priority)
}

// DeclareSendTo declares a message to a node given by number (QMP_declare_send_to). It meets that
// node's receive from this node by number, never a relative one.
//
// Errors: [StatusNodeOutRange]; [StatusBadMemory]; [StatusNotInited].
func (c *Comm) DeclareSendTo(mm *MsgMem, node, priority int) (*Handle, error) {
	return c.declareAddressed("send to", kindSend, mm, node, priority)
}

// DeclareReceiveFrom declares a message from a node given by number; see [Comm.DeclareSendTo]
// (QMP_declare_receive_from).
func (c *Comm) DeclareReceiveFrom(mm *MsgMem, node, priority int) (*Handle, error) {
	return c.declareAddressed("receive from", kindReceive, mm, node, priority)
}

func (c *Comm) declareAddressed(what string, k kind, mm *MsgMem, node, priority int) (*Handle, error) {
	op := "declare " + what
	if err := c.check(op); err != nil {
		return nil, err
	}
	if node < 0 || node >= len(c.nodes) {
		return nil, invalid(op, StatusNodeOutRange, "node %d of %d", node, len(c.nodes))
	}
	return c.declare(op, fmt.Sprintf("%s %d", what, node), k, mm, node, c.addressed(), priority)
}

// DeclareSendMap declares a message by a communications map: node i sends to node to[i] (capability
// 5 of the 1.2 document). The map must be a permutation and the same at all nodes. The call is
// equivalent to [Comm.DeclareSendTo] with to[NodeNumber()].
func (c *Comm) DeclareSendMap(mm *MsgMem, to []int, priority int) (*Handle, error) {
	const op = "declare send map"
	if err := c.checkMap(op, to); err != nil {
		return nil, err
	}
	return c.DeclareSendTo(mm, to[c.me], priority)
}

// DeclareReceiveMap declares the message that arrives here under the map of [Comm.DeclareSendMap].
func (c *Comm) DeclareReceiveMap(mm *MsgMem, to []int, priority int) (*Handle, error) {
	const op = "declare receive map"
	if err := c.checkMap(op, to); err != nil {
		return nil, err
	}
	return c.DeclareReceiveFrom(mm, slices.Index(to, c.me), priority)
}

func (c *Comm) checkMap(op string, to []int) error {
	if err := c.check(op); err != nil {
		return err
	}
	if len(to) != len(c.nodes) {
		return invalid(op, StatusInvalidArg, "a map of %d nodes, there are %d", len(to), len(c.nodes))
	}
	seen := make([]bool, len(to))
	for i, n := range to {
		if n < 0 || n >= len(to) {
			return invalid(op, StatusNodeOutRange, "node %d sends to %d of %d", i, n, len(to))
		}
		if seen[n] {
			return invalid(op, StatusInvalidArg, "two nodes send to %d", n)
		}
		seen[n] = true
	}
	return nil
}

func (c *Comm) declare(op, name string, k kind, mm *MsgMem, node, stream, priority int) (*Handle, error) {
	if err := mm.usable(op); err != nil {
		return nil, err
	}
	opts := []channel.DeclareOption{channel.OnStream(stream), channel.WithPriority(-priority)}
	declare := c.m.node.DeclareSend
	if k == kindReceive {
		declare = c.m.node.DeclareReceive
	}
	ch, err := declare(mm.layout, c.nodes[node], opts...)
	if err != nil {
		return nil, failed(op, err)
	}
	mem := *mm
	c.m.trace("declare %s", name)
	c.hold(1)
	return &Handle{ch: ch, m: c.m, watch: &c.m.watch, kind: k, name: name, mem: &mem, comm: c, peer: c.nodes[node], stream: stream}, nil
}

// ChangeAddress moves an idle send or receive to other memory with the same layout
// (QMP_change_address): one slice or, for a strided array, one for each element, in order.
//
// Errors: [StatusInvalidOp] for an active handle, which does not change; [StatusBadMemory] if the
// layout does not fit; [StatusInvalidArg] for a multiple.
func (h *Handle) ChangeAddress(bases ...[]byte) error {
	const op = "change address"
	switch {
	case h == nil || h.ch == nil:
		return invalid(op, StatusInvalidArg, "no handle")
	case h.kind == kindMultiple:
		return invalid(op, StatusInvalidArg, "a multiple")
	case h.armed:
		return h.invalidOp(op, "the receive is ready")
	case len(bases) != h.mem.bases:
		return invalid(op, StatusInvalidArg, "%d slices for a layout over %d", len(bases), h.mem.bases)
	}
	if err := h.ch.SetLayout(h.mem.again(bases)); err != nil {
		return h.fail(op, err)
	}
	h.succeed()
	return nil
}

// ChangeAddressMultiple is [Handle.ChangeAddress] for all members of a multiple, which must be
// idle, in the order in which they were given (QMP_change_address_multiple). After an error, the
// members before the one that it names have changed.
func (h *Handle) ChangeAddressMultiple(bases ...[]byte) error {
	const op = "change address multiple"
	if h == nil || h.kind != kindMultiple {
		return invalid(op, StatusInvalidArg, "no multiple")
	}
	want := 0
	for _, m := range h.members {
		want += m.mem.bases
		if m.armed || m.ch.Active() {
			return h.invalidOp(op, "a member is active: "+m.name)
		}
	}
	if len(bases) != want {
		return invalid(op, StatusInvalidArg, "%d slices for layouts over %d", len(bases), want)
	}
	for _, m := range h.members {
		if err := m.ChangeAddress(bases[:m.mem.bases]...); err != nil {
			return err
		}
		bases = bases[m.mem.bases:]
	}
	h.succeed()
	return nil
}

// DeclareMultiple combines several handles into one (QMP_declare_multiple): starting it starts them
// all, and it is complete when all are complete. It owns nothing: its members outlive it and may be
// waited for individually. A member that is itself a multiple is replaced by its members. All
// handles must belong to one machine, and none may occur twice.
//
// The 1.2 document asks that no two members send, or receive, over the same wire. Here they may:
// they meet the peer's in the order of their priorities, and then of the list.
func DeclareMultiple(handles ...*Handle) (*Handle, error) {
	return declareMultiple("declare multiple", handles)
}

// DeclareSendRecvPairs is [DeclareMultiple] for sends and receives in pairs
// (QMP_declare_send_recv_pairs): there must be as many sends as receives.
func DeclareSendRecvPairs(handles ...*Handle) (*Handle, error) {
	const op = "declare send recv pairs"
	more := 0
	for _, h := range flat(handles) {
		if h != nil && h.kind == kindSend {
			more++
		} else {
			more--
		}
	}
	if more != 0 {
		return nil, invalid(op, StatusInvalidArg, "sends and receives are not as many")
	}
	return declareMultiple(op, handles)
}

// flat returns a list of handles in which multiples are replaced by their members.
func flat(handles []*Handle) []*Handle {
	var list []*Handle
	for _, h := range handles {
		if h != nil && h.kind == kindMultiple {
			list = append(list, h.members...)
		} else {
			list = append(list, h)
		}
	}
	return list
}

func declareMultiple(op string, handles []*Handle) (*Handle, error) {
	members := flat(handles)
	if len(members) == 0 {
		return nil, invalid(op, StatusInvalidArg, "no handles")
	}
	chs := make([]*channel.Handle, len(members))
	for i, h := range members {
		if h == nil || h.ch == nil || h.closed {
			return nil, invalid(op, StatusInvalidArg, "member %d is no handle, or has been freed", i)
		}
		chs[i] = h.ch
	}
	m := members[0].m
	ch, err := m.node.Multiple(chs...)
	if err != nil {
		return nil, failed(op, err)
	}
	for _, h := range members {
		h.users++
	}
	name := fmt.Sprintf("multiple of %d", len(members))
	m.trace("declare %s", name)
	succeed()
	return &Handle{ch: ch, m: m, watch: &m.watch, kind: kindMultiple, name: name, members: members}, nil
}
