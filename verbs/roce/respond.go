package roce

import (
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// burst is the number of response packets that a QP sends before other QPs have their turn, and
// before arrived packets are received: one request may read 1 GiB.
const burst = 64

// respond sends a burst of the responses owed to the peer; once they are done, acknowledgements,
// which imply that the responses have been sent. Without flush, an acknowledgement waits to be
// carried by another packet.
func (q *qp) respond(s *soft.Sink, flush bool) {
	p := &q.rsp
	for n := 0; n < burst && p.answers.n > 0 && !p.behind && q.answer(s); n++ {
	}
	if p.marked {
		p.marked = false
		h := packet.Header{Opcode: packet.CNP, Migrated: true, BECN: true, PKey: packet.DefaultPKey, DestQP: q.Attr.DestQPNum}
		if q.ours {
			h.PSN = (p.expect - 1) & psnMask // as in an acknowledgement, for near
		}
		q.frame(&h, 0)
	}
	h := packet.Header{Opcode: packet.Acknowledge, Migrated: true, PKey: packet.DefaultPKey, DestQP: q.Attr.DestQPNum, MSN: p.msn}
	switch {
	case p.answers.n > 0:
		return
	case p.nakDue:
		p.nakDue = false
		h.PSN, h.Syndrome = p.expect&psnMask, p.nak
		if p.refusal {
			h.PSN, h.Syndrome = p.refuseAt&psnMask, p.fatal
		} else if q.ours && p.held.n > 0 { // nothing is held where a receive is missing
			h.Opcode = packet.Selective
			p.held.tell(&h.Arrived, p.expect)
		}
	case p.ackDue && (flush || p.unacked >= ackAtOnce):
		h.PSN, h.Syndrome = (p.expect-1)&psnMask, packet.SyndromeACK
		if p.acked {
			p.replies = 0
		}
		p.acked = true
	default:
		return
	}
	p.ackDue, p.hurried, p.unacked = false, false, 0
	q.frame(&h, 0)
}

// carry adds the acknowledgement owed to a packet, if the peer understands that and nothing else has
// to be sent before it.
func (q *qp) carry(h *packet.Header) {
	p := &q.rsp
	if p.ackDue || p.acked {
		p.replies, p.acked = min(p.replies+1, conversation), false
	}
	if q.ours && !q.a.ackEach && p.ackDue && !p.nakDue && p.answers.n == 0 {
		h.Carries, h.Carried = true, (p.expect-1)&psnMask
		p.ackDue, p.hurried, p.unacked = false, false, 0
	}
}

// conversation is the number of consecutive messages that must have been replied to before
// acknowledgements wait for the reply (as in TCP's "pingpong mode", with the same value:
// TCP_PINGPONG_THRESH of Linux until 6.1). Otherwise they are sent at once: a user with all the
// completions it waited for may stop polling, and the peer would have to wait for the driver.
const conversation = 3

// lazy says whether an acknowledgement that is owed may wait for a packet to carry it.
func (q *qp) lazy() bool {
	return q.ours && !q.rsp.hurried && q.rsp.replies == conversation
}

// ackAtOnce is the number of packets after which a requested acknowledgement no longer waits for
// another packet.
const ackAtOnce = 8

// answer sends the next packet of the oldest response, and returns false if that refuses the request
// because the memory is no longer registered.
//
// For a repeated request the refusal is a response like any other: the peer may have had the first
// response long ago, and the memory may have been deregistered since.
func (q *qp) answer(s *soft.Sink) bool {
	p := &q.rsp
	a := p.answers.front()
	h := packet.Header{Migrated: true, PKey: packet.DefaultPKey, DestQP: q.Attr.DestQPNum,
		PSN: (a.first + a.sent) & psnMask, Syndrome: packet.SyndromeACK, MSN: p.msn}
	if a.atomic {
		h.Opcode, h.Original = packet.AtomicAcknowledge, a.original
		q.frame(&h, 0)
		p.answers.pop()
		return true
	}
	off := uint64(a.sent) * uint64(q.mtu)
	n := int(min(uint64(a.length)-off, uint64(q.mtu)))
	first, last := a.sent == 0, a.sent+1 == a.n
	switch {
	case first && last:
		h.Opcode = packet.ReadOnly
	case first:
		h.Opcode = packet.ReadFirst
	case last:
		h.Opcode = packet.ReadLast
	default:
		h.Opcode = packet.ReadMiddle
	}
	h.Pad = packet.PadOf(n)
	var m *soft.MR
	if n > 0 {
		var fault soft.Fault
		m, fault = q.a.mrs.Lookup(q.PD, a.rkey, a.addr+off, uint64(n), verbs.AccessRemoteRead)
		switch {
		case fault != soft.OK && a.again:
			h.Opcode, h.Pad, h.Syndrome = packet.Acknowledge, 0, packet.SyndromeAccess
			q.frame(&h, 0)
			p.answers.pop()
			return true
		case fault != soft.OK:
			p.answers.n = 0
			p.refusal, p.fatal, p.refuseAt, p.nakDue = true, packet.SyndromeAccess, a.first+a.sent, true
			if q.State() != verbs.QPErr {
				q.fail(s, verbs.WCSuccess, 0)
				q.Events.Add(verbs.EventQPAccessErr, q)
			}
			return false
		}
	}
	b := q.frame(&h, n)
	if n > 0 {
		dst := b[h.Len():]
		copy(dst[:n], m.Slice(a.addr+off, n))
		clear(dst[n : n+int(h.Pad)])
	}
	if a.sent++; last {
		p.answers.pop()
	}
	return true
}

// frame makes the header of a packet with n bytes of payload, and returns the
// packet.
func (q *qp) frame(h *packet.Header, n int) []byte {
	size := h.Len() + n + int(h.Pad)
	b := q.a.wire.frame(&q.flow, size)
	h.Append(b[:0])
	q.framed++
	return b
}
