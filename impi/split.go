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

// The context id of a communicator is even; that of its collectives is the next number. Foreign
// processes know the world alone. The ids below firstCID need no agreement; from firstCID on the
// members agree on them. No id is used twice in a job. They fit in 32 bits.
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

// Ours returns the communicator of the members that are processes of this package, in their order:
// c itself if no member is foreign. It sends nothing, so it works where foreign processes cannot
// take part. Later calls return the same communicator. It makes [Comm.Split] and all collectives
// available in a job with foreign processes.
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

// Job returns the job that the members belong to.
func (c *Comm) Job() *Job { return c.job }

// Ranks returns the members' ranks in the job, by their rank in the communicator.
func (c *Comm) Ranks() []int {
	list := make([]int, len(c.ranks))
	for i, rank := range c.ranks {
		list[i] = int(rank)
	}
	return list
}

// Dup makes a communicator with the same members and a context of its own (MPI_Comm_dup). It is a
// collective: all members call it. The new communicator belongs to the caller; see [Comm.Free].
//
// Errors: [ErrForeign] if a member is foreign, because LAM/MPI cannot take part; otherwise those of
// [Comm.Run].
func (c *Comm) Dup(ctx context.Context) (*Comm, error) { return c.divide(ctx, "dup", 0, c.me) }

// Split makes one communicator for each color, of the members that pass that color, ordered by key
// and, for equal keys, by rank in c (MPI_Comm_split). It is a collective: all members call it. A
// member that passes a negative color is in none and gets nil. The communicator belongs to the
// caller; see [Comm.Free]. Errors are those of Dup.
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

// agree finds a context id that no member uses; other communicators may be made at the same time.
// The members propose ids, take the largest, and vote on whether all of them can use it.
func (c *Comm) agree(ctx context.Context, op string) (uint64, error) {
	for {
		cid := []uint64{c.p.nextCID}
		if err := c.runOperation(ctx, channel.Allreduce(channel.Max, cid, cid)); err != nil {
			return 0, err
		}
		if cid[0] > lastCID {
			return 0, jobError(op, fmt.Errorf("%w: the job has used up its %d communicators", ErrInvalid, (lastCID-firstCID)/2))
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

// missed records members that were lost before the communicator was made, for receives from any
// source.
func (c *Comm) missed() {
	for _, m := range []*matcher{c.match, c.coll} {
		for _, rank := range c.ranks {
			if l := c.e.links[c.e.hostOf[rank]]; l != nil && l.err != nil {
				m.lose(rank, l.err)
			}
		}
	}
}

// Free ends the communicator (MPI_Comm_free). It is a collective: all members call it, and it
// begins with a barrier so that no member is still using the communicator. Receives that no message
// has matched, probes, and later calls, fail with [ErrClosed]. Messages that no receive has matched are
// dropped; sends of them that are not complete fail with [ErrPeerLeft], as do later ones by members
// that have not freed it yet. A communicator that has failed is freed without a barrier. Freeing
// again does nothing.
//
// Errors: [ErrInvalid] for the world and for the communicator of [Comm.Ours]; those of [Comm.Run].
// The communicator is freed in spite of an error of Run unless it is [ErrActive].
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
	c.e.ring() // probes
	return err
}

// dropMessage drops a message that no receive will match.
func (m *matcher) dropMessage(msg *message) {
	if msg.fetch != nil { // the fetch drops it at its end: no request has generation 0
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
	case s.state != done && e.closing:
		e.finish(s, ErrClosed)
	case s.state != done:
		e.finish(s, errFreed)
	}
	e.room.drop(msg)
}

// dropMessages drops all of them.
func (m *matcher) dropMessages() {
	for m.all.head != nil {
		msg := m.all.head
		m.takeMessage(msg)
		m.dropMessage(msg)
	}
}

// pushAll sends the refusals of dropped messages.
func (e *engine) pushAll() {
	for _, l := range e.links {
		if l != nil && l.err == nil && len(l.ready) > 0 && !l.fini {
			l.push()
		}
	}
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
	m.dropMessages()
	e.pushAll()
	m.p.freed.Add(contextSpan(m.cid))
	delete(m.p.matchers, m.cid)
	if m.p.last == m {
		m.p.last = nil
	}
}
