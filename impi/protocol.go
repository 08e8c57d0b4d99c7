package impi

import (
	"fmt"
	"math"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/internal/layout"
)

// sink is the destination of the body of the packet that is arriving.
type sink struct {
	h     arrival
	pair  *pair
	match *matcher
	req   *request // the receive that it has matched or belongs to
	data  []byte   // its memory if there is no receive
	at    int      // bytes of data that have arrived
	left  uint64   // bytes still to arrive
	first bool     // of its message
}

// arrival is the contents of a packet's header in terms of this job.
type arrival struct {
	t            packet.Type
	src          int32 // rank in the job
	dest         *process
	tag          int32
	cid          uint64
	length       uint64 // of the message
	srqid, drqid uint64
	body         uint32
	staged       bool // the message is longer than a packet
	known        bool // the sender uses Alloc memory
	eager        bool // the sender relies on the message being accepted without a receive
}

// header handles the header of a packet. Its body, of in.left bytes, goes where in.window says;
// then end is called.
func (l *link) header(h *arrival) error {
	in := &l.in
	*in = sink{h: *h, pair: h.dest.pair(h.src)}
	switch h.t {
	case packet.Data, packet.DataSync:
		most := l.packetLen
		if h.drqid != 0 {
			most = l.rest
		}
		if h.body > most && !h.staged {
			return fmt.Errorf("%w: packet of %d bytes, the agreed length is %d", ErrProtocol, h.body, most)
		}
		in.left = uint64(h.body)
		if h.drqid != 0 {
			return in.more(l)
		}
		return in.begin(l)
	}
	return nil
}

// more finds the receive that a packet after the first belongs to.
func (in *sink) more(l *link) error {
	r := l.e.lookup(in.h.drqid)
	if r == nil || r.kind != receiving || r.state != moving || r.pair != in.pair {
		return fmt.Errorf("%w: data for request %#x, which expects none", ErrProtocol, in.h.drqid)
	}
	if in.left > r.length-r.moved {
		return fmt.Errorf("%w: %d more bytes of a message that lacks only %d", ErrProtocol, in.left, r.length-r.moved)
	}
	in.req = r
	return nil
}

// begin finds the receive that a message matches.
func (in *sink) begin(l *link) error {
	h := &in.h
	if h.length < in.left || h.length > in.left && (h.t != packet.DataSync || in.left == 0) {
		return fmt.Errorf("%w: %v with %d bytes of a message of %d bytes", ErrProtocol, h.t, in.left, h.length)
	}
	if h.eager && (h.length > uint64(l.eager) || h.length == in.left) {
		return fmt.Errorf("%w: a message of %d bytes, of which %d have come, cannot be accepted without a receive: the limit is %d", ErrProtocol, h.length, in.left, l.eager)
	}
	if h.tag < 0 || h.length > math.MaxInt64 {
		return fmt.Errorf("%w: message of %d bytes, tag %d", ErrProtocol, h.length, h.tag)
	}
	m, err := h.dest.matcher(h.cid, h.src)
	if err != nil {
		return err
	}
	if m == nil { // it is refused once it has arrived
		in.data = l.e.room.get(int(in.left))
		return nil
	}
	if m.comm != nil && m.comm.rankOf(h.src) < 0 {
		return fmt.Errorf("%w: rank %d sent a message in context %d but is not a member of that communicator", ErrProtocol, h.src, h.cid)
	}
	in.match, in.first = m, true
	if r := m.take(h.src, h.tag); r != nil {
		r.accept(in.pair, h.src, h.tag, h.length)
		r.known = h.known
		in.req = r
		return nil
	}
	if l.e.closing { // it is refused, too
		in.match = nil
		in.data = l.e.room.get(int(in.left))
		return nil
	}
	if in.pair.held+int(in.left)+messageCost > l.e.unexpected {
		return fmt.Errorf("%w: %d bytes from rank %d wait for a receive, and %d more have come", ErrOverflow, in.pair.held, h.src, in.left)
	}
	in.data = l.e.room.get(int(in.left))
	return nil
}

// accept matches a receive with a message.
func (r *request) accept(p *pair, src, tag int32, length uint64) {
	r.state, r.pair, r.peer, r.length = moving, p, src, length
	r.status = Status{Source: r.comm.rankOf(src), Tag: int(tag), Len: int(length)}
}

// window returns where the next bytes of the body go; nothing if they are dropped.
func (in *sink) window() []byte {
	if in.req != nil {
		return in.req.window(in.left)
	}
	return in.data[in.at:]
}

// advance records that n bytes have been stored in the window, or dropped.
func (in *sink) advance(n int) {
	in.left -= uint64(n)
	if in.req != nil {
		in.req.advance(n)
	} else {
		in.at += n
	}
}

// fill copies the part of the body that is in src and returns its length.
func (in *sink) fill(src []byte) int {
	n := int(min(uint64(len(src)), in.left))
	src = src[:n]
	if in.req != nil {
		in.req.copyIn(src)
	} else {
		layout.Copy(in.data[in.at:], src)
		in.at += n
	}
	in.left -= uint64(n)
	return n
}

// end handles a packet whose body is complete.
func (l *link) end() error {
	in := &l.in
	h, p := &in.h, in.pair
	if h.t == packet.ProtoAck {
		return p.acknowledged()
	}
	if err := p.received(); err != nil {
		return err
	}
	if n := len(p.answers) - p.at; p.held+n*answerCost > l.e.unexpected {
		return fmt.Errorf("%w: %d answers to rank %d are queued because it acknowledges none", ErrOverflow, n, p.remote)
	}
	switch h.t {
	case packet.Data, packet.DataSync:
		return l.arrived()
	case packet.SyncAck:
		return l.synced(h)
	case packet.Cancel:
		p.cancelled(h)
	case packet.CancelYes, packet.CancelNo:
		return l.answered(h)
	}
	return nil
}

// answerCost is what a queued answer counts towards the bound on waiting bytes. A peer that asks
// for answers and acknowledges none is thus stopped like one whose messages are not received.
const answerCost = 64

// arrived handles DATA and DATASYNC whose body is complete.
func (l *link) arrived() error {
	in := &l.in
	h := &in.h
	r := in.req
	if r == nil && in.match == nil {
		l.e.room.put(in.data)
		in.data = nil
		in.pair.refuse(h.srqid, h.t == packet.DataSync || h.length > uint64(h.body))
		return nil
	}
	if r == nil {
		// A receive may have been posted in the meantime.
		m := l.e.room.message()
		m.src, m.tag, m.length, m.srqid, m.sync = h.src, h.tag, h.length, h.srqid, h.t == packet.DataSync
		m.pair, m.data, m.known = in.pair, in.data, h.known
		in.pair.held += m.cost()
		in.data = nil
		if r = in.match.take(h.src, h.tag); r == nil {
			in.match.pushMessage(m)
			if h.eager {
				l.e.owe(m)
			}
			l.e.ring() // a probe may wait for it
			return nil
		}
		l.e.receive(r, m)
		return nil
	}
	in.req = nil
	if in.first && h.t == packet.DataSync {
		in.pair.syncAck(h.srqid, r)
	}
	if r.moved >= r.length {
		l.e.complete(r)
	}
	return nil
}

// complete ends a receive whose message has arrived entirely.
func (e *engine) complete(r *request) {
	if r.transfer != nil {
		r.transfer.free()
		r.transfer = nil
	}
	var err error
	if r.length > r.total {
		err = fmt.Errorf("%w: the message has %d bytes, the receive takes %d bytes", ErrTruncated, r.length, r.total)
	}
	e.finish(r, err)
}

// receive gives a receive a message that was waiting.
func (e *engine) receive(r *request, m *message) {
	r.accept(m.pair, m.src, m.tag, m.length)
	r.known, m.owed = m.known, false
	if m.fetch != nil {
		m.taker, m.takerGen = r, r.gen
		return
	}
	if s := m.sender; s != nil {
		e.room.drop(m)
		e.hand(s, r)
		return
	}
	r.copyIn(m.data)
	p := m.pair
	if p == nil {
		r.comm.p.waiting -= m.cost()
	} else {
		p.held -= m.cost()
		if p.link.err != nil && m.length > uint64(len(m.data)) {
			e.room.drop(m)
			e.finish(r, p.link.err)
			return
		}
		if m.sync {
			p.syncAck(m.srqid, r)
		}
	}
	e.room.drop(m)
	if r.moved >= r.length {
		e.complete(r)
	}
}

// handMost is how many bytes are copied at once within the host.
const handMost = 1 << 20

// hand copies a message within the host, from the memory of a send to that of a
// receive.
func (e *engine) hand(s, r *request) {
	for s.moved < s.length {
		b := s.window(min(s.length-s.moved, handMost)) // a copy cannot be interrupted
		r.copyIn(b)
		s.advance(len(b))
	}
	if s.state != done {
		e.finish(s, nil)
	}
	e.complete(r)
}

// sent returns the send that a packet from its receiver is about.
func (l *link) sent(h *arrival) (*request, error) {
	r := l.e.lookup(h.srqid)
	if r == nil || r.kind != sending || r.pair != l.in.pair || r.state == queued {
		return nil, fmt.Errorf("%w: %v for unknown request %#x", ErrProtocol, h.t, h.srqid)
	}
	return r, nil
}

// synced handles SYNCACK: the message has been matched.
func (l *link) synced(h *arrival) error {
	r, err := l.sent(h)
	if err != nil {
		return err
	}
	if r.acked || l.mild(r) || r.state != moving {
		return fmt.Errorf("%w: SYNCACK for request %#x, which needs none", ErrProtocol, h.srqid)
	}
	r.acked, r.theirs = true, h.drqid
	switch {
	case r.moved >= r.length:
		l.settle(r)
	case r.list == nil:
		if h.drqid == 0 {
			return fmt.Errorf("%w: SYNCACK for a long message without a receive request", ErrProtocol)
		}
		r.pair.rest.push(r)
		r.pair.wake()
	}
	return nil
}

// cancelled answers CANCEL. Of several messages with one id, the last counts.
func (p *pair) cancelled(h *arrival) {
	e := p.link.e
	for _, c := range p.local.matchers {
		for m := c.from[h.src].arrived.tail; m != nil; m = m.prevFrom {
			if m.srqid == h.srqid && m.pair == p && !m.acked {
				c.takeMessage(m)
				p.held -= m.cost()
				e.room.drop(m)
				p.answer(packet.CancelYes, h.srqid, nil)
				return
			}
		}
	}
	p.answer(packet.CancelNo, h.srqid, nil)
}

// refusal is a CANCELYES without a CANCEL: the receiver drops the message. It is sent only between
// processes of this package, with the reason as the receiver's request.
const (
	refusal = packet.Type(0xff)

	refusedFreed  = 1 // the receiver has freed the communicator
	refusedLeaves = 2 // the receiver closes the job
)

// refusalID is the reason for which this host refuses messages.
func (e *engine) refusalID() uint64 {
	if e.closing {
		return refusedLeaves
	}
	return refusedFreed
}

// errFreed is the error of a send that was refused because its communicator is freed.
var errFreed = fmt.Errorf("%w: the receiver has freed the communicator", ErrPeerLeft)

// refuse tells the sender of a message that it has been dropped, if the sender waits for anything.
func (p *pair) refuse(srqid uint64, waits bool) {
	if waits && !p.link.foreign {
		p.answer(refusal, srqid, nil)
	}
}

// refused handles a refusal. If an answer to CANCEL is awaited, the send ends with that.
func (l *link) refused(r *request, id uint64) error {
	if r.acked || r.refused != nil || l.mild(r) || r.state != moving {
		return fmt.Errorf("%w: request %#x was refused although it cannot be", ErrProtocol, r.id())
	}
	r.refused = errFreed
	if id == refusedLeaves {
		r.refused = ErrPeerLeft
	}
	if !r.cancelling {
		l.e.finish(r, l.refusal(r))
	}
	return nil
}

// refusal is the outcome of a send whose message has been dropped. A send that completes without a
// receive ends as if its message had never been received.
func (l *link) refusal(r *request) error {
	if l.promised(r) {
		return nil
	}
	return r.refused
}

// answered handles the answer to CANCEL.
func (l *link) answered(h *arrival) error {
	r, err := l.sent(h)
	if err != nil {
		return err
	}
	if h.t == packet.CancelYes && (h.drqid == refusedFreed || h.drqid == refusedLeaves) && !l.foreign {
		return l.refused(r, h.drqid)
	}
	if !r.asked {
		return fmt.Errorf("%w: %v for request %#x, for which no CANCEL was sent", ErrProtocol, h.t, h.srqid)
	}
	if h.t == packet.CancelYes && r.acked {
		return fmt.Errorf("%w: CANCELYES for request %#x, which was already matched", ErrProtocol, h.srqid)
	}
	r.cancelling, r.asked = false, false
	if h.t == packet.CancelYes {
		r.status.Cancelled = true
		l.e.finish(r, nil)
		return nil
	}
	if r.refused != nil {
		l.e.finish(r, l.refusal(r))
		return nil
	}
	l.settle(r)
	return nil
}

// cancel cancels a request that has not been matched.
func (e *engine) cancel(r *request) {
	switch {
	case r.status.Cancelled, r.cancelling, r.err != nil, r.kind == probing, r.state == idle:
	case r.kind == receiving:
		if r.state == queued {
			r.list.remove(r)
			r.status.Cancelled = true
			e.finish(r, nil)
		}
	case r.state == queued && r.pair != nil: // its first packet has not been sent
		r.list.remove(r)
		r.status.Cancelled = true
		e.finish(r, nil)
	case r.pair == nil:
		e.recall(r)
	case r.pair.link.err == nil && !r.acked:
		r.state = moving // even if it was complete
		r.cancelling = true
		r.pair.answer(packet.Cancel, r.id(), nil)
		r.pair.link.push()
	}
}

// recall cancels a message within the host that no receive has matched.
func (e *engine) recall(r *request) {
	p := e.processOf(r.peer)
	if p == nil {
		return
	}
	for _, c := range p.matchers {
		if c.cid != r.match.cid {
			continue
		}
		for m := c.from[r.comm.p.rank].arrived.tail; m != nil; m = m.prevFrom {
			if m.pair == nil && m.srqid == r.id() {
				c.takeMessage(m)
				if m.sender == nil {
					p.waiting -= m.cost()
				}
				e.room.drop(m)
				r.status.Cancelled = true
				e.finish(r, nil)
				return
			}
		}
	}
}
