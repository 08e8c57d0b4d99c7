package impi

import (
	"context"
	"fmt"
)

// Comm is a communicator: an ordered set of processes of a job, with a context that keeps their
// messages apart from those of other communicators (MPI_Comm). A Comm belongs to one of its
// processes. Its methods may be called from several goroutines; messages sent by different
// goroutines are not ordered.
//
// Tags range from 0 to [Job.TagUB]. Until a request completes, the memory of a send must not be
// changed and that of a receive must not be touched: it is not copied while the request waits.
type Comm struct {
	e     *engine
	job   *Job
	p     *process
	me    int
	ranks []int32         // rank in the job, by rank here
	index map[int32]int32 // rank here, by rank in the job; nil if the two are the same
	cid   uint64
	match *matcher
	coll  *matcher // of collectives: context cid+1
	freed bool
	calls collectives
}

// Rank returns the rank of this process in the communicator.
func (c *Comm) Rank() int { return c.me }

// Size returns the number of processes in the communicator.
func (c *Comm) Size() int { return len(c.ranks) }

// rankOf returns the rank in the communicator of a process of the job; -1 if it is not a member.
func (c *Comm) rankOf(world int32) int {
	if world < 0 {
		return -1
	}
	if c.index == nil {
		return int(world)
	}
	if r, ok := c.index[world]; ok {
		return int(r)
	}
	return -1
}

// check validates the arguments of a call.
func (c *Comm) check(op string, rank, tag int, any bool) error {
	switch {
	case c.e.closing, c.freed:
		return &Error{Op: op, Rank: rank, Tag: tag, Err: ErrClosed}
	case rank >= len(c.ranks) || rank < 0 && !(any && rank == AnySource):
		return &Error{Op: op, Rank: rank, Tag: tag, Err: fmt.Errorf("%w: there is no rank %d in a communicator of %d", ErrInvalid, rank, len(c.ranks))}
	case tag > c.job.tagUB || tag < 0 && !(any && tag == AnyTag):
		return &Error{Op: op, Rank: rank, Tag: tag, Err: fmt.Errorf("%w: tag %d is not in 0 to %d", ErrInvalid, tag, c.job.tagUB)}
	}
	return nil
}

// Isend starts a send of buf (MPI_Isend). When it is complete, buf may be changed: for a message of
// at most [Config.PacketLen] bytes as soon as it has been sent, for a longer one only after a
// receive has matched it.
//
// Errors: [ErrInvalid] and [ErrClosed] at once; [ErrPeerDied], [ErrPeerLeft] or [ErrProtocol] from
// Wait or Test.
func (c *Comm) Isend(buf []byte, dest, tag int) (Request, error) {
	return c.start(c.match, buf, nil, dest, tag, false)
}

// Issend is Isend, except that it completes only after a receive has matched the message
// (MPI_Issend).
func (c *Comm) Issend(buf []byte, dest, tag int) (Request, error) {
	return c.start(c.match, buf, nil, dest, tag, true)
}

// IsendVec is Isend for a message that lies in several pieces, such as a [net.Buffers]. It does not
// change bufs and does not gather the pieces into one buffer.
func (c *Comm) IsendVec(bufs [][]byte, dest, tag int) (Request, error) {
	return c.start(c.match, nil, vecOf(bufs), dest, tag, false)
}

// IssendVec is Issend for a message that lies in several pieces.
func (c *Comm) IssendVec(bufs [][]byte, dest, tag int) (Request, error) {
	return c.start(c.match, nil, vecOf(bufs), dest, tag, true)
}

// vecOf makes an empty vector distinguishable from no vector.
func vecOf(bufs [][]byte) [][]byte {
	if bufs == nil {
		return [][]byte{}
	}
	return bufs
}

func (c *Comm) start(m *matcher, buf []byte, vec [][]byte, dest, tag int, sync bool) (Request, error) {
	c.e.lock.Lock()
	r, err := c.startSend(m, buf, vec, dest, tag, sync)
	q := Request{r, 0}
	if err == nil {
		q.gen = r.gen
	}
	c.e.lock.Unlock()
	return q, err
}

// startSend starts a send. The caller holds the lock.
func (c *Comm) startSend(m *matcher, buf []byte, vec [][]byte, dest, tag int, sync bool) (*request, error) {
	if err := c.check("send", dest, tag, false); err != nil {
		return nil, err
	}
	if err := c.e.usable(buf, vec); err != nil {
		return nil, &Error{Op: "send", Rank: dest, Tag: tag, Err: err}
	}
	r := c.e.newRequest()
	r.kind, r.sync, r.comm, r.match, r.peer, r.tag = sending, sync, c, m, c.ranks[dest], int32(tag)
	r.pair = c.p.pair(r.peer)
	if vec == nil && !sync && r.goesNow(buf) {
		return r, nil
	}
	r.setMemory(buf, vec)
	r.length, r.state = r.total, queued
	if r.pair != nil {
		r.pair.send(r)
	} else {
		c.e.sendHere(r)
	}
	return r, nil
}

// goesNow is the fast path of a send for message rate: it sends a message that fits a lane if
// nothing is queued ahead of it. If the path does not apply, it returns false and has done nothing.
func (r *request) goesNow(buf []byte) bool {
	p := r.pair
	if p == nil || len(buf) > int(p.link.packetLen) || !p.open() {
		return false
	}
	c, ok := p.link.carrier.(*rcCarrier)
	if !ok {
		return false
	}
	b, at := c.lane(len(buf))
	if b == nil {
		return false
	}
	copy(at, buf)
	p.inFlight++
	c.sendLine(b, p, r.tag, r.match.cid, r.id(), len(buf))
	r.length, r.moved, r.state = uint64(len(buf)), uint64(len(buf)), done
	return true
}

// sendHere starts a send within the host.
func (e *engine) sendHere(r *request) {
	r.state = moving
	p := e.processOf(r.peer)
	m, err := p.matcher(r.match.cid, r.comm.p.rank)
	if err != nil {
		e.finish(r, err)
		return
	}
	if m == nil {
		e.finish(r, errFreed)
		return
	}
	me := r.comm.p.rank
	if q := m.take(me, r.tag); q != nil {
		q.accept(nil, me, r.tag, r.length)
		e.hand(r, q)
		return
	}
	msg := e.room.message()
	msg.src, msg.tag, msg.length, msg.srqid, msg.sync = me, r.tag, r.length, r.id(), r.sync
	msg.sender = r
	if !r.sync && r.length <= uint64(e.eager) && p.waiting+int(r.length)+messageCost <= e.unexpected {
		msg.sender = nil
		msg.data = e.room.get(int(r.length))
		r.copyOut(msg.data)
		p.waiting += msg.cost()
		e.finish(r, nil)
	}
	m.pushMessage(msg)
	e.ring()
}

// processOf returns a process of this host.
func (e *engine) processOf(rank int32) *process {
	for _, p := range e.processes {
		if p.rank == rank {
			return p
		}
	}
	return nil
}

// NotifyLeft makes a receive or probe from [AnySource] fail with [ErrPeerLeft] once for each member
// that closes its job, as it does for each member that dies. It is for programs that hand
// out work and must give the work of a departed member to others. Once every departure has been
// reported and no other member is left, later receives wait. The setting affects this process only,
// and includes members that left before the call.
func (c *Comm) NotifyLeft() {
	c.e.lock.Lock()
	defer c.e.lock.Unlock()
	m := c.match
	if m.parts {
		return
	}
	m.parts = true
	for _, rank := range m.gone {
		if c.e.links[c.e.hostOf[rank]].err == ErrPeerLeft {
			m.untold = append(m.untold, rank)
		}
	}
	m.tell()
}

// Irecv starts a receive of a message from source, which may be [AnySource], with the given tag,
// which may be [AnyTag] (MPI_Irecv). A message may be shorter than buf. If it is longer, its
// beginning is received and the receive ends with [ErrTruncated].
//
// A receive from [AnySource] fails once for each member that dies, with that member's rank; the
// next receive waits for the others. A member that leaves through [Job.Close] fails no receive
// while another member that may send is left (but see [Comm.NotifyLeft]). When all other members
// are gone, receives from AnySource fail with [ErrPeerLeft], or with the reason for which the last
// of them was lost. Messages that a process sent completely before it was lost are received first.
func (c *Comm) Irecv(buf []byte, source, tag int) (Request, error) {
	return c.receive(c.match, buf, nil, source, tag)
}

// IrecvVec is Irecv into several pieces of memory, filled in order.
func (c *Comm) IrecvVec(bufs [][]byte, source, tag int) (Request, error) {
	return c.receive(c.match, nil, vecOf(bufs), source, tag)
}

func (c *Comm) receive(m *matcher, buf []byte, vec [][]byte, source, tag int) (Request, error) {
	c.e.lock.Lock()
	r, err := c.startReceive(m, buf, vec, source, tag)
	q := Request{r, 0}
	if err == nil {
		q.gen = r.gen
	}
	c.e.lock.Unlock()
	return q, err
}

// startReceive starts a receive. The caller holds the lock.
func (c *Comm) startReceive(m *matcher, buf []byte, vec [][]byte, source, tag int) (*request, error) {
	e := c.e
	if err := c.check("receive", source, tag, true); err != nil {
		return nil, err
	}
	if err := e.usable(buf, vec); err != nil {
		return nil, &Error{Op: "receive", Rank: source, Tag: tag, Err: err}
	}
	r := e.newRequest()
	r.kind, r.comm, r.match, r.peer, r.tag = receiving, c, m, -1, int32(tag)
	if source >= 0 {
		r.peer = c.ranks[source]
	}
	r.setMemory(buf, vec)
	r.state = queued
	if msg := m.find(r.peer, r.tag); msg != nil {
		m.takeMessage(msg)
		p := msg.pair
		e.receive(r, msg)
		if p != nil && p.queued {
			p.link.push()
		}
		return r, nil
	}
	if r.peer >= 0 {
		if l := e.links[e.hostOf[r.peer]]; l != nil && l.err != nil {
			e.finish(r, l.err)
			return r, nil
		}
	}
	m.post(r)
	if r.peer < 0 {
		m.tell()
	}
	return r, nil
}

// Send is Isend and Wait (MPI_Send). If ctx ends first, the send is cancelled, and buf must be left
// alone until the job is closed.
func (c *Comm) Send(ctx context.Context, buf []byte, dest, tag int) error {
	return c.send(ctx, buf, dest, tag, false)
}

// Ssend is Issend and Wait (MPI_Ssend); otherwise it is like Send.
func (c *Comm) Ssend(ctx context.Context, buf []byte, dest, tag int) error {
	return c.send(ctx, buf, dest, tag, true)
}

func (c *Comm) send(ctx context.Context, buf []byte, dest, tag int, sync bool) (err error) {
	c.e.lock.Lock()
	sent := false
	if !sync {
		sent, err = c.sendNow(buf, dest, tag)
	}
	if !sent {
		var r *request
		if r, err = c.startSend(c.match, buf, nil, dest, tag, sync); err == nil {
			_, err = r.finishWithin(ctx)
		}
	}
	c.e.lock.Unlock()
	return err
}

// sendNow is the fast path of Send for latency: it sends a short message, without a request, if
// nothing is queued ahead of it. If the path does not apply, it returns false and has done nothing.
func (c *Comm) sendNow(buf []byte, dest, tag int) (sent bool, err error) {
	if len(buf) > laneMost || c.e.usable(buf, nil) != nil || c.check("send", dest, tag, false) != nil {
		return false, nil
	}
	p := c.p.pair(c.ranks[dest])
	if p == nil || !p.open() {
		return false, nil
	}
	rc, ok := p.link.carrier.(*rcCarrier)
	if !ok || len(buf) > int(p.link.packetLen) {
		return false, nil
	}
	p.inFlight++
	rc.message(p, c.match.cid, int32(tag), buf)
	if err := p.link.err; err != nil {
		return true, &Error{Op: "send", Rank: dest, Tag: tag, Err: err}
	}
	return true, nil
}

// Recv is Irecv and Wait (MPI_Recv). If ctx ends before the message has begun to arrive, the
// receive is cancelled. If the message has begun to arrive, buf must be left alone until the job is
// closed.
func (c *Comm) Recv(ctx context.Context, buf []byte, source, tag int) (st Status, err error) {
	c.e.lock.Lock()
	st, got := c.recvNow(buf, source, tag, false)
	if !got {
		var r *request
		if r, err = c.startReceive(c.match, buf, nil, source, tag); err == nil {
			st, err = r.finishWithin(ctx)
		}
	}
	c.e.lock.Unlock()
	return st, err
}

// RecvNow receives a short message, of one packet and no longer than buf, that has arrived or
// arrives within the microseconds for which Recv polls before it yields the CPU. It returns false,
// having done nothing, if there is no such message yet, if the message does not qualify, or on an
// error; call Recv or Irecv to find out which. It does not wait for receives of other goroutines.
func (c *Comm) RecvNow(buf []byte, source, tag int) (Status, bool) {
	c.e.lock.Lock()
	st, ok := c.recvNow(buf, source, tag, true)
	c.e.lock.Unlock()
	if !ok {
		c.e.policy.Tested()
	}
	return st, ok
}

// finishWithin waits for a request that no other goroutine can see. If ctx ends, it cancels the
// request as far as possible.
func (r *request) finishWithin(ctx context.Context) (Status, error) {
	if !r.over() {
		if err := await(ctx, r.e, r); err != nil {
			err = r.fault(err)
			r.e.cancel(r)
			if r.over() {
				r.e.release(r)
			} else {
				r.detached = true
			}
			return Status{}, err
		}
	}
	return r.collect()
}

// Iprobe reports whether a message is there that a receive would match, and describes it
// (MPI_Iprobe).
func (c *Comm) Iprobe(source, tag int) (bool, Status, error) {
	ok, st, err := c.iprobe(source, tag)
	if !ok && err == nil {
		c.e.policy.Tested()
	}
	return ok, st, err
}

func (c *Comm) iprobe(source, tag int) (bool, Status, error) {
	c.e.lock.Lock()
	defer c.e.lock.Unlock()
	if err := c.check("probe", source, tag, true); err != nil {
		return false, Status{}, err
	}
	p := probe{c: c, src: -1, tag: int32(tag)}
	if source >= 0 {
		p.src = c.ranks[source]
	}
	if !p.over() {
		c.e.polls++
		c.e.progress()
	}
	if !p.over() {
		return false, Status{}, nil
	}
	st, err := p.result()
	return true, st, err
}

// Probe waits until a message is there that a receive would match, and describes it (MPI_Probe).
// Its errors are those of a receive and that of ctx.
func (c *Comm) Probe(ctx context.Context, source, tag int) (Status, error) {
	c.e.lock.Lock()
	defer c.e.lock.Unlock()
	if err := c.check("probe", source, tag, true); err != nil {
		return Status{}, err
	}
	p := probe{c: c, src: -1, tag: int32(tag)}
	if source >= 0 {
		p.src = c.ranks[source]
	}
	if err := await(ctx, c.e, p); err != nil {
		return Status{}, &Error{Op: "probe", Rank: source, Tag: tag, Err: err}
	}
	return p.result()
}

// probe is over when a message is there or can no longer arrive.
type probe struct {
	others
	c        *Comm
	src, tag int32
}

func (p probe) over() bool {
	m := p.c.match
	return m.find(p.src, p.tag) != nil || p.lost() != nil
}

// lost returns the reason why no message can arrive.
func (p probe) lost() error {
	e := p.c.e
	src := p.src
	if e.closing || p.c.freed {
		return &Error{Op: "probe", Rank: p.c.rankOf(src), Tag: int(p.tag), Err: ErrClosed}
	}
	if src < 0 {
		rank, ok := p.c.match.mute()
		if !ok {
			return nil
		}
		src = rank
	}
	if l := e.links[e.hostOf[src]]; l != nil && l.err != nil {
		return &Error{Op: "probe", Rank: p.c.rankOf(src), Tag: int(p.tag), Err: l.err}
	}
	return nil
}

func (p probe) result() (Status, error) {
	c := p.c
	if m := c.match.find(p.src, p.tag); m != nil {
		return Status{Source: c.rankOf(m.src), Tag: int(m.tag), Len: int(m.length)}, nil
	}
	err := p.lost()
	if p.src < 0 {
		c.match.told()
	}
	return Status{}, err
}
