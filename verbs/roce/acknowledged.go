package roce

import (
	"encoding/binary"
	"math/bits"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// missing returns the first PSN before limit of an RDMA READ or atomic whose response has not
// arrived, or limit.
func (q *qp) missing(limit uint32) uint32 {
	if q.req.reads == 0 {
		return limit
	}
	for e := range q.SQ.OutstandingEntries {
		if !before(e.First, limit) {
			break
		}
		if e.Opcode >= verbs.OpRDMARead && !e.Done {
			at := e.First
			if e.Opcode == verbs.OpRDMARead {
				at += uint32(e.Off / uint64(q.mtu))
			}
			if before(at, limit) {
				return at
			}
			break
		}
	}
	return limit
}

// acknowledged: the peer has executed everything before psn. Responses to earlier requests that
// are missing were lost, and are requested again.
func (q *qp) acknowledged(s *soft.Sink, psn uint32, now int64) {
	r := &q.req
	q.executed(s, psn, now)
	if q.State() != verbs.QPErr && before(r.una, psn) {
		r.overtook(psn-1, reorder)
	}
}

// executed: the peer has executed everything before psn. The responses may still come.
func (q *qp) executed(s *soft.Sink, psn uint32, now int64) {
	r := &q.req
	if before(r.executed, psn) {
		r.executed = psn
	}
	q.settle(s, q.missing(r.executed), now)
}

// settle moves the window up to psn.
func (q *qp) settle(s *soft.Sink, psn uint32, now int64) {
	r := &q.req
	if !before(r.una, psn) {
		return
	}
	if before(r.una, r.sackHigh) && before(r.pace.timedPSN, psn) {
		r.pace.untime() // it may have arrived long ago, and waited for earlier packets
	}
	if rtt, ok := r.pace.sample(psn, now); ok {
		r.pace.acked(psn-r.una, rtt, now)
	}
	if psn-r.una >= windowPackets {
		r.arrived, r.came = [windowPackets / 64]uint64{}, [windowPackets / 64]uint64{}
	} else {
		for p := r.una; p != psn; p++ {
			r.arrived[p%windowPackets/64] &^= 1 << (p % 64)
			r.came[p%windowPackets/64] &^= 1 << (p % 64)
		}
	}
	r.una = psn
	if before(r.sackHigh, psn) {
		r.sackHigh = psn
	}
	k := 0
	for k < r.askedN && !before(psn, r.asked[k]) {
		k++
	}
	copy(r.asked[:], r.asked[k:r.askedN])
	r.askedN -= k
	r.progress()
	r.rnrCount, r.resendAt = 0, 0
	moved := before(r.nxt, psn)
	r.pace.progressed(moved)
	if moved {
		r.nxt = psn
	}
	if !q.SQ.Retire(psn-1, &q.scq.CQ, s, q.Num, q.Attr.DestQPNum) {
		q.fail(s, verbs.WCSuccess, 0)
		return
	}
	if moved {
		r.cur = q.position(psn)
	}
	if r.una != r.max {
		q.armResend(now)
	}
	q.Drained()
}

// answered handles an acknowledgement or NAK of the responder.
func (q *qp) answered(s *soft.Sink, h *packet.Header, payload []byte, now int64) {
	r := &q.req
	if st := q.State(); st != verbs.QPRTS && st != verbs.QPSQD {
		return
	}
	psn := extend(h.PSN, r.una)
	// A repeated acknowledgement has the PSN before the oldest.
	if before(psn+1, r.una) || !before(psn, r.max) {
		return
	}
	switch h.Opcode {
	case packet.Acknowledge:
		switch h.Syndrome & packet.SyndromeKind {
		case packet.SyndromeKindACK:
			q.acknowledged(s, psn+1, now)
		case packet.SyndromeRNR:
			q.notReady(s, psn, h.Syndrome&packet.SyndromeValue, now)
		case packet.SyndromeKindNAK:
			q.refused(s, psn, h.Syndrome, now)
		}
	case packet.Selective:
		q.selected(s, psn, h, now)
	case packet.AtomicAcknowledge:
		q.response(s, psn, h, nil, now)
	default:
		q.response(s, psn, h, payload, now)
	}
}

// response handles the packet psn of a response. A packet behind a gap is placed, too; only
// missing packets are requested again.
func (q *qp) response(s *soft.Sink, psn uint32, h *packet.Header, payload []byte, now int64) {
	r := &q.req
	if before(psn, r.una) || !before(psn, r.max) || r.hasCome(psn) {
		return
	}
	e := q.SQ.At(q.position(psn))
	if e.Opcode < verbs.OpRDMARead || (h.Opcode == packet.AtomicAcknowledge) != (e.Opcode != verbs.OpRDMARead) {
		return
	}
	q.executed(s, psn, now)
	if q.State() == verbs.QPErr {
		return
	}
	if status := q.placeResponse(e, psn, h, payload); status != verbs.WCSuccess {
		if r.una == psn { // else it is sent again, when it is its turn to fail
			q.fail(s, status, 0)
		}
		return
	}
	if before(psn+1, r.sackHigh) {
		q.readOver(e, psn)
	}
	r.came[psn%windowPackets/64] |= 1 << (psn % 64)
	at := e.First + uint32(e.Off/uint64(q.mtu))
	for !before(e.Mark, at) && r.hasCome(at) {
		at++
	}
	e.Off = min(e.Length, uint64(at-e.First)*uint64(q.mtu))
	if before(e.Mark, at) {
		e.Done = true
		r.reads--
	}
	q.executed(s, q.partEnd(e, psn), now)
	if q.State() != verbs.QPErr && before(r.una, psn) {
		by := uint32(0)
		if psn+1 == r.max {
			by = reorder // no later packet will show the loss
		}
		r.overtook(psn, by)
		q.ahead(now)
	}
}

// placeResponse copies the packet psn of the response to e to its destination.
func (q *qp) placeResponse(e *soft.SendEntry, psn uint32, h *packet.Header, payload []byte) verbs.WCStatus {
	var old [8]byte
	off, n := uint64(0), uint64(8)
	if h.Opcode == packet.AtomicAcknowledge {
		binary.NativeEndian.PutUint64(old[:], h.Original)
		payload = old[:]
	} else {
		off = uint64(psn-e.First) * uint64(q.mtu)
		n = min(e.Length-off, uint64(q.mtu))
		// The limits of parts are fixed; but a repeated request to a peer of this library
		// may be for less than the rest of a part.
		first := h.Opcode == packet.ReadFirst || h.Opcode == packet.ReadOnly
		last := h.Opcode == packet.ReadLast || h.Opcode == packet.ReadOnly
		end := psn+1 == q.partEnd(e, psn)
		if !first && (psn-e.First)%readPart == 0 || end && !last || last && !end && !q.ours {
			return verbs.WCBadRespErr
		}
	}
	if uint64(len(payload)) != n || h.Opcode != packet.ReadMiddle && h.Syndrome&packet.SyndromeKind != packet.SyndromeKindACK {
		return verbs.WCBadRespErr
	}
	if n > 0 && q.a.mrs.Scatter(q.PD, e.SGEs, off, payload) != soft.OK {
		return verbs.WCLocProtErr
	}
	return verbs.WCSuccess
}

// notReady: the responder has no receive for the message of psn.
func (q *qp) notReady(s *soft.Sink, psn uint32, code uint8, now int64) {
	r := &q.req
	if before(psn, r.una) || !before(psn, r.max) {
		return
	}
	if r.rnrUntil != 0 && psn == r.una {
		return // reported before
	}
	count := r.rnrCount
	moved := before(r.una, psn)
	q.acknowledged(s, psn, now)
	if q.State() == verbs.QPErr {
		return
	}
	if !moved {
		r.rnrCount = count
	}
	if q.Attr.RNRRetry != retryForEver {
		if r.rnrCount >= q.Attr.RNRRetry {
			q.fail(s, verbs.WCRNRRetryExcErr, 0)
			q.Events.Add(verbs.EventQPFatal, q)
			return
		}
		r.rnrCount++
	}
	// The responder has dropped the packets that it held behind this one.
	r.forgetArrived()
	q.goBack(r.una)
	r.resendAt = 0
	r.rnrUntil = now + int64(verbs.RNRTimer(code))
	q.a.at(q, r.rnrUntil)
}

// retryForEver is the RNR retry count that means without limit.
const retryForEver = 7

// refused: a NAK.
func (q *qp) refused(s *soft.Sink, psn uint32, syndrome uint8, now int64) {
	r := &q.req
	if before(psn, r.una) || !before(psn, r.max) {
		return
	}
	status := verbs.WCBadRespErr
	switch syndrome {
	case packet.SyndromeSequence:
		r.pace.lost++
		q.acknowledged(s, psn, now)
		if q.State() != verbs.QPErr {
			q.goBack(psn)
		}
		return
	case packet.SyndromeInvalid:
		status = verbs.WCRemInvReqErr
	case packet.SyndromeAccess:
		status = verbs.WCRemAccessErr
	case packet.SyndromeOperation:
		status = verbs.WCRemOpErr
	}
	q.acknowledged(s, psn, now)
	if q.State() == verbs.QPErr || before(r.una, psn) {
		return // missing responses are requested again; the NAK then comes again
	}
	q.fail(s, status, 0)
	q.Events.Add(verbs.EventQPFatal, q)
}

// selected: the peer lacks psn, and reports which later packets it has.
func (q *qp) selected(s *soft.Sink, psn uint32, h *packet.Header, now int64) {
	r := &q.req
	if before(psn, r.una) || !before(psn, r.max) {
		return
	}
	q.acknowledged(s, psn, now)
	if q.State() == verbs.QPErr {
		return
	}
	for w, word := range h.Arrived {
		for ; word != 0; word &= word - 1 {
			p := psn + 1 + uint32(64*w) + uint32(bits.TrailingZeros64(word))
			if !before(p, r.max) || p-r.una >= windowPackets {
				break
			}
			i := p % windowPackets
			r.arrived[i/64] |= 1 << (i % 64)
			r.overtook(p, 0)
		}
	}
	q.ahead(now)
}

// ahead notes that a packet arrived before missing ones. It may be the one being timed.
func (q *qp) ahead(now int64) {
	r := &q.req
	if r.pace.timing && r.has(r.pace.timedPSN) {
		if rtt, ok := r.pace.sample(r.pace.timedPSN+1, now); ok {
			r.pace.acked(0, rtt, now)
		}
	}
	q.armProbe(now)
}
