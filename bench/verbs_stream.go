package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
)

// stream moves many messages in one direction or both, with a window outstanding. Work requests
// are made beforehand, as many as the window, and posted in lists. One in every so many is
// signalled; its WRID is the number of requests that its completion covers.
//
// A message that consumes a receive is posted only when the peer is known to have one: the peer
// grants credit as it reposts. So the sender waits for a slow receiver, which never answers
// "not ready".
//
//	rank 0                                rank 1
//	(both ways: note) ──────────────────▶
//	window of messages ═════════════════▶ repost receives
//	        ◀──────────────────── credit
//	last message, seen by the peer ═════▶
//	        ◀─────────────────────── note   when it has all, and all of its own is out
//
// The clock stops when that note has arrived: the last byte counts.
type stream struct {
	*pair
	window  int
	list    int            // most requests in one call
	long    bool           // messages that may take long to post
	wrs     []verbs.SendWR // window of them
	final   []verbs.SendWR // the last message: signalled, and seen by the peer
	control []verbs.SendWR // a control message
	recvs   []verbs.RecvWR

	next        int // index into wrs of the next message
	since       int // requests posted since the last signalled one
	outstanding int // messages posted whose completion is not known
	credit      int // messages that the peer has receives for
	arrived     int // messages taken that move has not counted yet
	consumed    int // receives consumed and not yet replaced
	taken       int // of them by messages, for which credit is due
	telling     int // control messages posted whose completion was not taken
	notes       int // that have arrived and were not awaited yet
}

const (
	noteImm   = 0       // immediate data of a control message; else it is credit
	controlID = 1 << 32 // work request of a control message, which is none of the window

	streamCredit  = 512      // messages that a receiver has receives for
	streamGrant   = 128      // receives consumed when it reposts them and says so
	streamControl = 32       // receives and sends beyond, for control messages
	streamBytes   = 64 << 20 // most bytes outstanding: a window of large messages is smaller
	streamRecvs   = streamCredit + streamControl

	longPost = 4 << 10 // bytes: a window of less is soon posted
)

// streamWindow is the window for messages of a size.
func streamWindow(window, bytes int) int { return max(1, min(window, streamBytes/max(bytes, 1))) }

func newStream(p *pair, m *measurement) *stream {
	sends, receives := m.directions(p.rank)
	p.sends, p.takes = sends > 0, receives > 0
	if p.op.opcode != verbs.OpAtomicCmpAndSwp { // of which none succeeds
		p.step = 1
	}
	s := &stream{pair: p, window: m.windowed, list: min(m.o.list, m.windowed), long: p.looks > 0 && p.bytes > longPost, credit: streamCredit}
	wr := p.message()
	for i := range s.window {
		wr.Flags &^= verbs.SendSignaled
		if s.since++; s.since == m.o.every || i == s.window-1 {
			wr.Flags |= verbs.SendSignaled
			wr.WRID = uint64(s.since)
			s.since = 0
		}
		s.wrs = append(s.wrs, wr)
	}
	wr.Flags |= verbs.SendSignaled
	if p.op.opcode == verbs.OpRDMAWrite {
		wr.Opcode = verbs.OpRDMAWriteWithImm
	}
	s.final = []verbs.SendWR{wr}
	s.control = []verbs.SendWR{{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, WRID: controlID}}
	s.recvs = p.recvWRs(streamRecvs)
	return s
}

// run moves windows of messages from rank 0 to rank 1, and as many back if in both directions. It
// returns when all have arrived and rank 0 knows it.
func (s *stream) run(windows int, _ []int64) {
	n := windows * s.window
	s.moved += uint64(n)
	if s.sends && s.takes { // rank 1 goes on no earlier than rank 0, whose clock it is
		s.note(s.rank == 0)
	}
	if s.rank != 0 {
		s.credit = streamCredit // rank 0 has reposted all
	}
	sends, recvs := 0, 0
	if s.sends {
		sends = n
	}
	if s.takes && !s.op.fetch {
		if recvs = n; !s.op.recv {
			recvs = 1 // the last only
		}
	}
	s.move(sends, recvs)
	if s.op.fetch && s.sends { // to a peer that cannot see it
		s.note(true)
	}
	if s.op.fetch && s.takes {
		s.note(false)
	}
	s.repost()
	s.note(s.rank != 0)
	s.credit = streamCredit
	s.repost()
}

// note sends the peer a note that this rank is ready, or waits for one.
func (s *stream) note(tell bool) {
	if tell {
		s.tell(noteImm)
		return
	}
	for s.notes == 0 {
		// Control messages complete here, and some providers must have both queues polled to move
		// messages.
		s.pollSends(0)
		if s.pollRecvs(s.looks) == 0 {
			s.pause()
		}
	}
	s.notes--
}

func (s *stream) tell(imm uint32) {
	s.control[0].Imm = imm
	s.telling++
	s.pair.post(s.control)
}

// move posts sends messages and takes recvs, until all is complete.
func (s *stream) move(sends, recvs int) {
	for {
		room := s.window - s.outstanding
		if s.op.recv {
			room = min(room, s.credit)
		}
		for room > 0 && sends > 0 {
			n := s.post(min(room, sends), sends)
			sends -= n
			room -= n
			if s.long {
				s.breathe()
			}
		}
		if s.looks > 0 {
			s.breathe()
		}
		ours := s.outstanding > 0 || s.telling > streamControl/2
		theirs := s.arrived < recvs || sends > 0 && s.op.recv && s.credit == 0
		polled := 0
		if ours {
			polled = s.pollSends(s.spin(!theirs))
		}
		if theirs {
			polled += s.pollRecvs(s.spin(!ours))
		}
		if sends == 0 && s.outstanding == 0 && s.arrived >= recvs {
			s.arrived -= recvs
			return
		}
		if polled == 0 {
			s.pause()
		}
	}
}

// post posts at most n messages of those left, as one list, and says how many.
// The last of all is posted for itself.
func (s *stream) post(n, left int) int {
	if left == 1 {
		s.final[0].WRID = uint64(s.since + 1)
		s.pair.post(s.final)
		// When it is complete, so are all before: the next run starts afresh.
		s.next, s.since = 0, 0
		s.outstanding++
		s.credit--
		return 1
	}
	n = min(n, left-1, s.list, len(s.wrs)-s.next)
	list := s.wrs[s.next : s.next+n]
	s.pair.post(list)
	for i := range list {
		if s.since++; list[i].Flags&verbs.SendSignaled != 0 {
			s.since = 0
		}
	}
	if s.next += n; s.next == len(s.wrs) {
		s.next = 0
	}
	s.outstanding += n
	s.credit -= n
	return n
}

// spin returns how often one call may poll; alone says that there is nothing else to wait for.
func (s *stream) spin(alone bool) int {
	if alone {
		return s.looks
	}
	return 0
}

// poll polls a queue; looks of 0 is one look.
func (s *stream) poll(cq *verbs.CQ, looks int) int {
	switch {
	case looks == 0:
		return must1(cq.Poll(s.wcs[:]))
	case cq == s.recvCQ && !s.op.recv && s.outstanding == 0:
		// The peer has nothing to do here but wait. As in perftest, a rank that takes no part in the
		// transfer leaves the CPU to those that do.
		return must1(cq.Wait(context.Background(), s.wcs[:]))
	}
	return must1(cq.PollSpin(s.wcs[:], looks))
}

// pollSends takes completions of this rank's work requests.
func (s *stream) pollSends(looks int) int {
	n := s.poll(s.sendCQ, looks)
	for i := range n {
		wc := &s.wcs[i]
		if wc.Status != verbs.WCSuccess {
			must(wc.Err())
		}
		if wc.WRID == controlID {
			s.telling--
		} else {
			s.outstanding -= int(wc.WRID)
		}
	}
	return n
}

// pollRecvs takes completions of receives: messages, which it counts, and
// control messages.
func (s *stream) pollRecvs(looks int) int {
	n := s.poll(s.recvCQ, looks)
	messages := 0
	for i := range n {
		wc := &s.wcs[i]
		if wc.Status != verbs.WCSuccess {
			must(wc.Err())
		}
		switch {
		case wc.Opcode != verbs.WCRecv || wc.Flags&verbs.WCWithImm == 0:
			messages++
		case wc.Imm == noteImm:
			s.notes++
		case wc.Imm <= streamRecvs:
			s.credit += int(wc.Imm)
		default:
			must(fmt.Errorf("unknown control message %#x", wc.Imm))
		}
	}
	s.consumed += n
	s.taken += messages
	s.arrived += messages
	if taken := s.taken; taken >= streamGrant || s.consumed-taken >= streamControl/2 {
		if s.repost(); taken > 0 {
			s.tell(uint32(taken))
		}
	}
	return n
}

// repost replaces all receives that were consumed.
func (s *stream) repost() {
	n := s.consumed
	s.consumed, s.taken = 0, 0
	if n > 0 {
		s.postRecvs(s.recvs[:n])
	}
}

const longCQ = `So many queue pairs are connected to as many others, with one completion queue on each side;
one thread posts and polls for both. The main figure is half a round trip on one pair, each in
turn; poll is the time of polling an empty queue; growth and poll-growth are the ratios of
these to the same with one queue pair.`

// openCQ names the provider: this pattern measures it, not channels.
func openCQ(_ context.Context, b *bed) {
	b.provider = cmp.Or(b.o.provider, providerSHM)
}

// side is one of the two that are connected, with all its queue pairs.
type side struct {
	ctx  *verbs.Context
	cq   *verbs.CQ
	mr   *verbs.MR
	qps  []*verbs.QP
	sent []int // on each
}

// One send in so many is signalled, of twice as many that a queue holds.
const cqSignal = 16

func openSide(provider string, bytes, count int) *side {
	s := &side{sent: make([]int, count), ctx: must1(must1(verbs.Find(provider)).Open(verbs.Config{Insecure: true}))}
	pd := must1(s.ctx.AllocPD())
	s.mr = must1(pd.AllocMR(bytes, verbs.AccessAll))
	s.cq = must1(s.ctx.CreateCQ(4*count, nil))
	each("queue pair", count, func() {
		s.qps = append(s.qps, must1(pd.CreateQP(verbs.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{MaxSendWR: 2 * cqSignal, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}})))
	})
	return s
}

func measureCQ(_ context.Context, b *bed, m *measurement) {
	messages, polls := timeCQ(b.provider, m, m.many)
	m.addAll(messages...)
	m.figure("poll", polls...)
	if m.many == 1 {
		return
	}
	one, onePoll := timeCQ(b.provider, m, 1)
	m.figure("growth", median(messages)/median(one))
	m.figure("poll-growth", median(polls)/median(onePoll))
}

// timeCQ connects so many queue pairs, and times messages over them, and looks at the queue.
func timeCQ(provider string, m *measurement, count int) (messages, polls []float64) {
	const descriptors = 8 // of a pair, at most, and some beside
	must(moreDescriptors(uint64(descriptors*count + 100)))
	var sides [2]*side
	for i := range sides {
		sides[i] = openSide(provider, m.bytes, count)
	}
	pingPong := func(k int) {
		sides[0].hop(sides[1], k)
		sides[1].hop(sides[0], k)
	}
	k := 0
	each("queue pair", count, func() {
		connectBoth(sides, k)
		pingPong(k) // that connects
		k++
	})
	for until, k := time.Now().Add(m.o.time), 0; time.Now().Before(until); k += 7 { // neighbours share cache lines
		began := nanos()
		pingPong(k % count)
		messages = append(messages, float64(nanos()-began)/2)
	}
	var wc [1]verbs.WC
	for until := time.Now().Add(m.o.time); time.Now().Before(until); {
		const looks = 100
		began := nanos()
		for range looks {
			if n, err := sides[1].cq.Poll(wc[:]); err != nil || n > 0 && wc[0].Opcode != verbs.WCSend {
				must(fmt.Errorf("%d completions of nothing: %w", n, err))
			}
		}
		polls = append(polls, float64(nanos()-began)/looks)
	}
	for _, s := range sides {
		must(s.ctx.Close())
	}
	return messages, polls
}

func connectBoth(sides [2]*side, k int) {
	for i, s := range sides {
		e := must1(sides[1-i].qps[k].Endpoint())
		must(s.qps[k].Connect(e, verbs.ConnectAttr{}))
	}
}

// hop sends a message on queue pair k, and polls until it has arrived.
func (s *side) hop(to *side, k int) {
	if n, err := to.qps[k].PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{to.mr.SGE(0, to.mr.Len())}}}); n != 1 || err != nil {
		must(errors.Join(err, errRecvFull))
	}
	wr := verbs.SendWR{Opcode: verbs.OpSend, SGList: []verbs.SGE{s.mr.SGE(0, s.mr.Len())}}
	if s.sent[k]%cqSignal == 0 {
		wr.Flags = verbs.SendSignaled
	}
	s.sent[k]++
	if n, err := s.qps[k].PostSend([]verbs.SendWR{wr}); n != 1 || err != nil {
		must(fmt.Errorf("post a send: took %d of 1: %w", n, err))
	}
	var wc [1]verbs.WC
	for {
		n := must1(to.cq.Poll(wc[:]))
		if n == 0 {
			continue
		}
		must(wc[0].Err())
		if wc[0].Opcode != verbs.WCSend { // those come late, and free what sends before have used
			return
		}
	}
}
