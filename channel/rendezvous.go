package channel

import (
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/sluice-hpc/sluice/verbs"
)

// A message that is larger than crossovers.eager is moved once, from the sender's
// layout into the receiver's. The receiver alone decides which side moves it, when it
// starts, so no agreement is needed: either it opens the gate and the sender moves the
// message, or it reads the message and opens no gate.
//
// If the sender is second, it finds the gate open and announces nothing:
//
//	sender                               receiver
//	                                 ◀── gate: k, length, handle
//	  RDMA_WRITE ... RDMA_WRITE with
//	  immediate: the handle          ──▶ complete
//
// If the receiver is second, it finds the message ready:
//
//	  ready: k, length, handle       ──▶
//	                                 ◀── RDMA_READ ... RDMA_READ
//	                                 ◀── done: k
//
// If both are simultaneous, or the receiver cannot or should not read the sender's
// layout, ready and gate cross, and the sender writes.
//
// What completes a match travels behind its last byte: an RC QP executes its work
// requests in order. If the program computes, its engine waits for the other side.
//
// The gate is a SEND of 32 bytes, or 40 with an address, although 16 would do in a mailbox
// of the sender: a write with immediate consumes a receive and makes a completion just as
// a SEND does, and carries 20 bytes of RETH and ImmDt that a SEND does not (IBA vol. 1,
// 5.2). These bytes return credits and let the sender detect that the lengths differ.

// transfer is the progress of moving a message.
type transfer struct {
	begun       bool
	ahead       bool        // the other side keeps its announcement, or gate
	to          *layoutInfo // of the other side
	part, block int         // of to
	within      int
	moved       int  // bytes posted
	packed      bool // the staging memory of a send is filled
}

// lane is the messages that this side moves in one direction: sends by RDMA_WRITE, receives by
// RDMA_READ.
type lane struct {
	read   bool
	moving []*Handle // those whose work requests are not all posted
	posted []step    // oldest first; they complete in this order
	wrs    int       // of posted
	bytes  int       // of posted
	limit  int       // of wrs
	sges   int       // of one work request
}

// step is a batch of work requests, the last of them signalled, that moves the bytes of a
// message from from on.
type step struct {
	h           *Handle
	k           uint64
	wrs         int
	from, bytes int
	sends       uint32 // of the queue that were posted before
}

const (
	// maxMove bounds the bytes of one work request, and flyingMax roughly those of all that are
	// posted in one direction, which a message of higher priority may have to wait for.
	maxMove   = 1 << 20
	flyingMax = 4 << 20
	// packPiece bounds the bytes that are packed before they are posted.
	packPiece = 256 << 10
	// chain bounds the work requests that are posted together.
	chain = 8

	queueWrites = 256 // RDMA_WRITEs outstanding
	queueReads  = 64  // RDMA_READs outstanding, if the device and the other side admit as many
)

// offer announces a large message, or begins to write it if the gate is open.
func (q *queue) offer(s *queueOut, h *Handle) error {
	h.setPhase(phaseOffered)
	s.offers[h.k] = h
	if h.staging != nil {
		s.sent.Packed++
	}
	if g, ok := s.opened[h.k]; ok {
		delete(s.opened, h.k)
		if g.length == uint64(h.shape.Len()) {
			return q.startWrite(s, h, g)
		}
		// The receiver reports that the lengths differ. It does not read the message, which may not be packed.
	}
	if s.told >= aheadMost {
		s.untold = append(s.untold, h.k)
		return nil
	}
	q.announce(s, h)
	return nil
}

// aheadMost is how many announcements, or gates, of a stream the other side has to keep because it has not
// started as much. Further ones are told when it has.
const aheadMost = 1 << 10

// announce tells the receiver where a message is.
func (q *queue) announce(s *queueOut, h *Handle) {
	h.transfer.ahead = true
	s.told++
	q.tell(header{kind: queueReady, stream: s.number, k: h.k, length: uint64(h.shape.Len()), where: h.where})
}

// answered notes that the other side no longer keeps the announcement of a message.
func (q *queue) answered(s *queueOut, h *Handle) {
	if !h.transfer.ahead {
		return
	}
	h.transfer.ahead = false
	s.told--
	for s.told < aheadMost && len(s.untold) > 0 && !s.ended && !q.failed {
		k := s.untold[0]
		if s.untold = s.untold[1:]; len(s.untold) == 0 {
			s.untold = nil
		}
		// One whose gate waits for a layout is written when that has come, without an answer.
		if _, gate := s.opened[k]; gate {
			continue
		}
		if o := s.offers[k]; o != nil && !o.transfer.begun {
			q.announce(s, o)
		}
	}
}

// atPiece, if a test has set it, is called before each piece of a message that is copied to or
// from its staging memory.
var atPiece func(h *Handle)

// byPiece copies a message to or from its staging memory in pieces, because a goroutine cannot be
// preempted (by the garbage collector, for example) during a copy.
func byPiece(h *Handle, copyPiece func(b []byte, from int)) {
	for at := 0; at < h.shape.Len(); at += packPiece {
		if atPiece != nil {
			atPiece(h)
		}
		copyPiece(h.staging.Bytes()[at:min(at+packPiece, h.shape.Len())], at)
	}
}

// stage packs a message that is about to be started. The caller holds the lock, which stage
// releases while it copies.
func (q *queue) stage(h *Handle) {
	h.copying = true
	q.lock.Unlock()
	byPiece(h, h.shape.Gather)
	q.lock.Lock()
	h.copying = false
}

// unstage completes receives that have been written to their staging memory. The caller holds
// the lock, which unstage releases while it copies.
func (q *queue) unstage() {
	for len(q.landed) > 0 {
		h := q.landed[0]
		q.landed = slices.Delete(q.landed, 0, 1)
		s := q.in[h.in.number]
		s.unstaged++
		q.lock.Unlock()
		byPiece(h, h.shape.Scatter)
		q.lock.Lock()
		s.unstaged--
		h.copying = false
		q.receive(s, h)
	}
}

// arriveGate handles a gate that the other side has opened.
func (q *queue) arriveGate(s *queueOut, g header) error {
	switch h := s.offers[g.k]; {
	case g.k == 0, h != nil && h.transfer.begun:
		return fmt.Errorf("%w: gate for start %d, which awaits none; last start is %d", ErrProtocol, g.k, s.next)
	case h == nil && g.k <= s.next: // its length is wrong, and it was eager
	case h != nil:
		q.answered(s, h)
		return q.startWrite(s, h, g)
	case len(s.opened) >= maxAhead:
		return fmt.Errorf("%w: more than %d gates open", ErrProtocol, maxAhead)
	default:
		s.opened[g.k] = g
	}
	return nil
}

// startWrite begins to write a message into the layout that the receiver has named.
func (q *queue) startWrite(s *queueOut, h *Handle, g header) error {
	if g.length != uint64(h.shape.Len()) {
		return nil
	}
	l := q.far(h, g)
	if l == nil {
		// The layout has not arrived yet on the control connection.
		s.opened[h.k] = g
		q.peer.awaitsLayout(g.where)
		time.AfterFunc(askAfter, func() { q.ask(earlyGate{s: s, gate: g}) })
		return nil
	}
	if l.total != h.shape.Len() {
		return fmt.Errorf("%w: gate for %d bytes to a layout of %d bytes", ErrProtocol, g.length, l.total)
	}
	h.transfer.begun, h.transfer.to = true, l
	q.begin(&q.writes, h)
	return nil
}

// earlyGate is a gate whose layout has not arrived. The other side had queued that before it opened the
// gate, so it comes before the pong.
type earlyGate struct {
	s    *queueOut
	gate header
	ping uint64
}

// askAfter is how late a layout is asked for: that of a handle that is used once is often some
// microseconds behind the gate.
const askAfter = 10 * time.Millisecond

// ask asks for the layout of a gate, if that still waits.
func (q *queue) ask(g earlyGate) {
	q.lock.Lock()
	defer q.lock.Unlock()
	if !q.failed && g.waits() {
		g.ping = q.peer.ping()
		q.early = append(slices.DeleteFunc(q.early, func(g earlyGate) bool { return !g.waits() }), g)
	}
}

func (g earlyGate) waits() bool {
	open, ok := g.s.opened[g.gate.k]
	return ok && open == g.gate && g.s.offers[open.k] != nil
}

// ponged ends the queue if a gate still waits for its layout, although the other side has sent what it
// had queued before that ping.
func (q *queue) ponged(ping uint64) {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.early = slices.DeleteFunc(q.early, func(g earlyGate) bool {
		over := g.ping <= ping
		if over && g.waits() && !q.failed {
			q.broken(fmt.Errorf("%w: gate to handle %d, which has no layout", ErrProtocol, g.gate.handle))
		}
		return over
	})
}

// retryGates opens the gates whose layouts have arrived.
func (q *queue) retryGates() {
	for _, s := range q.out {
		for k, g := range s.opened {
			switch h := s.offers[k]; {
			case h == nil:
			case q.far(h, g) == nil:
				q.peer.awaitsLayout(g.where)
			default:
				delete(s.opened, k)
				if err := q.startWrite(s, h, g); err != nil {
					q.broken(err)
					return
				}
			}
		}
	}
}

// far returns the memory that a message of the other side names, nil if it is not known.
func (q *queue) far(h *Handle, m header) *layoutInfo {
	if h.far == nil || h.farAt != m.where || m.addr != 0 && h.far.regions[0].length != m.length {
		h.far, h.farAt = q.peer.remoteInfo(m.where, m.length), m.where
	}
	return h.far
}

// fetch begins to read a ready message; false if the sender should move it.
func (q *queue) fetch(h *Handle, r header) bool {
	if q.reads.limit == 0 {
		return false
	}
	l := q.far(h, r)
	if l == nil || l.total != h.shape.Len() {
		return false
	}
	blocks := 1
	if h.staging == nil {
		blocks = h.shape.Blocks()
	}
	if l.blocks > blocks && l.total/l.blocks < q.cross.read {
		return false
	}
	h.transfer.begun, h.transfer.to = true, l
	q.begin(&q.reads, h)
	return true
}

// publishGate tells the sender where a message is to be written.
func (q *queue) publishGate(s *queueIn, h *Handle) {
	q.gated[h.id] = h
	h.transfer.ahead = true
	s.gates++
	q.tell(header{kind: queueGate, stream: s.number, k: h.k, length: uint64(h.shape.Len()), where: h.where})
}

// begin queues a message behind those of equal or higher priority. A message of lower priority
// that is in progress continues after this one has been posted.
func (q *queue) begin(l *lane, h *Handle) {
	i := 0
	for i < len(l.moving) && l.moving[i].priority >= h.priority {
		i++
	}
	l.moving = slices.Insert(l.moving, i, h)
	q.flush()
}

// advance posts as much as there is room for.
func (q *queue) advance(l *lane) {
	for !q.failed && len(l.moving) > 0 && q.move(l, l.moving[0]) {
		l.moving = slices.Delete(l.moving, 0, 1)
	}
}

// move posts the work requests of a message; false if there is no room for all of
// them.
func (q *queue) move(l *lane, h *Handle) bool {
	t := &h.transfer
	for t.moved < h.shape.Len() {
		st := step{h: h, k: h.k, from: t.moved}
		most := min(len(q.wrs), l.limit-l.wrs)
		if h.staging != nil {
			most = min(most, 1)
		}
		q.sges = q.sges[:0]
		for st.wrs < most && t.moved < h.shape.Len() && l.bytes+st.bytes < flyingMax && q.compose(l, h, &q.wrs[st.wrs]) {
			st.wrs++
			st.bytes = t.moved - st.from
		}
		if st.wrs == 0 {
			return false
		}
		q.wrs[st.wrs-1].Flags = verbs.SendSignaled
		if m, err := q.link.qp.PostSend(q.wrs[:st.wrs]); err != nil || m < st.wrs {
			q.broken(fmt.Errorf("post %v: %d of %d work requests posted: %w", q.wrs[0].Opcode, m, st.wrs, err))
			return true
		}
		st.sends, q.outstanding.quiet = q.outstanding.posted, 0
		l.posted = append(l.posted, st)
		l.wrs += st.wrs
		l.bytes += st.bytes
	}
	return true
}

// compose makes the next work request of a message. It returns false for the last one of a send
// if there is no credit for its immediate, or if a control message is queued that it must not
// overtake, such as the announcement of the message.
func (q *queue) compose(l *lane, h *Handle, wr *verbs.SendWR) bool {
	t := &h.transfer
	p := &t.to.parts[t.part]
	r := t.to.regions[p.region]
	n := min(p.block-t.within, maxMove)
	if h.staging != nil {
		n = min(n, packPiece)
	}
	first, at, got := len(q.sges), h.source.Seek(t.moved), 0
	for got < n && len(q.sges)-first < l.sges {
		part := at.Part
		b := h.source.Next(&at, n-got)
		q.sges = append(q.sges, verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Length: uint32(len(b)), LKey: h.lkeys[part]})
		got += len(b)
	}
	*wr = verbs.SendWR{WRID: wrRead, SGList: q.sges[first:], Opcode: verbs.OpRDMARead, RKey: r.rkey,
		RemoteAddr: r.addr + uint64(p.off+t.block*p.stride+t.within)}
	if !l.read {
		wr.WRID, wr.Opcode = wrWrite, verbs.OpRDMAWrite
		if t.moved+got == h.shape.Len() {
			if len(q.control) > 0 || q.credits <= reserve {
				return false
			}
			q.credits--
			wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, t.to.handle
		}
		if h.staging != nil && !t.packed {
			h.shape.Gather(h.staging.Bytes()[t.moved:t.moved+got], t.moved)
		}
	}
	t.moved += got
	if t.within += got; t.within == p.block {
		t.within = 0
		if t.block++; t.block == p.count {
			t.block = 0
			t.part++
		}
	}
	return true
}

// moved handles the completion of the oldest step.
func (q *queue) moved(l *lane) {
	st := l.posted[0]
	l.posted = slices.Delete(l.posted, 0, 1)
	l.wrs -= st.wrs
	l.bytes -= st.bytes
	q.release(st.sends)
	h, last := st.h, st.from+st.bytes == st.h.shape.Len()
	if !l.read {
		if s := q.out[h.out.number]; last && s.offers[st.k] == h {
			delete(s.offers, st.k)
			q.finish(h, phaseSent, nil)
		}
		return
	}
	s := q.in[h.in.number]
	if s.started[st.k] != h {
		return
	}
	if h.staging != nil {
		h.shape.Scatter(h.staging.Bytes()[st.from:st.from+st.bytes], st.from)
	}
	if last {
		q.tell(header{kind: queueDone, stream: s.number, k: st.k, length: uint64(h.shape.Len())})
		s.received.Read++
		q.receive(s, h)
	}
}

// arriveDone ends a send that the receiver has read.
func (q *queue) arriveDone(s *queueOut, m header) error {
	h := s.offers[m.k]
	if h == nil || h.transfer.begun || m.length != uint64(h.shape.Len()) {
		return fmt.Errorf("%w: start %d was read but not offered; last start is %d", ErrProtocol, m.k, s.next)
	}
	delete(s.offers, m.k)
	q.answered(s, h)
	s.sent.Read++
	q.finish(h, phaseSent, nil)
	return nil
}

// written ends the receive that the immediate of a write names.
func (q *queue) written(handle uint32) error {
	h := q.gated[handle]
	if h == nil {
		return fmt.Errorf("%w: message written to handle %d, which has no open gate", ErrProtocol, handle)
	}
	s := q.in[h.in.number]
	if h.staging == nil {
		q.receive(s, h)
		return nil
	}
	q.forget(s, h)
	h.copying = true
	q.landed = append(q.landed, h)
	return nil
}

// receive completes a receive whose message has arrived.
func (q *queue) receive(s *queueIn, h *Handle) {
	q.forget(s, h)
	s.received.add(h)
	if h.staging != nil {
		s.received.Packed++
	}
	q.finish(h, phaseReceived, nil)
}

// forget removes a receive from those that are not complete.
func (q *queue) forget(s *queueIn, h *Handle) {
	delete(s.started, h.k)
	delete(q.gated, h.id)
	if !h.transfer.ahead {
		return
	}
	h.transfer.ahead = false
	s.gates--
	for s.gates < aheadMost && len(s.ungated) > 0 && !s.ended && !q.failed {
		k := s.ungated[0]
		if s.ungated = s.ungated[1:]; len(s.ungated) == 0 {
			s.ungated = nil
		}
		if o := s.started[k]; o != nil && q.gated[o.id] != o && !o.transfer.begun {
			q.publishGate(s, o)
		}
	}
}
