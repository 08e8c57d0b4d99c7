package impi

import (
	"fmt"
	"math"

	"github.com/sluice-hpc/sluice/impi/packet"
)

// sink is where the body of the packet that is coming goes.
type sink struct {
	h     arrival
	pair  *pair
	match *matcher
	req   *request // it has met this receive, or belongs to it
	data  []byte   // else
	at    int      // bytes of data that are there
	left  uint64   // bytes that are to come
	first bool     // of its message
}

// arrival is what a packet says, in terms of this job.
type arrival struct {
	t            packet.Type
	src          int32 // rank in the job
	dest         *process
	tag          int32
	cid          uint64
	length       uint64 // of the message
	srqid, drqid uint64
	body         uint32
	staged       bool // it is longer than a packet
	known        bool // the sender's memory is of Alloc
	eager        bool // the sender counts on its being taken
}

// header takes the header of a packet; its body, of in.left bytes, goes where
// in.window says, and then end is called.
func (l *link) header(h *arrival) error {
	in := &l.in
	*in = sink{h: *h, pair: h.dest.pair(h.src)}
	switch h.t {
	case packet.Data, packet.DataSync:
		if h.body > l.packetLen && !h.staged {
			return fmt.Errorf("%w: %d bytes in a packet, agreed were %d", ErrProtocol, h.body, l.packetLen)
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
		return fmt.Errorf("%w: data for request %#x, which waits for none", ErrProtocol, in.h.drqid)
	}
	if in.left > r.length-r.moved {
		return fmt.Errorf("%w: %d bytes more of a message of which %d are missing", ErrProtocol, in.left, r.length-r.moved)
	}
	in.req = r
	return nil
}

// begin finds the receive that a message meets.
func (in *sink) begin(l *link) error {
	h := &in.h
	if h.length < in.left || h.length > in.left && (h.t != packet.DataSync || in.left == 0) {
		return fmt.Errorf("%w: %v with %d bytes of a message of %d", ErrProtocol, h.t, in.left, h.length)
	}
	if h.eager && (h.length > uint64(l.eager) || h.length == in.left) {
		return fmt.Errorf("%w: a message of %d bytes, of which %d have come, is none that is to be taken, of at most %d", ErrProtocol, h.length, in.left, l.eager)
	}
	if h.tag < 0 || h.length > math.MaxInt64 {
		return fmt.Errorf("%w: message of %d bytes, tag %d", ErrProtocol, h.length, h.tag)
	}
	m, err := h.dest.matcher(h.cid, h.src)
	if err != nil {
		return err
	}
	if m == nil { // it is refused when it is there
		in.data = l.e.room.get(int(in.left))
		return nil
	}
	if m.comm != nil && m.comm.rankOf(h.src) < 0 {
		return fmt.Errorf("%w: message from rank %d in context %d, of which it is no member", ErrProtocol, h.src, h.cid)
	}
	in.match, in.first = m, true
	if r := m.take(h.src, h.tag); r != nil {
		r.accept(in.pair, h.src, h.tag, h.length)
		r.known = h.known
		in.req = r
		return nil
	}
	if in.pair.held+int(in.left)+messageCost > l.e.unexpected {
		return fmt.Errorf("%w: %d from rank %d, and %d more", ErrOverflow, in.pair.held, h.src, in.left)
	}
	in.data = l.e.room.get(int(in.left))
	return nil
}

// accept makes a receive that of a message.
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

// advance takes note that n bytes have come to where window says, or were dropped.
func (in *sink) advance(n int) {
	in.left -= uint64(n)
	if in.req != nil {
		in.req.advance(n)
	} else {
		in.at += n
	}
}

// fill copies what there is of the body in src, and returns how much that was.
func (in *sink) fill(src []byte) int {
	n := int(min(uint64(len(src)), in.left))
	src = src[:n]
	if in.req != nil {
		in.req.copyIn(src)
	} else {
		copy(in.data[in.at:], src)
		in.at += n
	}
	in.left -= uint64(n)
	return n
}

// end does what a packet is for, whose body is there.
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
		return fmt.Errorf("%w: %d answers to rank %d, which takes none", ErrOverflow, n, p.remote)
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

// answerCost is what an answer that cannot be sent yet counts for among the bytes that
// wait: whoever asks for answers and acknowledges none gets no further than who sends
// what nobody receives.
const answerCost = 64

// arrived: the body of a packet is there.
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
		// A receive may have been posted meanwhile.
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

// complete ends a receive, all of whose message has come.
func (e *engine) complete(r *request) {
	if r.transfer != nil {
		r.transfer.free()
		r.transfer = nil
	}
	var err error
	if r.length > r.total {
		err = fmt.Errorf("%w: %d bytes, room for %d", ErrTruncated, r.length, r.total)
	}
	e.finish(r, err)
}

// receive has a receive take a message that was waiting.
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

// sent returns the send that a packet of its receiver is about.
func (l *link) sent(h *arrival) (*request, error) {
	r := l.e.lookup(h.srqid)
	if r == nil || r.kind != sending || r.pair != l.in.pair || r.state == queued {
		return nil, fmt.Errorf("%w: %v for request %#x, which is none", ErrProtocol, h.t, h.srqid)
	}
	return r, nil
}

// synced: a message has been matched.
func (l *link) synced(h *arrival) error {
	r, err := l.sent(h)
	if err != nil {
		return err
	}
	if r.acked || l.mild(r) || r.state != moving {
		return fmt.Errorf("%w: SYNCACK for request %#x, which is not to be acknowledged", ErrProtocol, h.srqid)
	}
	r.acked, r.theirs = true, h.drqid
	switch {
	case r.moved >= r.length:
		l.settle(r)
	case r.list == nil:
		if h.drqid == 0 {
			return fmt.Errorf("%w: SYNCACK without a request for a long message", ErrProtocol)
		}
		r.pair.rest.push(r)
		r.pair.wake()
	}
	return nil
}

// cancelled answers a request to take a message back: of several with one id, the last
// counts.
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

// refusal is CANCELYES that nobody has asked for: the receiver has freed the
// communicator, and drops the message. It is sent between processes of this package
// alone, where it has refusalID as the receiver's request.
const (
	refusal   = packet.Type(0xff)
	refusalID = 1
)

// errFreed: see refusal.
var errFreed = fmt.Errorf("%w: the receiver has freed the communicator", ErrClosed)

// refuse tells the sender of a message that it has been dropped, if the sender waits for
// something.
func (p *pair) refuse(srqid uint64, waits bool) {
	if waits && !p.link.foreign {
		p.answer(refusal, srqid, nil)
	}
}

// refused: the receiver has dropped a message. If an answer to CANCEL is awaited the send
// ends with that.
func (l *link) refused(r *request) error {
	if r.acked || r.refused || l.mild(r) || r.state != moving {
		return fmt.Errorf("%w: refusal of request %#x, which cannot be refused", ErrProtocol, r.id())
	}
	r.refused = true
	if !r.cancelling {
		l.e.finish(r, l.refusal(r))
	}
	return nil
}

// refusal is how a send ends whose message has been dropped: one that is complete without a
// receive, as if its message had never been received.
func (l *link) refusal(r *request) error {
	if l.promised(r) {
		return nil
	}
	return errFreed
}

// answered: the answer to CANCEL.
func (l *link) answered(h *arrival) error {
	r, err := l.sent(h)
	if err != nil {
		return err
	}
	if h.t == packet.CancelYes && h.drqid == refusalID && !l.foreign {
		return l.refused(r)
	}
	if !r.asked {
		return fmt.Errorf("%w: %v for request %#x, which was not asked for", ErrProtocol, h.t, h.srqid)
	}
	if h.t == packet.CancelYes && r.acked {
		return fmt.Errorf("%w: CANCELYES for request %#x, which has been matched", ErrProtocol, h.srqid)
	}
	r.cancelling, r.asked = false, false
	if h.t == packet.CancelYes {
		r.status.Cancelled = true
		l.e.finish(r, nil)
		return nil
	}
	if r.refused {
		l.e.finish(r, l.refusal(r))
		return nil
	}
	l.settle(r)
	return nil
}

// cancel takes a request back, if it has met nothing.
func (e *engine) cancel(r *request) {
	switch {
	case r.status.Cancelled, r.cancelling, r.err != nil, r.kind == probing, r.state == idle:
	case r.kind == receiving:
		if r.state == queued {
			r.list.remove(r)
			r.status.Cancelled = true
			e.finish(r, nil)
		}
	case r.state == queued && r.pair != nil: // its first packet has not gone
		r.list.remove(r)
		r.status.Cancelled = true
		e.finish(r, nil)
	case r.pair == nil:
		e.recall(r)
	case r.pair.link.err == nil && !r.acked:
		r.state = moving // also one that was complete
		r.cancelling = true
		r.pair.answer(packet.Cancel, r.id(), nil)
		r.pair.link.push()
	}
}

// recall takes back a message within the host that has met no receive.
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
