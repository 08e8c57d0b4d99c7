package impi

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/verbs"
)

// rcCarrier sends and receives packets over a reliable-connected queue pair.
type rcCarrier struct {
	l       *link
	d       *rcDevice
	qp      *verbs.QP
	num     uint32          // of the queue pair
	peers   []int32         // rank of each process of the other host
	tcp     socket          // its end means that the peer has ended
	ended   error           // how it has ended; see look
	verdict context.Context // until its end the queue pair may still report
	inline  int             // most bytes of a packet that is sent inline

	again    receives // to be posted, without an SRQ
	sends    *verbs.MR
	slotHead uint32 // slots taken, and given back
	slotTail uint32
	posted   uint32          // work requests
	done     uint32          // of these complete
	marks    [rcSends]rcMark // from markTail to markHead
	markHead uint32
	markTail uint32
	write    *request // whose rest is being posted
	stage    stage    // if the device maps memory
	lanes    lanes    // likewise
	waking   bool     // wake the peer when there is room

	buf  [rcInlineMost]byte
	wrs  [1]verbs.SendWR
	sge  []verbs.SGE
	want int   // completions of the probe
	why  error // it has failed
}

// rcMark is what the completion of a signalled work request means.
type rcMark struct {
	seq   uint32
	slots uint32   // are free up to here
	req   *request // has been written
}

const (
	rcSends      = 256 // work requests of a queue pair
	rcSlots      = 64  // for packets that are not inline, at most; a power of 2
	rcSlotsMin   = 8   // and at least
	rcInlineMost = 256
)

func (c *rcCarrier) room() bool {
	return c.write == nil && c.posted-c.done < rcSends-2 && c.slotHead-c.slotTail < c.d.slots
}

// post posts the work request that is in wrs. One in each quarter of the slots is signalled.
func (c *rcCarrier) post(req *request) {
	wr := &c.wrs[0]
	c.posted++
	wr.WRID = uint64(c.posted)
	if req != nil || c.posted&(c.d.slots/4-1) == 0 {
		wr.Flags |= verbs.SendSignaled
		c.marks[c.markHead%rcSends] = rcMark{c.posted, c.slotHead, req}
		c.markHead++
	}
	n, err := c.qp.PostSend(c.wrs[:])
	if err == nil && n == 0 {
		err = errors.New("the send queue is full")
	}
	if err != nil {
		c.l.lost(err)
	}
}

// packet returns memory for a packet of n bytes after its header, which send sends.
func (c *rcCarrier) packet(n int) []byte {
	if rcHeader+n <= c.inline {
		return c.buf[:rcHeader+n]
	}
	at := int(c.slotHead&(c.d.slots-1)) * c.d.slot
	return c.sends.Bytes()[at : at+rcHeader+n]
}

func (c *rcCarrier) send(b []byte, h *rcPacket) {
	h.lines = uint16(c.lanes.sent)
	h.put((*[rcHeader]byte)(b))
	c.lanes.qpSent++
	wr := &c.wrs[0]
	if len(b) <= c.inline {
		*wr = verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: b}
	} else {
		at := int(c.slotHead&(c.d.slots-1)) * c.d.slot
		c.slotHead++
		c.sge = append(c.sge[:0], c.sends.SGE(at, len(b)))
		*wr = verbs.SendWR{Opcode: verbs.OpSend, SGList: c.sge}
	}
	c.post(nil)
}

// here returns the number of a process of this host.
func (c *rcCarrier) here(p *process) uint16 {
	return uint16(p.rank - c.l.e.processes[0].rank)
}

func (c *rcCarrier) there(rank int32) uint16 { return uint16(rank - c.peers[0]) }

func (c *rcCarrier) data(r *request, t packet.Type, n uint64) {
	b := c.packet(int(n))
	h := rcPacket{t: t, dest: c.there(r.peer), src: c.here(r.comm.p), tag: r.tag, cid: uint32(r.match.cid), length: r.length, srqid: r.id()}
	if n < r.length && c.d.allocated(r) {
		h.flags = rcKnown
	}
	if n < r.length && c.l.promised(r) {
		h.flags |= rcEager
	}
	r.copyOut(b[rcHeader:])
	c.send(b, &h)
	if c.l.err == nil {
		c.l.written(r)
	}
}

// message sends a message of one packet without a request: its request id is 0, so the peer cannot
// refer to it.
func (c *rcCarrier) message(p *pair, cid uint64, tag int32, data []byte) {
	if b, at := c.lane(len(data)); b != nil {
		copy(at, data)
		c.sendLine(b, p, tag, cid, 0, len(data))
		return
	}
	if c.l.err != nil {
		return
	}
	b := c.packet(len(data))
	copy(b[rcHeader:], data)
	c.send(b, &rcPacket{t: packet.Data, dest: c.there(p.remote), src: c.here(p.local), tag: tag, cid: uint32(cid), length: uint64(len(data))})
}

func (c *rcCarrier) control(p *pair, t packet.Type, srqid uint64, r *request) {
	h := rcPacket{t: t, dest: c.there(p.remote), src: c.here(p.local), srqid: srqid}
	if t == refusal {
		h.t, h.length = packet.CancelYes, c.l.e.refusalID()
	}
	n := 0
	var list []remote
	if r != nil {
		h.length = r.id()
		if r.moved < r.length && r.fetched == nil {
			list = c.invite(r)
			n = len(list) * rcPiece
			switch {
			case r.transfer == throughStage:
				if h.flags = rcStaged; r.way == byPast {
					h.flags |= rcPast
				}
			case r.transfer != nil && len(r.transfer.mrs) == 0:
				h.flags = rcKnown
			}
		}
	}
	if t == packet.ProtoAck {
		if c.d.postRecvs(c); c.l.err != nil {
			return
		}
	}
	b := c.packet(n)
	at := b[:rcHeader]
	for _, m := range list {
		at = m.append(at)
	}
	c.send(b, &h)
}

func (c *rcCarrier) flush() {}

func (c *rcCarrier) fini() {
	b := c.packet(0)
	c.send(b, &rcPacket{t: packet.Fini})
}

// goOn resumes what waited for room or has since been queued.
func (c *rcCarrier) goOn() {
	if len(c.l.ready) > 0 || c.write != nil || c.stage.seen-c.stage.given >= stageBack || c.waking {
		c.resume()
	}
}

func (c *rcCarrier) resume() {
	c.giveBack()
	if c.waking {
		c.wake()
	}
	if c.l.err == nil && (c.write == nil || c.writeOn()) && c.l.err == nil {
		c.l.push()
	}
}

// completed handles the completion of work request seq and all before it.
func (c *rcCarrier) completed(seq uint32) {
	for c.markTail != c.markHead && int32(c.marks[c.markTail%rcSends].seq-seq) <= 0 {
		m := c.marks[c.markTail%rcSends]
		c.markTail++
		c.done, c.slotTail = m.seq, m.slots
		if r := m.req; r != nil {
			r.transfer.free()
			r.transfer = nil
			r.moved = r.length
			c.l.written(r)
		}
	}
}

// received handles a packet.
func (c *rcCarrier) received(wc *verbs.WC) error {
	if wc.Opcode == verbs.WCRecvRDMAWithImm {
		return c.landed(wc.Imm)
	}
	if int(wc.ByteLen) > c.d.slot {
		return fmt.Errorf("%w: packet of %d bytes", ErrProtocol, wc.ByteLen)
	}
	b := c.d.recvs.Bytes()[int(wc.WRID)*c.d.slot:][:wc.ByteLen]
	h, err := parseRC(b)
	if err != nil {
		return err
	}
	b = b[rcHeader:]
	if err := c.drainLane(h.lines); err != nil {
		return err
	}
	c.lanes.qpSeen++
	l := c.l
	if l.left {
		return fmt.Errorf("%w: %v after FINI", ErrProtocol, h.t)
	}
	switch h.t {
	case packet.Fini:
		l.farewell()
		l.bye()
		return errLeft
	case rcCredit:
		return c.credited(h.cid)
	case rcWake:
		return nil
	}
	if int(h.dest) >= len(l.e.processes) || int(h.src) >= len(c.peers) {
		return fmt.Errorf("%w: packet from process %d of IMPI host %d to process %d, one of which does not exist", ErrProtocol, h.src, l.host, h.dest)
	}
	if h.t == packet.Data && h.flags == 0 && c.quick(&h, b) {
		return l.in.pair.received()
	}
	return c.deliver(&h, b)
}

// deliver handles a packet with that body.
func (c *rcCarrier) deliver(h *rcPacket, b []byte) (err error) {
	l := c.l
	a := arrival{t: h.t, src: c.peers[h.src], dest: l.e.processes[h.dest], tag: h.tag, cid: uint64(h.cid), length: h.length, srqid: h.srqid}
	switch h.t {
	case packet.Data, packet.DataSync:
		a.body, a.known, a.eager = uint32(len(b)), h.flags&rcKnown != 0, h.flags&rcEager != 0
		if h.flags&rcRest != 0 {
			a.srqid, a.drqid = 0, h.srqid
		}
		if h.flags == rcRest {
			c.unwritten(&a)
		}
		if h.flags&rcStaged != 0 {
			if b, err = c.staged(h); err != nil {
				return err
			}
			a.body, a.staged = h.cid, true
			c.arriving(&a)
		}
	case packet.SyncAck:
		a.drqid = h.length
		if len(b) > 0 || h.flags != 0 {
			if err := c.invited(&a, b, h.flags); err != nil {
				return err
			}
		}
	default:
		a.drqid = h.length
		if len(b) > 0 {
			return fmt.Errorf("%w: %v with %d bytes", ErrProtocol, h.t, len(b))
		}
	}
	if err := l.header(&a); err != nil {
		return err
	}
	if a.body > 0 {
		l.in.fill(b)
	}
	return l.end()
}

// quick is the fast path of header and end for latency: it delivers a message of one packet to a
// waiting receive. If the path does not apply, it returns false and has done nothing.
func (c *rcCarrier) quick(h *rcPacket, b []byte) bool {
	dest, src := c.l.e.processes[h.dest], c.peers[h.src]
	m := dest.last
	if m == nil || m.cid != uint64(h.cid) || m.comm != nil && m.comm.rankOf(src) < 0 || h.length != uint64(len(b)) || len(b) > int(c.l.packetLen) || h.tag < 0 {
		return false
	}
	r := m.take(src, h.tag)
	if r == nil {
		if !c.l.e.direct.take(m, src, h.tag, b) {
			return false
		}
		c.l.in.pair = dest.pair(src)
		return true
	}
	p := dest.pair(src)
	c.l.in.pair = p
	r.accept(p, src, h.tag, h.length)
	r.copyIn(b)
	c.l.e.complete(r)
	return true
}
