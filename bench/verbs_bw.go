package main

import (
	"context"
	"fmt"

	"github.com/sluice-hpc/sluice/verbs"
)

// stream moves many messages, a window of them outstanding, one way or both.
// Work requests are made beforehand, as many as the window, and posted from
// there in lists; one in every so many is signalled, and its WRID is the number
// of requests that its completion tells of.
//
// A message that consumes a receive is posted only when the peer is known to
// have one: the peer grants credit as it reposts. So a receiver that is slow is
// waited for, and never answers "not ready".
//
//	rank 0                                rank 1
//	(both ways: start) ─────────────────▶
//	window of messages ═════════════════▶ repost receives
//	        ◀──────────────────── credit
//	last message, seen by the peer ═════▶
//	        ◀──────────────────────── all   when it has all, and all of its own is out
//
// The clock stops when "all" is there: the last byte counts.
type stream struct {
	*pair
	op     operation
	window int
	list   int            // most requests in one call
	long   bool           // messages that may take long to post
	wrs    []verbs.SendWR // window of them
	final  []verbs.SendWR // the last message: signalled, and seen by the peer
	told   []verbs.SendWR // a control message
	recvs  []verbs.RecvWR

	next        int // index into wrs of the next message
	since       int // requests posted since the last signalled one
	outstanding int // messages posted whose completion is not known
	credit      int // messages that the peer has receives for
	arrived     int // messages taken that move has not counted yet
	consumed    int // receives consumed and not yet replaced
	taken       int // of them by messages, for which credit is due
	telling     int // control messages posted whose completion was not taken
	got         [controls]int
	wcs         [32]verbs.WC
}

// Control messages: sends of no bytes with one of these as immediate data, or
// with a number of credits above them.
const (
	controlStart = iota
	controlAll
	controlDone // the last fetch is complete; for a peer that cannot see it
	controls

	creditShift = 8
)

// controlID marks the completion of a control message, which is no message of
// the window.
const controlID = 1 << 32

const (
	streamCredit  = 512      // messages that a receiver has receives for
	streamGrant   = 128      // receives consumed when it reposts them and says so
	streamControl = 32       // receives and sends beyond, for control messages
	streamBytes   = 64 << 20 // most bytes outstanding: a window of large messages is smaller
	streamRecvs   = streamCredit + streamControl

	longPost = 4 << 10 // bytes: a window of less is soon posted
)

// streamWindow is the window for messages of a size.
func streamWindow(window, bytes int) int {
	return max(1, min(window, streamBytes/max(bytes, 1)))
}

func streamSendDepth(window int) int { return window + streamControl }

func newStream(p *pair, op operation, bytes, inline, window, list, every int) *stream {
	s := &stream{pair: p, op: op, window: window, list: min(list, window), long: p.looks > 0 && bytes > longPost, credit: streamCredit}
	every = min(every, window)
	wr := p.message(op, bytes, inline)
	for i := range window {
		wr.Flags &^= verbs.SendSignaled
		if s.since++; s.since == every || i == window-1 {
			wr.Flags |= verbs.SendSignaled
			wr.WRID = uint64(s.since)
			s.since = 0
		}
		s.wrs = append(s.wrs, wr)
	}
	wr.Flags |= verbs.SendSignaled
	if op.opcode == verbs.OpRDMAWrite {
		wr.Opcode = verbs.OpRDMAWriteWithImm
	}
	s.final = []verbs.SendWR{wr}
	s.told = []verbs.SendWR{{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, WRID: controlID}}
	s.recvs = p.recvWRs(streamRecvs)
	return s
}

// batch moves n messages from rank 0 to rank 1, both ways also n back, and
// returns when all have arrived and rank 0 knows it.
func (s *stream) batch(n int, both bool) error {
	sends, recvs := n, 0
	if both {
		if err := s.begin(); err != nil {
			return err
		}
		recvs = n
	} else if s.rank != 0 {
		sends, recvs = 0, n
	}
	switch {
	case s.op.fetch:
		recvs = 0
	case !s.op.recv:
		recvs = min(recvs, 1) // the last only
	}
	if err := s.move(sends, recvs); err != nil {
		return err
	}
	if s.op.fetch && sends > 0 {
		if err := s.tell(controlDone); err != nil {
			return err
		}
	}
	if s.op.fetch && (both || s.rank != 0) {
		if err := s.hear(controlDone); err != nil {
			return err
		}
	}
	if err := s.repost(); err != nil {
		return err
	}
	if s.rank != 0 {
		return s.tell(controlAll)
	}
	if err := s.hear(controlAll); err != nil {
		return err
	}
	s.credit = streamCredit
	return s.repost()
}

// begin lets rank 1 go on no earlier than rank 0, whose clock it is.
func (s *stream) begin() error {
	if s.rank == 0 {
		return s.tell(controlStart)
	}
	err := s.hear(controlStart)
	s.credit = streamCredit // rank 0 has reposted all since it heard "all"
	return err
}

// move posts sends messages and takes recvs, until all is complete.
func (s *stream) move(sends, recvs int) error {
	for {
		room := s.window - s.outstanding
		if s.op.recv {
			room = min(room, s.credit)
		}
		for room > 0 && sends > 0 {
			n, err := s.post(min(room, sends), sends)
			if err != nil {
				return err
			}
			sends -= n
			room -= n
			if s.long {
				s.breathe()
			}
		}
		if s.looks > 0 {
			s.breathe()
		}
		progress := false
		ours := s.outstanding > 0 || s.telling > streamControl/2
		theirs := s.arrived < recvs || sends > 0 && s.op.recv && s.credit == 0
		if ours {
			n, err := s.pollSends(s.spin(!theirs))
			if err != nil {
				return err
			}
			progress = n > 0
		}
		if theirs {
			n, err := s.pollRecvs(s.spin(!ours))
			if err != nil {
				return err
			}
			progress = progress || n > 0
		}
		if sends == 0 && s.outstanding == 0 && s.arrived >= recvs {
			s.arrived -= recvs
			return nil
		}
		if !progress {
			if err := s.pause(); err != nil {
				return err
			}
		}
	}
}

// post posts at most n messages of those left, as one list, and says how many.
// The last of all is posted for itself.
func (s *stream) post(n, left int) (int, error) {
	if left == 1 {
		s.final[0].WRID = uint64(s.since + 1)
		if err := s.postOne(s.final); err != nil {
			return 0, err
		}
		// All before is complete when it is: the next batch begins anew.
		s.next, s.since = 0, 0
		s.outstanding++
		s.credit--
		return 1, nil
	}
	n = min(n, left-1, s.list, len(s.wrs)-s.next)
	took, err := s.qp.PostSend(s.wrs[s.next : s.next+n])
	if err != nil {
		return 0, err
	}
	if took < n {
		return 0, errSendFull
	}
	for i := s.next; i < s.next+n; i++ {
		if s.since++; s.wrs[i].Flags&verbs.SendSignaled != 0 {
			s.since = 0
		}
	}
	s.next += n
	if s.next == len(s.wrs) {
		s.next = 0
	}
	s.outstanding += n
	s.credit -= n
	return n, nil
}

// spin is how often a poll may look: alone says that nothing else is waited for.
func (s *stream) spin(alone bool) int {
	if alone {
		return s.looks
	}
	return 0
}

// poll polls a queue; looks of 0 is one look.
func (s *stream) poll(cq *verbs.CQ, looks int) (int, error) {
	if looks == 0 {
		return cq.Poll(s.wcs[:])
	}
	if cq == s.recvCQ && s.idle() {
		// Nothing here is the peer's concern: what is left is to be told. Like
		// perftest's, a rank that has no part in the transfer leaves the CPU to
		// those that have.
		return cq.Wait(context.Background(), s.wcs[:])
	}
	return cq.PollSpin(s.wcs[:], looks)
}

// idle: this rank has no part in what moves.
func (s *stream) idle() bool { return !s.op.recv && s.outstanding == 0 }

// pollSends takes completions of our own work requests.
func (s *stream) pollSends(looks int) (int, error) {
	n, err := s.poll(s.sendCQ, looks)
	if err != nil {
		return 0, err
	}
	for i := range n {
		wc := &s.wcs[i]
		if wc.Status != verbs.WCSuccess {
			return 0, wc.Err()
		}
		if wc.WRID == controlID {
			s.telling--
		} else {
			s.outstanding -= int(wc.WRID)
		}
	}
	return n, nil
}

// pollRecvs takes completions of receives: messages, which it counts, and
// control messages.
func (s *stream) pollRecvs(looks int) (int, error) {
	n, err := s.poll(s.recvCQ, looks)
	if err != nil {
		return 0, err
	}
	messages := 0
	for i := range n {
		wc := &s.wcs[i]
		if wc.Status != verbs.WCSuccess {
			return 0, wc.Err()
		}
		if wc.Opcode != verbs.WCRecv || wc.Flags&verbs.WCWithImm == 0 {
			messages++
			continue
		}
		switch {
		case wc.Imm < controls:
			s.got[wc.Imm]++
		case wc.Imm>>creditShift > 0:
			s.credit += int(wc.Imm >> creditShift)
		default:
			return 0, fmt.Errorf("unknown control message %#x", wc.Imm)
		}
	}
	s.consumed += n
	s.taken += messages
	s.arrived += messages
	taken := s.taken
	if taken < streamGrant && s.consumed-taken < streamControl/2 {
		return n, nil
	}
	if err := s.repost(); err != nil || taken == 0 {
		return n, err
	}
	return n, s.tell(uint32(taken) << creditShift)
}

// repost replaces all receives that were consumed.
func (s *stream) repost() error {
	n := s.consumed
	s.consumed, s.taken = 0, 0
	if n == 0 {
		return nil
	}
	return s.postRecvs(s.recvs[:n])
}

// tell sends a control message.
func (s *stream) tell(what uint32) error {
	s.told[0].Imm = what
	s.telling++
	return s.postOne(s.told)
}

// hear waits for a control message.
func (s *stream) hear(what int) error {
	for s.got[what] == 0 {
		// Our control messages complete here, and some providers need both
		// queues polled to move anything.
		if _, err := s.pollSends(0); err != nil {
			return err
		}
		n, err := s.pollRecvs(s.looks)
		if err != nil {
			return err
		}
		if n == 0 {
			if err := s.pause(); err != nil {
				return err
			}
		}
	}
	s.got[what]--
	return nil
}

// finish leaves the queues as newStream found them: no control message is under
// way, no completion is left to whoever uses the queues next. Rank 0 says a last
// word, behind all that it has sent; what rank 1 has sent came before "all".
func (s *stream) finish() error {
	if err := s.begin(); err != nil {
		return err
	}
	for s.telling > 0 {
		n, err := s.pollSends(s.looks)
		if err != nil {
			return err
		}
		if n == 0 {
			if err := s.pause(); err != nil {
				return err
			}
		}
	}
	return s.repost()
}
