package channel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

// A stream of the program over mapped memory gives its ring and its pipe back when no handle uses it at
// either end and all messages have been taken. Of the stream there remains how many messages it has had.
//
//	sender                                              receiver
//	its last handle is closed, and all is taken:
//	the ring is put aside; starts are pending  --ask->
//	                                                    no handle: forgets the ring and the pipe
//	no handle: frees them; or announces them   <-yes--
//	                                                    handles:
//	takes up the ring again                    <-no---
//	asks, if it may                            <-idle-  its last handle is closed
//
// A receiver that has said yes accesses the memory no more unless it is announced again. The reader of the
// connection answers, whatever the program does, so that starts are not pending for long. A receiver that has
// failed cannot answer: the memory is freed once its process is gone, see bury.
//
// A stream rests for a second or two before this begins, since programs close a handle to declare another:
// unless there are many.

// restingMost is how many streams of a node rest.
const restingMost = 256

// restTicks is for how many ticks of the node a stream rests at least, one of them in part.
const restTicks = 2

// restingStream is a stream of which one direction or both may have come to rest.
type restingStream struct {
	peer   *peer
	number uint32
}

// had is how many messages a stream has had in each direction.
type had struct{ sent, received uint64 }

// What a kindRest says of a stream: its number, then one of these.
const (
	restAsk  = 1 + iota // sender: may it be freed?
	restYes             // receiver
	restNo              // receiver
	restIdle            // receiver: ask again
)

// tellRest says something of a stream, and whether it could: not if the peer has not been told the last of the
// same. The caller holds mu.
func (p *peer) tellRest(number uint32, what byte) bool {
	t := topic{kindRest, what, uint64(number)}
	if what == restNo { // one answer
		t.what = restYes
	}
	return p.tellOnce(t, append(binary.BigEndian.AppendUint32(nil, number), what))
}

// rests notes that a direction of a stream has no handle. The caller holds mu.
func (p *peer) rests(number uint32) {
	if number > MaxStream || p.queue != nil {
		return
	}
	_, listed := p.resting[number]
	if p.resting[number] = p.node.ticks.Load(); !listed {
		p.node.mu.Lock()
		p.node.resting = append(p.node.resting, restingStream{p, number})
		p.node.mu.Unlock()
	}
}

// endRests gives back the memory of the streams that have rested for long enough, and of the oldest ones
// if there are too many. In between, all is false, only the latter.
func (n *Node) endRests(all bool) (err error) {
	n.mu.Lock()
	over := max(len(n.resting)-restingMost, 0)
	list := n.resting[:over:over]
	if all {
		list = n.resting
	}
	n.resting = slices.Clone(n.resting[len(list):])
	n.mu.Unlock()
	now := n.ticks.Load()
	for i, s := range list {
		s.peer.mu.Lock()
		since := s.peer.resting[s.number]
		delete(s.peer.resting, s.number)
		if i >= over && now-since < restTicks && s.peer.queue == nil {
			s.peer.rests(s.number)
			s.peer.resting[s.number] = since
		} else if e := s.peer.endRest(s.number); err == nil {
			err = e
		}
		s.peer.mu.Unlock()
	}
	return err
}

// endRest begins to give back the memory of a stream. The caller holds mu.
func (p *peer) endRest(number uint32) error {
	out, in := p.sends[number], p.receives[number]
	switch {
	case p.queue != nil:
	case p.rank == p.node.rank:
		if out != nil && in != nil && out.users+in.users == 0 && out.over() {
			p.leaveReceive(number)
			return p.leaveSend(number)
		}
	default:
		if in != nil && in.users == 0 {
			if in.r.Load() == nil {
				p.leaveReceive(number)
			} else if p.state.Load() == peerUp {
				p.tellRest(number, restIdle)
			}
		}
		if out != nil {
			return p.ask(out)
		}
	}
	return nil
}

// ask asks the receiver whether the memory of a stream may be freed, if this side needs it no more. The
// caller holds mu.
func (p *peer) ask(s *sendStream) error {
	state := p.state.Load()
	switch {
	case s.users > 0:
		return nil
	case state >= peerFailed:
		if !p.gone() { // else bury frees it
			return nil
		}
		return p.leaveSend(s.number)
	case s.aside != nil || !s.over():
		return nil
	}
	s.lock.Lock()
	r := s.r
	s.lock.Unlock()
	switch {
	case r == nil:
		return p.leaveSend(s.number)
	case state == peerUp:
		s.lock.Lock()
		s.aside, s.r = r, nil
		s.lock.Unlock()
		p.tellRest(s.number, restAsk)
	}
	return nil
}

// asking says whether what the peer is asked of a stream has not been written. The caller holds mu.
func (p *peer) asking(number uint32) bool {
	_, asking := p.once[topic{kindRest, restAsk, uint64(number)}]
	return asking
}

// bury frees what a peer over mapped memory can no longer access because it has failed and its process is gone:
// the streams of the program that no handle uses, also those that the peer has been asked about, and those of
// closed groups. Whatever comes last of failure, end of the process and end of the last handle frees. The
// caller holds mu.
func (p *peer) bury() {
	if p.state.Load() < peerFailed || p.queue != nil || p.link == nil || !p.gone() {
		return
	}
	var errs []error
	for number, s := range p.sends {
		if s.users == 0 && number <= MaxStream {
			errs = append(errs, p.leaveSend(number))
		}
	}
	for number, left := range p.closed {
		delete(p.closed, number)
		p.node.releaseStream(number)
		errs = append(errs, left.free())
	}
	if err := errors.Join(errs...); err != nil {
		p.node.log.Warn("channel: free the memory that a peer had access to", "peer", p.rank, "error", err)
	}
}

// over says whether the receiver has taken all messages, and nothing of them is left to be told. The caller
// holds the peer's mu.
func (s *sendStream) over() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.r != nil {
		if atomic.LoadUint32(&s.r.faults) != s.faults {
			s.collect()
		}
		s.reap()
	}
	return s.freed == s.next && len(s.pending)+len(s.packing)+len(s.late) == 0 && s.busy == nil
}

// heardRest handles what a peer says of a stream that rests.
func (p *peer) heardRest(body []byte) error {
	r := reader{b: body}
	number, what := r.u32(), r.u8()
	if err := r.end(kindRest); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s, in := p.sends[number], p.receives[number]
	switch {
	case number > MaxStream || p.queue != nil:
	case what == restAsk && in != nil && in.users > 0:
		if p.tellRest(number, restNo) {
			return nil
		}
	case what == restAsk:
		if in != nil {
			p.leaveReceive(number)
		}
		if p.tellRest(number, restYes) {
			return nil
		}
	case what == restIdle:
		if _, listed := p.resting[number]; s != nil && !listed {
			return p.ask(s)
		}
		return nil
	case s == nil || s.aside == nil || p.asking(number):
	case what == restYes && s.users == 0:
		return p.leaveSend(number)
	case what == restYes || what == restNo:
		if what == restYes {
			p.announceRing(s)
			if s.pipe != nil {
				p.announcePipe(s)
			}
		}
		again := s.aside
		s.aside = nil
		s.begin(again, p.fenced)
		return nil
	}
	return fmt.Errorf("%w: %v of %d bytes: %d of stream %d", ErrProtocol, kindRest, len(body), what, number)
}

// leaveSend and leaveReceive end a direction of a stream that has no handle, and keep how many messages it
// has had. The caller holds mu, and nothing accesses the memory any more.
func (p *peer) leaveSend(number uint32) error {
	s, h := p.sends[number], p.had[number]
	s.lock.Lock()
	h.sent = s.next
	s.lock.Unlock()
	p.keep(number, h)
	m := p.detachSend(number)
	return m.free()
}

func (p *peer) leaveReceive(number uint32) {
	s, h := p.receives[number], p.had[number]
	s.lock.Lock()
	h.received = s.next
	s.lock.Unlock()
	p.keep(number, h)
	p.detachReceive(number)
}

func (p *peer) keep(number uint32, h had) {
	if h != (had{}) {
		p.had[number] = h
	}
}
