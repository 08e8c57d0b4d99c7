package impi

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/collop"
)

// Context ids: that of a communicator is even, that of its collectives the next. Foreign
// processes know the world alone. The others need no agreement, or are agreed on by
// the members, from firstCID on; none is used twice in a job. They fit into 32 bits.
const (
	worldCID   = 0
	oursCID    = 1 << 20
	clientCIDs = oursCID + 2 // of the processes of each client
	firstCID   = clientCIDs + 2*startup.MaxClients
	lastCID    = 1<<32 - 2
)

// spansForeign says whether a member is foreign.
func (c *Comm) spansForeign() bool {
	return slices.ContainsFunc(c.ranks, func(rank int32) bool { return c.job.Foreign(int(rank)) })
}

// Ours returns the communicator of those members that are processes of this package,
// in their order: c itself if no member is foreign. It sends nothing, so that it works
// where foreign processes cannot take part; later calls return the same one. With it
// [Comm.Split], and all collectives, are possible in a job with foreign processes.
func (c *Comm) Ours() *Comm {
	c.e.lock.Lock()
	defer c.e.lock.Unlock()
	switch {
	case c.calls.ours != nil:
		return c.calls.ours
	case !c.spansForeign():
		return c
	}
	ranks := slices.DeleteFunc(slices.Clone(c.ranks), func(rank int32) bool { return c.job.Foreign(int(rank)) })
	c.calls.ours = c.job.newComm(c.p, ranks, oursCID)
	return c.calls.ours
}

// Job returns the job whose processes the members are.
func (c *Comm) Job() *Job { return c.job }

// Ranks returns the ranks in the job of the members, by their rank in the communicator.
func (c *Comm) Ranks() []int {
	list := make([]int, len(c.ranks))
	for i, rank := range c.ranks {
		list[i] = int(rank)
	}
	return list
}

// Dup makes a communicator of the same members, whose messages are its own
// (MPI_Comm_dup). All members call it, as a collective. It belongs to the caller; see
// [Comm.Free].
//
// Errors: [ErrForeign] if a member is foreign, as LAM/MPI cannot take part; else those
// of [Comm.Run].
func (c *Comm) Dup(ctx context.Context) (*Comm, error) { return c.divide(ctx, "dup", 0, c.me) }

// Split makes communicators of those members with the same color, in the order of
// key, and of their rank in c where keys are the same (MPI_Comm_split). All members
// call it, as a collective. Who gives a negative color is in none: nil. The
// communicator belongs to the caller; see [Comm.Free]. Errors are those of Dup.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	return c.divide(ctx, "split", color, key)
}

func (c *Comm) divide(ctx context.Context, op string, color, key int) (*Comm, error) {
	c.e.lock.Lock()
	defer c.e.lock.Unlock()
	if c.spansForeign() {
		return nil, jobError(op, ErrForeign)
	}
	const size = 16
	var mine [size]byte
	binary.BigEndian.PutUint64(mine[:], uint64(color))
	binary.BigEndian.PutUint64(mine[8:], uint64(key))
	all := make([]byte, size*len(c.ranks))
	if err := c.runOperation(ctx, channel.Allgather(all, mine[:])); err != nil {
		return nil, err
	}
	cid, err := c.agree(ctx, op)
	if err != nil || color < 0 {
		return nil, err
	}
	type member struct {
		rank int32
		key  int
	}
	var list []member
	for i, rank := range c.ranks {
		if b := all[i*size:]; int(binary.BigEndian.Uint64(b)) == color {
			list = append(list, member{rank, int(binary.BigEndian.Uint64(b[8:]))})
		}
	}
	slices.SortStableFunc(list, func(a, b member) int { return cmp.Compare(a.key, b.key) })
	ranks := make([]int32, len(list))
	for i, m := range list {
		ranks[i] = m.rank
	}
	n := c.job.newComm(c.p, ranks, cid)
	n.missed()
	return n, nil
}

func (c *Comm) runOperation(ctx context.Context, o channel.Operation) error {
	return c.run(ctx, collop.Of(&o))
}

// agree finds a context that no communicator of any member has: others may be made at
// the same time. The members propose, take the largest, and say whether they could
// have it.
func (c *Comm) agree(ctx context.Context, op string) (uint64, error) {
	for {
		cid := []uint64{c.p.nextCID}
		if err := c.runOperation(ctx, channel.Allreduce(channel.Max, cid, cid)); err != nil {
			return 0, err
		}
		if cid[0] > lastCID {
			return 0, jobError(op, fmt.Errorf("%w: more than %d communicators in the life of a job", ErrInvalid, (lastCID-firstCID)/2))
		}
		free := []uint32{0}
		if cid[0] >= c.p.nextCID {
			c.p.nextCID, free[0] = cid[0]+2, 1
		}
		if err := c.runOperation(ctx, channel.Allreduce(channel.Min, free, free)); err != nil {
			return 0, err
		}
		if free[0] == 1 {
			return cid[0], nil
		}
	}
}

// missed has receives from anybody be told of members that have been lost before the
// communicator was made.
func (c *Comm) missed() {
	for _, m := range []*matcher{c.match, c.coll} {
		for _, rank := range c.ranks {
			if l := c.e.links[c.e.hostOf[rank]]; l != nil && l.err != nil {
				m.lose(rank, l.err)
			}
		}
	}
}

// Free ends the communicator (MPI_Comm_free). All members call it, as a collective: it
// begins with a barrier, so that nobody is still using what it takes away. Receives
// that have met no message fail with [ErrClosed], as do later calls; messages that
// have met no receive are dropped, and sends of them that are not complete fail with
// [ErrClosed]. A communicator that has failed is freed without a
// barrier. Freeing again does nothing.
//
// Errors: [ErrInvalid] for that of all processes and that of [Comm.Ours]; those of
// [Comm.Run], and the communicator is freed all the same unless it is [ErrActive].
func (c *Comm) Free(ctx context.Context) error {
	const op = "free"
	c.e.lock.Lock()
	defer c.e.lock.Unlock()
	if c.freed {
		return nil
	}
	if c.cid < firstCID {
		return jobError(op, fmt.Errorf("%w: the communicator ends with the job", ErrInvalid))
	}
	if c.calls.inside {
		return c.enter(op)
	}
	var err error
	if c.calls.fault == nil {
		err = c.runOperation(ctx, channel.Barrier())
	}
	c.freed, c.calls.plans = true, nil
	if r := c.calls.notice; r != nil {
		c.abandon(r)
		c.calls.notice = nil
	}
	c.match.drop()
	c.coll.drop()
	return err
}

// dropMessage drops a message that nobody will receive.
func (m *matcher) dropMessage(msg *message) {
	if msg.fetch != nil { // when that is through: no request has generation 0
		msg.taker, msg.takerGen = msg.fetch, 0
		return
	}
	e := m.p.e
	switch s := msg.sender; {
	case msg.pair != nil:
		msg.pair.held -= msg.cost()
		msg.pair.refuse(msg.srqid, msg.sync || msg.length > uint64(len(msg.data)) && !msg.acked)
	case s == nil:
		m.p.waiting -= msg.cost()
	case s.state != done:
		e.finish(s, ErrClosed)
	}
	e.room.drop(msg)
}

// drop ends a matcher.
func (m *matcher) drop() {
	e := m.p.e
	for i := range m.from {
		for m.from[i].posted.head != nil {
			e.finish(m.from[i].posted.pop(), ErrClosed)
		}
	}
	for m.wild.head != nil {
		e.finish(m.wild.pop(), ErrClosed)
	}
	for m.all.head != nil {
		msg := m.all.head
		m.takeMessage(msg)
		m.dropMessage(msg)
	}
	for _, l := range e.links { // what has been refused
		if l != nil && l.err == nil && len(l.ready) > 0 && !l.fini {
			l.push()
		}
	}
	m.p.freed.Add(contextSpan(m.cid))
	delete(m.p.matchers, m.cid)
	if m.p.last == m {
		m.p.last = nil
	}
}
