package roce

import (
	"time"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// armResend sets the timer after which unacknowledged packets are resent.
func (q *qp) armResend(now int64) {
	r := &q.req
	if r.rnrUntil != 0 {
		return // the RNR timer comes first
	}
	limit := int64(verbs.AckTimeout(q.Attr.Timeout))
	if limit == 0 {
		limit = int64(maxResend)
	}
	wait := firstResend
	if q.met {
		wait = r.pace.timeout()
	}
	after := int64(wait)
	if after < limit {
		after = min(after<<min(r.waits, 16), limit)
	} else {
		after = limit
	}
	if patience := q.patience(); patience != 0 {
		after = min(after, max(patience-r.silent, 1))
	}
	r.resendAt, r.waiting = now+after, after
	q.a.at(q, r.resendAt)
}

const (
	// firstResend is how soon the first packets of a connection are resent: a peer that is not
	// in RTR yet drops them. It doubles each time.
	firstResend = time.Millisecond
	// maxResend limits the time between two attempts if the QP has no timeout.
	maxResend = 500 * time.Millisecond
)

// armProbe sets the timer after which holes are filled again. Arriving later packets show if a
// resent packet was lost, too, but the window may allow no later ones: then each loss would take a
// timeout (RFC 8985 sends a tail loss probe after the same time).
func (q *qp) armProbe(now int64) {
	if r := &q.req; r.pace.sampled && r.rnrUntil == 0 {
		r.probeAt = now + int64(max(2*r.pace.srtt, leastProbe))
		q.a.at(q, r.probeAt)
	}
}

// leastProbe is less than a peer without an adapter may be descheduled, but a probe too early costs
// only the packets of the holes.
const leastProbe = 100 * time.Microsecond

// probe causes all holes to be filled again.
func (q *qp) probe(now int64) {
	r := &q.req
	r.probeAt = 0
	for psn := r.una; before(psn, r.sackHigh); psn++ {
		if !r.has(psn) {
			r.sentAt[psn%windowPackets] = r.newest - reorder
		}
	}
	if before(r.una, r.sackHigh) {
		q.armProbe(now)
	}
}

// patience returns how long the peer may be silent, in nanoseconds; 0: without limit. For an adapter,
// which acknowledges without a process, and for a peer that has not been heard from, the QP's
// attributes decide; the timer runs up to four times as long as its code says (9.7.6.1.3). A peer of
// this library that has been heard from is silent while its process is stopped, and has the
// configured time.
func (q *qp) patience() int64 {
	switch {
	case q.Attr.Timeout == 0:
		return 0
	case q.ours && q.met:
		return int64(q.a.cfg.PeerTimeout)
	}
	return 4 * int64(verbs.AckTimeout(q.Attr.Timeout)) * int64(q.Attr.RetryCnt+1)
}

// expireRequester acts on the requester's timers.
func (q *qp) expireRequester(s *soft.Sink, now int64) {
	r := &q.req
	if r.rnrUntil != 0 {
		if now >= r.rnrUntil {
			r.rnrUntil = 0
			r.progress()
		}
		return
	}
	if r.probeAt != 0 && now >= r.probeAt {
		q.probe(now)
	}
	if r.resendAt == 0 || now < r.resendAt {
		return
	}
	r.resendAt = 0
	if r.una == r.max {
		return
	}
	// Do not count the lateness of the timer: this process had no CPU, so it could not resend,
	// nor the peer acknowledge.
	r.silent += r.waiting
	if patience := q.patience(); patience != 0 && r.silent >= patience {
		q.lose(s, vendorSilent)
		return
	}
	r.waits++
	r.pace.timedOut()
	r.forgetArrived()
	q.goBack(r.una)
	q.armResend(now)
}

// lose declares the peer dead.
func (q *qp) lose(s *soft.Sink, vendor uint32) {
	q.a.notices.lose(lostPeer{q.Num, q.peer, vendor, time.Duration(q.req.silent)})
	q.a.hurry(0)
	q.fail(s, verbs.WCRetryExcErr, vendor)
	q.Events.Add(verbs.EventQPFatal, q)
}

// onItsWay says whether the packet of a wire PSN has been sent or requested, and is not
// acknowledged.
func (q *qp) onItsWay(psn uint32) bool {
	r := &q.req
	if st := q.State(); st != verbs.QPRTS && st != verbs.QPSQD {
		return false
	}
	psn = extend(psn, r.una)
	return !before(psn, r.una) && before(psn, r.max)
}

// unreachable: the peer's host reports that nothing receives there. The peer may be about to start:
// the report counts once for each try, and when all retries have met it the peer is dead.
func (q *qp) unreachable(s *soft.Sink) {
	r := &q.req
	if st := q.State(); st != verbs.QPRTS && st != verbs.QPSQD || r.una == r.max || r.refusal.last > r.waits {
		return
	}
	r.refusal.last = r.waits + 1
	if r.refusal.tries++; r.refusal.tries > max(int(q.Attr.RetryCnt), 1) {
		q.lose(s, vendorGone)
	}
}

// peerGone: the peer's QP has left. That affects only outstanding requests to it.
func (q *qp) peerGone(s *soft.Sink, psn uint32) {
	if q.onItsWay(psn) {
		q.lose(s, vendorGone)
	}
}
